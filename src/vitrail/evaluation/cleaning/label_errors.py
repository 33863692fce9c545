"""Probable label errors: confident learning (arXiv 1911.00068) on cross-validated probes.

Each image is judged by logistic regressions of frozen features that did not see it. A class's
threshold is the mean probability of that class over the images that bear its label. An image is
counted for the most likely of the classes whose thresholds it reaches. So many as are counted for
another class than their label are probably wrong: those whose label has the least probability. (To
take the counted images themselves finds fewer of the errors, and more that are none.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vitrail.data.split import assign_folds
from vitrail.evaluation.probes.linear_probe import fit_lbfgs

FOLDS = 5
_DECAY = 0.1  # which separates planted errors best; weaker ones learn the wrong labels


@dataclass(frozen=True)
class LabelErrors:
    """Images whose labels are probably wrong, the most probable first."""

    rows: np.ndarray
    """(errors) the images' positions."""
    suggested: np.ndarray
    """(errors) the class that each probably is of."""
    joint: np.ndarray
    """(classes, classes) images counted by their label (row) and probable class (column)."""


def cross_validate_probabilities(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    groups: np.ndarray | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Compute the probabilities (n, classes) of images by probes that did not see them.

    Images of one group, such as copies of each other, are left out together.
    """
    x, y = torch.from_numpy(features).double(), torch.from_numpy(labels)
    fold_of = assign_folds(labels, classes, folds, seed=seed, groups=groups)
    found = torch.zeros(len(y), classes, dtype=torch.float64)
    for fold in range(folds):
        rest, held = (torch.from_numpy(np.flatnonzero(each)) for each in
                      (fold_of != fold, fold_of == fold))  # fmt: skip
        if len(held) and len(rest):
            std, mean = torch.std_mean(x[rest], 0, correction=0)
            std = std.masked_fill(std == 0, 1.0)
            heads = fit_lbfgs((x[rest] - mean) / std, y[rest], classes, [_DECAY])
            found[held] = ((x[held] - mean) / std @ heads.weight[0] + heads.bias[0]).softmax(1)
        report(fold + 1)
    return found.numpy()


def find_label_errors(probabilities: np.ndarray, labels: np.ndarray) -> LabelErrors:
    """Find the images whose labels are probably wrong: how many by the confident joint."""
    images, classes = probabilities.shape
    counts = np.bincount(labels, minlength=classes)
    own = probabilities[np.arange(images), labels]
    thresholds = np.bincount(labels, own, classes) / np.maximum(counts, 1)
    thresholds[counts == 0] = np.inf  # nobody knows how sure it should be
    reached = np.where(probabilities >= thresholds, probabilities, -1.0)
    best = reached.argmax(1)
    counted = reached.max(1) >= 0
    joint = np.zeros((classes, classes), np.int64)
    np.add.at(joint, (labels[counted], best[counted]), 1)
    errors = int(joint.sum() - np.trace(joint))
    rows = np.argsort(own, kind="stable")[:errors]
    others = probabilities[rows].copy()
    others[np.arange(errors), labels[rows]] = -1
    return LabelErrors(rows, others.argmax(1), joint)
