"""Metrics of predictions: confusion, average precision, F1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class Confusion(NamedTuple):
    """How often a class was predicted as another; only pairs that occurred."""

    label: int
    predicted: int
    """-1 for an output of the model that stands for no class of the data."""
    images: int


DRAWN = 2000
"""Classes up to which a whole confusion matrix is made; that of 21,843 would take 4 GB."""


def count_confusion(
    labels: np.ndarray, predicted: np.ndarray, classes: int
) -> tuple[Confusion, ...]:
    """Count predictions by class: the pairs that occurred, by label."""
    columns = classes + 1  # those of no class come last
    pairs = labels.astype(np.int64) * columns + np.where(predicted < 0, classes, predicted)
    found, counts = np.unique(pairs, return_counts=True)
    rows, places = np.divmod(found, columns)
    places[places == classes] = -1
    return tuple(map(Confusion, rows.tolist(), places.tolist(), counts.tolist()))


def confusion_matrix(cells: Sequence[Confusion], classes: int) -> np.ndarray:
    """Make a matrix (classes, classes); one more column if some predictions are of no class."""
    assert classes <= DRAWN, f"a matrix of {classes:,} classes"
    outside = any(cell.predicted < 0 for cell in cells)
    matrix = np.zeros((classes, classes + outside), np.int64)
    for cell in cells:
        matrix[cell.label, cell.predicted] = cell.images
    return matrix


def most_confused(cells: Sequence[Confusion]) -> list[Confusion]:
    """List the pairs of classes that were confused, the most frequent first."""
    wrong = (each for each in cells if each.label != each.predicted)
    return sorted(wrong, key=lambda each: -each.images)


def average_precision(
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    order: np.ndarray | None = None,
) -> np.ndarray:
    """Give each class's average precision: the mean precision at each of its images, by rank.

    Both arrays are (images, classes); images of equal score share a rank. NaN for a class without
    images. `weights` says how often each image counts, `order` is what `rank_images` gives.
    """
    count, classes = scores.shape
    weights = np.ones(count) if weights is None else weights
    order = rank_images(scores) if order is None else order
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


def rank_images(scores: np.ndarray) -> np.ndarray:
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


class MacroScores(NamedTuple):
    """Means over the classes that have images, each of which counts the same."""

    accuracy: float
    f1: float


def macro_scores(total: np.ndarray, correct: np.ndarray, predicted: np.ndarray) -> MacroScores:
    """Average over classes, from how many images each has, has correct, and is predicted for."""
    there = total > 0
    total, correct, predicted = total[there], correct[there], predicted[there]
    return MacroScores(
        float((correct / total).mean()), float((2 * correct / (total + predicted)).mean())
    )


class LabelMetrics(NamedTuple):
    """How well a model does where an image may have several labels, or none."""

    mean_average_precision: float
    """Over the classes that have images, like macro F1; NaN if none has any."""
    macro_f1: float
    micro_f1: float


def score_labels(logits: np.ndarray, labels: np.ndarray, predicted: np.ndarray) -> LabelMetrics:
    """Compute the metrics of (images, classes) of logits, labels and what is predicted."""
    once = np.ones(len(labels))
    return LabelMetrics(
        mean_of_known(average_precision(logits, labels)),
        mean_of_known(f1(predicted, labels, once)),
        micro_f1(predicted, labels, once),
    )


def micro_f1(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Give the F1 of all labels of all images together."""
    flat = weights.repeat(labels.shape[1])
    return float(f1(predicted.reshape(-1, 1), labels.reshape(-1, 1), flat)[0])


def mean_of_known(values: np.ndarray) -> float:
    """Average what is not NaN; NaN if all is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def predict_labels(logits: np.ndarray, thresholds: Sequence[float] | None = None) -> np.ndarray:
    """Tell which labels (images, classes) a sigmoid model predicts: from the threshold on, 0.5."""
    return sigmoid(logits) >= (0.5 if thresholds is None else np.array(thresholds))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Give probabilities, in float64."""
    return torch.from_numpy(logits).double().sigmoid().numpy()


def choose_thresholds(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """Give each class's probability from which on an image has the label: that of the best F1.

    Both arrays are (images, classes), of held-out images. To choose from are 0.5 and what is
    halfway between two probabilities of images; of equals the one nearest to 0.5, 0.5 for a class
    without images.
    """
    return tuple(
        _choose_threshold(scores, own > 0)
        for scores, own in zip(probabilities.T.astype(np.float64), labels.T, strict=True)
    )


def _choose_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    if not labels.any():
        return 0.5
    values, group = np.unique(scores, return_inverse=True)
    below = np.concatenate([[0.0], values[:-1]])
    # Halfway to the next value below, but above it, even if no number lies between the two.
    halfway = np.maximum((values + below) / 2, np.nextafter(below, 1.0))
    halfway[0] = values[0] / 2
    counts = np.bincount(group, minlength=len(values)), np.bincount(group, labels, len(values))
    # From each value on, and above all, which is where 0.5 may be.
    predicted, correct = (np.append(np.cumsum(each[::-1])[::-1], 0.0) for each in counts)
    f1_from = 2 * correct / (predicted + labels.sum())
    candidates = np.append(halfway, 0.5)
    reached = np.append(f1_from[:-1], f1_from[np.searchsorted(values, 0.5)])
    best = candidates[reached == reached.max()]
    return float(best[np.abs(best - 0.5).argmin()])
