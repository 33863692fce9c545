"""Folds for cross-validation: each class alike in all of them, and groups never torn apart."""

from __future__ import annotations

import numpy as np

from vitrail.config import InputError
from vitrail.data.split import sample_order


def assign_folds(
    labels: np.ndarray, classes: int, folds: int, *, seed: int = 0, groups: np.ndarray | None = None
) -> np.ndarray:
    """Assign a fold to each image (n), from 0; images of one group share theirs.

    Without groups, each class's images are dealt in turn, and the next class goes on where the last
    one stopped. With groups, the largest go first, each to the fold where its classes lack most.
    """
    if folds < 2:
        raise InputError(f"--folds {folds}: expected 2 or more")
    found = np.full(len(labels), -1)
    if groups is None:
        start = 0
        for order in sample_order(labels, classes, seed):
            found[order] = (start + np.arange(len(order))) % folds
            start += len(order)
        return found
    names, inverse = np.unique(groups, return_inverse=True)
    if len(names) < folds:
        raise InputError(f"--folds {folds}: there are only {len(names)} groups")
    counts = np.zeros((len(names), classes), np.int64)
    np.add.at(counts, (inverse, labels), 1)
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-counts[order].max(1), kind="stable")]
    total = np.maximum(counts.sum(0), 1)
    filled = np.zeros((folds, classes))
    for group in order:
        share = counts[group] / total
        # Lowest spread of each class over the folds, then the emptiest fold.
        costs = [
            (float(np.std(filled + share * (np.arange(folds) == fold)[:, None], axis=0).mean()),
             float(filled[fold].sum()))
            for fold in range(folds)
        ]  # fmt: skip
        best = min(range(folds), key=lambda fold: costs[fold])
        filled[best] += share
        found[inverse == group] = best
    return found
