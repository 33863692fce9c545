"""Smaller sets from larger ones: random, balanced, and k images a class for few-shot studies.

Subsets of one seed are nested: each lies in every larger one, as the paper's data study needs
(Figure 4: 9M, 30M, 90M and 300M images of one set).
"""

from __future__ import annotations

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.rng import shuffled
from vitrail.data.split import members, round_half_up
from vitrail.text import quoted


def subset(source: ImageDataset, count: int | float, seed: int) -> ImageDataset:
    """Take images at random: so many of them (an int), or such a part of the set (a float)."""
    return _first(source, shuffled(len(source), seed, "subset"), count)


def balanced_subset(source: ImageDataset, count: int | float, seed: int) -> ImageDataset:
    """Take images at random, of each class as many or one more, as far as they last."""
    _check_one_label(source, "a balanced subset")
    order = shuffled(len(source), seed, "subset")
    rounds = np.empty(len(source), np.int64)  # in which each image is its class's turn
    for group in members(source.labels[order], len(source.classes)):
        rounds[order[group]] = np.arange(len(group))
    return _first(source, order[np.argsort(rounds[order], kind="stable")], count)


def shots(source: ImageDataset, k: int, seed: int) -> ImageDataset:
    """Take k images of each class: the first k of a random order of each, drawn in class order.

    One NumPy generator draws all the orders, one after the other.
    """
    _check_one_label(source, "drawing shots")
    if k < 1:
        raise InputError(f"expected one shot a class or more, got {k}")
    generator = np.random.default_rng(seed)
    chosen = []
    groups = members(source.labels, len(source.classes))
    for name, group in zip(source.classes, groups, strict=True):
        if len(group) < k:
            short = f"{source.name} has {len(group)} of class {quoted([name])}"
            raise InputError(f"{short}: too few for {k} shots a class")
        chosen.append(generator.permutation(group)[:k])
    return select(source, np.concatenate(chosen), f"{source.name} ({k} shots)")


def _first(source: ImageDataset, order: np.ndarray, count: int | float) -> ImageDataset:
    """Take the first images of an order, back in the source's own."""
    total = len(source)
    if isinstance(count, float):
        if not 0 < count <= 1:
            raise InputError(f"expected a part of {source.name} above 0 and up to 1.0, got {count}")
        count = max(1, round_half_up(count, total))
    if not 0 < count <= total:
        raise InputError(f"{source.name} has {total:,} images; {count:,} of them can't be taken")
    return select(source, np.sort(order[:count]), f"{source.name} ({count:,} of {total:,})")


def _check_one_label(source: ImageDataset, what: str) -> None:
    if source.multilabel:
        raise InputError(f"{what} needs one label an image; {source.name} has several")
