"""Divide images so that no group, such as the photos of a patient, is torn apart.

Groups are placed one by one, each where its classes lack most, so only the loop over groups is left
to Python; a group's classes are held sparse, as a million groups may have a thousand classes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import fsum, sqrt

import numpy as np

from vitrail.config import InputError
from vitrail.text import quoted


@dataclass(frozen=True)
class _GroupCounts:
    """How many images of which classes each group has; groups are in the order of their names."""

    names: np.ndarray
    group_of: np.ndarray
    """(images) the number of each image's group."""
    cells: list[list[tuple[int, int]]]
    """Of each group, its classes with their images."""
    totals: np.ndarray
    """(classes) all images."""

    @cached_property
    def largest(self) -> np.ndarray:
        """Give the images of each group's most frequent class."""
        return np.array([max(count for _, count in each) for each in self.cells])


def _count_groups(labels: np.ndarray, groups: np.ndarray, classes: int) -> _GroupCounts:
    names, group_of = np.unique(groups, return_inverse=True)
    cells, counts = np.unique(group_of * classes + labels, return_counts=True)
    group, label = np.divmod(cells, classes)
    pairs = list(zip(label.tolist(), counts.tolist(), strict=True))
    starts = np.searchsorted(group, np.arange(len(names) + 1)).tolist()
    by_group = [pairs[first:end] for first, end in pairwise(starts)]
    return _GroupCounts(names, group_of, by_group, np.bincount(labels, minlength=classes))


def hold_out_groups(labels: np.ndarray, groups: np.ndarray, fraction: float) -> np.ndarray:
    """Mark whole groups to hold out (n), so that each class gives its fraction, if it can.

    Groups are taken in an order of their own names as long as one brings the classes nearer to
    their fractions; at least one is held out, and one kept.
    """
    classes = labels if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    counted = _count_groups(classes, groups, int(classes.max()) + 1)
    names = counted.names.tolist()
    if len(names) < 2:
        raise InputError(
            f"all images are of one group, {quoted(names)}; none can be held out whole"
        )
    wanted = (fraction * counted.totals).tolist()
    scale = np.maximum(wanted, 1e-9).tolist()
    taken, chosen = [0] * len(wanted), np.zeros(len(names), bool)
    order = sorted(range(len(names)), key=lambda number: _hash(names[number]))

    def gain(number: int) -> float:
        """Tell how much nearer the group brings its classes; those of others stay as they are."""
        before = after = 0.0
        for label, count in counted.cells[number]:
            before += ((taken[label] - wanted[label]) / scale[label]) ** 2
            after += ((taken[label] + count - wanted[label]) / scale[label]) ** 2
        return before - after

    for number in order:
        if gain(number) > 0:
            chosen[number] = True
            for label, count in counted.cells[number]:
                taken[label] += count
    if not chosen.any():  # each group is larger than all that is to be held out
        chosen[max(order, key=gain)] = True
    if chosen.all():
        chosen[order[-1]] = False
    return chosen[counted.group_of]


def assign_group_folds(
    labels: np.ndarray, classes: int, folds: int, groups: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Assign a fold to each image (n), from 0, the same to those of one group.

    The largest groups go first, each to the fold where its classes lack most.
    """
    counted = _count_groups(labels, groups, classes)
    if len(counted.names) < folds:
        raise InputError(f"--folds {folds}: there are only {len(counted.names)} groups")
    order = rng.permutation(len(counted.names))
    order = order[np.argsort(-counted.largest[order], kind="stable")]
    total = np.maximum(counted.totals, 1).tolist()
    filled = [[0] * folds for _ in total]  # images by class and fold
    shares = [0.0] * folds
    fold_of = np.zeros(len(order), np.int64)

    def cost(number: int, fold: int) -> tuple[float, float]:
        """Give the spread of the group's classes over the folds, then how full the fold is."""
        spreads: list[float] = []
        for label, count in counted.cells[number]:
            row = filled[label]
            squares = sum(each * each for each in row) + count * (2 * row[fold] + count)
            spreads.append(sqrt(folds * squares - (sum(row) + count) ** 2) / total[label])
        # Rounded, so that folds that are equally full have equal costs, however they were filled.
        return round(fsum(spreads), 12), round(shares[fold], 9)

    for number in order.tolist():
        best = min(range(folds), key=lambda fold: cost(number, fold))
        fold_of[number] = best
        for label, count in counted.cells[number]:
            filled[label][best] += count
            shares[best] += count / total[label]
    return fold_of[counted.group_of]


def torn_groups(first: np.ndarray, second: np.ndarray) -> list[str]:
    """List the groups that have images on both sides of a split."""
    return np.intersect1d(first, second).tolist()


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
