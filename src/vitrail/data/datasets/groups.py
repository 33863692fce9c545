"""Images that belong together, such as those of one patient, scene or burst.

A group is named by a column of a list, or by a pattern of the images' names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.text import quoted


def group_by_pattern(names: Sequence[str], pattern: str) -> np.ndarray:
    """Name the group of each image: the pattern's match in its name, or the first group of it."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--group {pattern}: not a regular expression: {error}") from None
    part = 1 if compiled.groups else 0
    found = [match and match[part] for match in map(compiled.search, names)]
    if missing := [name for name, group in zip(names, found, strict=True) if not group]:
        some = "matches no text of" if "" in found else "does not match"
        raise InputError(
            f"--group {pattern}: {some} {quoted(missing)}; expected a pattern of the "
            "images' names, or the name of a column of the list"
        )
    return np.array(found)


def group_images(
    dataset: ImageDataset, group: str, column: Mapping[str, str] | None = None
) -> np.ndarray:
    """Name the group of each image of a dataset (n); `column` has them by the images' names."""
    names = list(dataset.image_names())
    if column is None:
        return group_by_pattern(names, group)
    if missing := [name for name in names if not column.get(name)]:
        raise InputError(f"--group {group}: the column is empty for {quoted(missing)}")
    return np.array([column[name] for name in names])
