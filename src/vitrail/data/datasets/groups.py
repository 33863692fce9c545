"""Images that belong together, such as those of one patient, scene or burst.

A group is named by a column of a list, or by a pattern of the images' names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

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


_LOOKED = 5_000  # names that are looked at for groups
_PATTERNS = (
    r"(?i)((?:patient|subject|person|animal|mouse|case|pat|sub|subj|pid)[ _-]?\d+)",
    r"^(?:[^/]+/)*?([^/]*\d[^/]*)/[^/]+$",  # a folder of its own in the class's
    r"([^/]*\d[^/]*)[_-][^/_-]+$",  # the name up to its last part
)


def suggest_group(names: Sequence[str], labels: np.ndarray | None = None) -> str | None:
    """Find a pattern by which images' names look like several of each patient, scene or burst.

    Nearly every group has several images, and a class many groups; None if no pattern does so.
    """
    names = names[:_LOOKED]
    for pattern in _PATTERNS:
        found = [match and match[1] for match in map(re.compile(pattern).search, names)]
        if len(names) < 4 or None in found:
            continue
        counts = Counter(found)
        several = sum(count > 1 for count in counts.values())
        if several < 0.5 * len(counts) or max(counts.values()) > max(2, len(names) // 3):
            continue
        if labels is None or len(counts) >= 2 * len(np.unique(labels[: len(names)])):
            return pattern
    return None


def say_groups(splits: Mapping[str, ImageDataset]) -> str | None:
    """Name the option that keeps patients together, where names look like several images of each.

    Where splits keep them apart already, there is nothing to say.
    """
    first = next(iter(splits.values()))
    if not len(first):
        return None
    names = list(islice(first.image_names(), _LOOKED))
    pattern = suggest_group(names, first.labels if first.labels.ndim == 1 else None)
    if pattern is None:
        return None
    found = [Counter(_groups_of(each, pattern)) for each in splits.values()]
    if len(found) > 1 and not any(set(found[0]) & set(other) for other in found[1:]):
        return None
    (name, count), total = found[0].most_common(1)[0], len(set().union(*found))
    return (
        f"names look like several images of each patient or scene ({total:,} of them; {name!r} has "
        f"{count:,}); keep each on one side with --group '{pattern}'"
    )


def _groups_of(dataset: ImageDataset, pattern: str) -> Iterator[str]:
    matches = map(re.compile(pattern).search, islice(dataset.image_names(), _LOOKED))
    return (match[1] for match in matches if match)
