"""Subsets of datasets: random, balanced, and k images per class for few-shot evaluation.

Subsets of one seed are nested: each is contained in every larger one, as the paper's data study
needs (Figure 4: 9M, 30M, 90M and 300M images of one dataset).
"""

from __future__ import annotations

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.rng import shuffled
from vitrail.data.split import members, round_half_up
from vitrail.text import quoted


def subset(dataset: ImageDataset, count: int | float, seed: int) -> ImageDataset:
    """Sample images at random: a number of them (int), or a fraction of the dataset (float)."""
    return _first(dataset, shuffled(len(dataset), seed, "subset"), count)


def balanced_subset(dataset: ImageDataset, count: int | float, seed: int) -> ImageDataset:
    """Sample images at random, as equally many of each class as there are."""
    _check_one_label(dataset, "a balanced subset")
    order = shuffled(len(dataset), seed, "subset")
    rounds = np.empty(len(dataset), np.int64)  # in which each image is its class's turn
    for group in members(dataset.labels[order], len(dataset.classes)):
        rounds[order[group]] = np.arange(len(group))
    return _first(dataset, order[np.argsort(rounds[order], kind="stable")], count)


def shots(dataset: ImageDataset, k: int, seed: int) -> ImageDataset:
    """Sample k images of each class: the first k of a random permutation of each.

    One NumPy generator makes all the permutations, in class order.
    """
    _check_one_label(dataset, "sampling shots")
    if k < 1:
        raise InputError(f"expected at least one shot per class, got {k}")
    generator = np.random.default_rng(seed)
    chosen = []
    groups = members(dataset.labels, len(dataset.classes))
    for name, group in zip(dataset.classes, groups, strict=True):
        if len(group) < k:
            short = f"{dataset.name} has {len(group)} of class {quoted([name])}"
            raise InputError(f"{short}: too few for {k} shots per class")
        chosen.append(generator.permutation(group)[:k])
    return select(dataset, np.concatenate(chosen), f"{dataset.name} ({k} shots)")


def _first(dataset: ImageDataset, order: np.ndarray, count: int | float) -> ImageDataset:
    """Select the first images of an order, sorted by index."""
    total = len(dataset)
    if isinstance(count, float):
        if not 0 < count <= 1:
            raise InputError(f"the fraction of {dataset.name} must be in (0, 1], got {count}")
        count = max(1, round_half_up(count, total))
    if not 0 < count <= total:
        raise InputError(f"{dataset.name} has {total:,} images; {count:,} of them can't be taken")
    return select(dataset, np.sort(order[:count]), f"{dataset.name} ({count:,} of {total:,})")


def _check_one_label(dataset: ImageDataset, what: str) -> None:
    if dataset.multilabel:
        raise InputError(f"{what} needs one label per image; {dataset.name} has several")
