"""Probable label errors: confident learning (arXiv 1911.00068) on cross-validated probes.

Each image is judged by logistic regressions of frozen features that did not see it. A class's
threshold is the mean probability of that class over the images that bear its label. An image is
counted for the most likely of the classes whose thresholds it reaches. So many as are counted for
another class than their label are probably wrong: those whose label has the least probability. (To
take the counted images themselves finds fewer of the errors, and more that are none.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.split import assign_folds
from vitrail.evaluation.features.mapped_rows import StandardizedRows, split_rows, take_rows
from vitrail.evaluation.metrics.scores import Confusion, count_confusion
from vitrail.evaluation.probes.linear_fits import fit_lbfgs
from vitrail.evaluation.probes.probe_model import LinearHead, unstandardize

FOLDS = 5
_DECAY = 0.1  # which separates planted errors best; weaker ones learn the wrong labels


@dataclass(frozen=True, kw_only=True)
class LabelErrors:
    """Images whose labels are probably wrong, the most probable first."""

    rows: np.ndarray
    """(errors) the images' positions."""
    suggested: np.ndarray
    """(errors) the class that each probably is of."""
    chance: np.ndarray
    """(errors) the probability of that class."""
    own: np.ndarray
    """(errors) the probability of the label."""
    sure: np.ndarray
    """(errors) whether the suggested class reaches its threshold, or is only the most likely."""
    examples: np.ndarray
    """(classes) the image that most plainly shows each class; -1 for a class without any."""
    joint: tuple[Confusion, ...]
    """Images counted by their label and probable class."""


ProbabilityBlocks = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Gives images' positions (n) and probabilities (n, classes), block by block, as often as asked."""


def cross_validate_probabilities(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    groups: np.ndarray | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> ProbabilityBlocks:
    """Fit the probes, and give the probabilities of images by those that did not see them.

    Images of one group, such as copies of each other, are left out together. Probabilities are
    computed when they are read: those of a million images and a thousand classes are 10 GB.
    """
    values, y = torch.from_numpy(features), torch.from_numpy(labels)
    fold_of = assign_folds(labels, classes, folds, seed=seed, groups=groups)
    heads: list[tuple[Tensor, LinearHead]] = []
    for fold in range(folds):
        rest, held = (torch.from_numpy(np.flatnonzero(each)) for each in
                      (fold_of != fold, fold_of == fold))  # fmt: skip
        if len(held) and len(rest):
            x = StandardizedRows(take_rows(values, rest))
            fitted = fit_lbfgs(x, y[rest], classes, [_DECAY])
            head = unstandardize(fitted.weight[0], fitted.bias[0], x.mean, x.std)
            heads.append((held, head))
        report(fold + 1)

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for held, head in heads:
            for block in split_rows(len(held), values.shape[1] + classes):
                rows = held[block]
                yield rows.numpy(), head.logits(values[rows]).softmax(1).numpy()

    return blocks


def find_label_errors(
    probabilities: ProbabilityBlocks, labels: np.ndarray, classes: int
) -> LabelErrors:
    """Find the images whose labels are probably wrong: how many by the confident joint."""
    own, chance = np.zeros(len(labels)), np.zeros(len(labels))
    suggested, best = np.zeros(len(labels), np.int64), np.full(len(labels), -1)
    for rows, each in probabilities():
        places = np.arange(len(rows)), labels[rows]
        own[rows] = each[places]
        each[places] = -1
        suggested[rows], chance[rows] = each.argmax(1), each.max(1)
    counts = np.bincount(labels, minlength=classes)
    thresholds = np.bincount(labels, own, classes) / np.maximum(counts, 1)
    thresholds[counts == 0] = np.inf  # nobody knows how sure it should be
    for rows, each in probabilities():
        reached = np.where(each >= thresholds, each, -1.0)
        best[rows] = np.where(reached.max(1) >= 0, reached.argmax(1), -1)
    counted = best >= 0
    joint = count_confusion(labels[counted], best[counted], classes)
    errors = sum(cell.images for cell in joint if cell.label != cell.predicted)
    rows = np.argsort(own, kind="stable")[:errors]
    sure = chance[rows] >= thresholds[suggested[rows]]
    plain = np.where(np.isin(np.arange(len(labels)), rows), -1.0, own)
    ordered = np.lexsort((plain, labels))
    ends = np.searchsorted(labels[ordered], np.arange(classes), "right") - 1
    examples = np.where(counts > 0, ordered[ends], -1)
    return LabelErrors(
        rows=rows,
        suggested=suggested[rows],
        chance=chance[rows],
        own=own[rows],
        sure=sure,
        examples=examples,
        joint=joint,
    )
