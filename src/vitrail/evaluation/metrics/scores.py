"""Metrics of predictions: confusion, average precision, F1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vitrail.evaluation.metrics.intervals import (
    Estimate,
    clustered,
    mean_of_classes,
    wilson_ends,
)


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


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Give each class's average precision: the mean precision at each of its images, by rank.

    Both arrays are (images, classes); images of equal score share a rank. NaN for a class without
    images.
    """
    count, classes = scores.shape
    found = np.full(classes, np.nan)
    for number, places in enumerate(np.argsort(-scores, axis=0, kind="stable").T):
        hits = np.cumsum(labels[places, number] > 0)
        if hits[-1] == 0:
            continue
        last = np.append(np.flatnonzero(np.diff(scores[places, number])), count - 1)  # of equals
        hits = hits[last]
        gained = np.diff(hits, prepend=0)
        there = gained > 0
        found[number] = (gained[there] * hits[there] / (last[there] + 1)).sum() / hits[-1]
    return found


def f1(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Give each class's F1 of (images, classes) of booleans; NaN for a class without images."""
    both, total = (predicted & labels).sum(0), labels.sum(0)
    found = np.full(labels.shape[1], np.nan)
    there = total > 0
    found[there] = 2 * both[there] / (predicted.sum(0) + total)[there]
    return found


def estimate_macro(
    total: np.ndarray, correct: np.ndarray, predicted: np.ndarray
) -> tuple[Estimate, Estimate]:
    """Estimate macro accuracy and macro F1, from counts as those of `macro_scores`."""
    there = total > 0
    total, correct, predicted = total[there], correct[there], predicted[there]
    # A mistake is one of two classes: of that which the image has and of that which it has not.
    return mean_of_classes(correct / total, total), _mean_f1(total, correct, predicted, shared=2.0)


def _mean_f1(
    total: np.ndarray, correct: np.ndarray, predicted: np.ndarray, **options: float
) -> Estimate:
    """Estimate a mean F1; of images with the label or the prediction, `correct` have both.

    That share is a probability, and F1 rises with it: 2 share / (1 + share).
    """
    either = total + predicted - correct
    share = correct / either
    low, high = wilson_ends(share, either)
    ends = 2 * low / (1 + low), 2 * high / (1 + high)
    return mean_of_classes(2 * share / (1 + share), total, ends=ends, **options)


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
    return LabelMetrics(
        mean_of_known(average_precision(logits, labels)),
        mean_of_known(f1(predicted, labels)),
        micro_f1(predicted, labels),
    )


def micro_f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Give the F1 of all labels of all images together."""
    return float(f1(predicted.reshape(-1, 1), labels.reshape(-1, 1))[0])


def mean_of_known(values: np.ndarray) -> float:
    """Average what is not NaN; NaN if all is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def estimate_labels(
    logits: np.ndarray, labels: np.ndarray, predicted: np.ndarray
) -> tuple[Estimate, Estimate, Estimate]:
    """Estimate mean average precision, macro and micro F1, as `score_labels` computes them.

    An average precision is taken for a share of the images that have the label (Boyd et al.,
    2013: "Area under the precision-recall curve"); classes count for no more images than there are.
    """
    there = labels.any(0)
    total, count = labels.sum(0)[there].astype(float), len(labels)
    if not len(total):
        unknown = Estimate(math.nan, 0.0, 1.0)
        return unknown, unknown, unknown
    precision = average_precision(logits, labels)[there]
    both, chosen = (predicted & labels), predicted.sum(0)[there]
    each = clustered(both.sum(1).astype(float), (predicted | labels).sum(1).astype(float))
    return (
        mean_of_classes(precision, total, most=count),
        _mean_f1(total, both.sum(0)[there], chosen, shared=2.0, most=count),
        Estimate(*(2 * share / (1 + share) for share in each)),
    )


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
