"""Class imbalance: weights for the loss, and draws that show each class equally often."""

from __future__ import annotations

from typing import Literal

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.rng import Permutation, shuffled
from vitrail.data.split import members
from vitrail.text import quoted

Balance = Literal["none", "weights", "sampling", "auto"]
BETA = 0.999
"""Of the effective number of images, (1 - beta^n) / (1 - beta) (Cui et al., 2019)."""
_EVEN, _STRONG = 1.5, 20.0  # ratios of the largest class to the smallest, between auto's choices


def resolve_balance(kind: Balance, dataset: ImageDataset | ImageStream) -> Balance:
    """Say what is done about imbalance: `auto` goes by the largest class against the smallest.

    Up to 1.5 times as many images need nothing, up to 20 times get weights, more balanced draws.
    Several labels per image need nothing: each has a threshold of its own.
    """
    if kind == "none":
        return kind
    if isinstance(dataset, ImageStream):
        if kind == "auto":
            return "none"
        raise InputError(f"balance {kind} counts the classes before training, and "
                         f"{dataset.name} is a stream; leave it out")  # fmt: skip
    if dataset.regression:
        raise InputError(f"balance counts classes, and {dataset.name} has numbers; leave it out")
    if kind == "sampling" and dataset.multilabel:
        raise InputError(f"balance sampling needs one label per image, and images of "
                         f"{dataset.name} have several; use balance weights")  # fmt: skip
    if kind != "auto":
        return kind
    ratio = imbalance(dataset.class_counts())
    if ratio <= _EVEN or dataset.multilabel:
        return "none"
    return "weights" if ratio <= _STRONG else "sampling"


def imbalance(counts: np.ndarray) -> float:
    """Give the images of the largest class per image of the smallest that has any."""
    there = counts[counts > 0]
    return float(there.max() / there.min()) if len(there) else 1.0


def balance_notes(kind: Balance, dataset: ImageDataset | ImageStream) -> tuple[str, ...]:
    """Say how uneven the classes are and what is done about it, in a line where there is any."""
    chosen = resolve_balance(kind, dataset)
    if chosen == "none" or isinstance(dataset, ImageStream):
        return ()
    done = {
        "weights": "the loss is weighted by the effective number of images",
        "sampling": "each class is drawn equally often",
    }
    auto = "auto: " if kind == "auto" else ""
    return (f"balance {auto}{chosen}: {describe_imbalance(dataset)}; {done[chosen]}",)


def describe_imbalance(dataset: ImageDataset) -> str:
    """Say which class has the most images and which the fewest."""
    counts = dataset.class_counts()
    most, least = int(counts.argmax()), int(np.where(counts > 0, counts, counts.max()).argmin())
    if counts.min() == counts.max():
        return f"{len(counts):,} classes of {counts[most]:,} images each"
    return (
        f"the largest class, {quoted([dataset.classes[most]])}, has {counts[most]:,} images, the "
        f"smallest, {quoted([dataset.classes[least]])}, {counts[least]:,} "
        f"({imbalance(counts):.1f} to 1)"
    )


def class_weights(counts: np.ndarray, beta: float = BETA) -> np.ndarray:
    """Weight classes by the inverse of their effective numbers of images (arXiv 1901.05555).

    The mean over the images is 1, so that the learning rate keeps its meaning. A class without
    images has weight 0.
    """
    effective = (1 - beta**counts) / (1 - beta) if beta < 1 else counts.astype(np.float64)
    weights = np.divide(1.0, effective, out=np.zeros(len(counts)), where=counts > 0)
    return weights * (counts.sum() / (weights @ counts))


class BalancedOrder:
    """An endless sequence of images in which each class is equally often, by position alone.

    The classes take turns, and each goes through its own images in a new order each time. An epoch
    is as long as the dataset, and is shuffled.
    """

    def __init__(self, labels: np.ndarray, classes: int, seed: int) -> None:
        self._groups = [group for group in members(labels, classes) if len(group)]
        self._count, self._seed = len(labels), seed
        self._recent: dict[tuple[int, int], tuple[int, np.ndarray]] = {}

    def images_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up positions: how often the image there was seen before, and its index."""
        epochs, within = np.divmod(positions, self._count)
        draws = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            order = Permutation(self._count, self._seed, "order", int(epoch))
            draws[here] = epoch * self._count + order[within[here]]
        turns, owners = np.divmod(draws, len(self._groups))
        rounds, indices = np.empty_like(positions), np.empty_like(positions)
        for place, (owner, turn) in enumerate(zip(owners.tolist(), turns.tolist(), strict=True)):
            group = self._groups[owner]
            number, at = divmod(turn, len(group))
            rounds[place], indices[place] = number, group[self._order(owner, number)[at]]
        return rounds, indices

    def _order(self, owner: int, number: int) -> np.ndarray:
        """Shuffle a class for the `number`-th time; two are kept."""
        slot = (owner, number % 2)
        known, order = self._recent.get(slot, (-1, np.empty(0, np.int64)))
        if known != number:
            turn = number * len(self._groups) + owner
            order = shuffled(len(self._groups[owner]), self._seed, "balance", turn)
            self._recent[slot] = number, order
        return order
