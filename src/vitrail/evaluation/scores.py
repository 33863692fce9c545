"""Metrics of predictions: confusion, average precision, F1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Confusion(NamedTuple):
    """How often a class was predicted as another; only pairs that occurred."""

    label: int
    predicted: int
    """-1 for an output of the model that stands for no class of the data."""
    images: int


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Count predictions by class: (classes, classes); one more column if some are of no class."""
    outside = bool((predicted < 0).any())
    columns = classes + outside
    cells = labels * columns + np.where(predicted < 0, classes, predicted)
    return np.bincount(cells, minlength=classes * columns).reshape(classes, columns)


def list_confusion(matrix: np.ndarray) -> list[Confusion]:
    """List a matrix's cells that are not 0, row by row."""
    classes = len(matrix)
    rows, columns = np.nonzero(matrix)
    return [
        Confusion(row, column if column < classes else -1, int(matrix[row, column]))
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    ]


def average_precision(
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    order: np.ndarray | None = None,
) -> np.ndarray:
    """Give each class's average precision: the mean precision at each of its images, by rank.

    Both arrays are (images, classes); images of equal score share a rank. NaN for a class without
    images. `weights` says how often each image counts, `order` is what `rank` gives.
    """
    count, classes = scores.shape
    weights = np.ones(count) if weights is None else weights
    order = rank(scores) if order is None else order
    found = np.full(classes, np.nan)
    for number, places in enumerate(order.T):
        heavy = weights[places]
        hits = np.cumsum(heavy * (labels[places, number] > 0))
        if hits[-1] == 0:
            continue
        last = np.append(np.flatnonzero(np.diff(scores[places, number])), count - 1)  # of equals
        hits, seen = hits[last], np.cumsum(heavy)[last]
        gained = np.diff(hits, prepend=0.0)
        there = gained > 0
        found[number] = (gained[there] * hits[there] / seen[there]).sum() / hits[-1]
    return found


def rank(scores: np.ndarray) -> np.ndarray:
    """Sort images by each class's score, the best first: (images, classes) of their numbers."""
    return np.argsort(-scores, axis=0, kind="stable")


def f1(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Give each class's F1 of (images, classes) of booleans; NaN for a class without images.

    `weights` says how often each image counts.
    """
    both = weights @ (predicted & labels)
    either = weights @ predicted + weights @ labels
    found = np.full(labels.shape[1], np.nan)
    there = weights @ labels > 0
    found[there] = 2 * both[there] / either[there]
    return found


def choose_thresholds(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Give each class's probability from which on an image has the label: that of the best F1.

    Both arrays are (images, classes), of held-out images. A threshold is halfway between two
    neighboring logits, 0.5 for a class without images; of equals the one nearest to 0.5.
    """
    found = np.full(logits.shape[1], 0.5)
    for number, (scores, own) in enumerate(zip(logits.T.astype(np.float64), labels.T, strict=True)):
        if not (own > 0).any():
            continue
        order = np.argsort(-scores, kind="stable")
        ranked, hits = scores[order], np.cumsum(own[order] > 0)
        last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of equal scores
        score = 2 * hits[last] / (last + 1 + hits[-1])
        below = np.append(ranked[last[:-1] + 1], ranked[-1] - 2)
        middle = 1 / (1 + np.exp(-(ranked[last] + below) / 2))
        best = np.flatnonzero(score == score.max())
        found[number] = middle[best[np.abs(middle[best] - 0.5).argmin()]]
    return found
