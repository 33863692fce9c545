"""Images that belong together, such as those of one patient, scene or burst.

A group is named by a column of a list, or by a pattern of the images' names.
"""

from __future__ import annotations

import hashlib
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
    matches = [compiled.search(name) for name in names]
    if missing := [name for name, match in zip(names, matches, strict=True) if match is None]:
        raise InputError(
            f"--group {pattern}: does not match {quoted(missing)}; expected a pattern of the "
            "images' names, or the name of a column of the list"
        )
    return np.array([m[1] if compiled.groups else m[0] for m in matches if m is not None])


def group_images(
    dataset: ImageDataset, group: str, column: Mapping[str, str] | None = None
) -> np.ndarray:
    """Name the group of each image of a dataset (n); `column` has them by the images' names."""
    names = [dataset.where(index) for index in range(len(dataset))]
    if column is None:
        return group_by_pattern(names, group)
    if missing := [name for name in names if not column.get(name)]:
        raise InputError(f"--group {group}: the column is empty for {quoted(missing)}")
    return np.array([column[name] for name in names])


def hold_out_groups(labels: np.ndarray, groups: np.ndarray, fraction: float) -> np.ndarray:
    """Mark whole groups to hold out (n), so that each class gives its fraction, if it can.

    Groups are taken in an order of their own names as long as one brings the classes nearer to
    their fractions; at least one is held out, and one kept.
    """
    names, inverse = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise InputError(f"all images are of one group, {quoted(names.tolist())}; none can be held "
                         "out whole")  # fmt: skip
    classes = labels if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    counts = np.zeros((len(names), int(classes.max()) + 1))
    np.add.at(counts, (inverse, classes), 1)
    wanted = fraction * counts.sum(0)
    order = sorted(range(len(names)), key=lambda number: _hash(str(names[number])))
    taken, chosen = np.zeros_like(wanted), np.zeros(len(names), bool)
    scale = np.maximum(wanted, 1e-9)

    def miss(held: np.ndarray) -> float:
        return float((((held - wanted) / scale) ** 2).sum())

    for number in order:
        if miss(taken + counts[number]) < miss(taken):
            taken, chosen[number] = taken + counts[number], True
    if not chosen.any():  # each group is larger than all that is to be held out
        chosen[min(order, key=lambda number: miss(counts[number]))] = True
    if chosen.all():
        chosen[order[-1]] = False
    return chosen[inverse]


def torn_groups(first: np.ndarray, second: np.ndarray) -> list[str]:
    """List the groups that have images on both sides of a split."""
    return np.intersect1d(first, second).tolist()


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
