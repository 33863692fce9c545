"""Gather what held-out images say about a model: temperature, confidence, distances."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.uncertainty.temperature import fit_temperature
from vitrail.weights.uncertainty_record import Uncertainty, UncertaintyFacts

_FOLDS = 5


def fit_uncertainty(
    logits: Tensor,
    labels: Tensor,
    *,
    data: str,
    means: Tensor | None = None,
    distances: Tensor | None = None,
) -> Uncertainty:
    """Fit a temperature to held-out images' logits (n, classes), and note how sure they were.

    A temperature that does not help images it was not fitted to, as of very few, is 1 instead.
    `means` are the training images' class means, `distances` (n) those of the held-out images.
    """
    logits = logits.double()
    confidence, predicted = logits.softmax(1).max(1)
    correct = predicted == labels
    scaled = _cross_fitted(logits, labels)
    helps = bool(F.cross_entropy(scaled, labels) < F.cross_entropy(logits, labels))
    facts = UncertaintyFacts(
        temperature=fit_temperature(logits, labels) if helps else 1.0,
        ece_before=_ece(confidence, correct),
        ece_after=_ece((scaled if helps else logits).softmax(1).amax(1), correct),
        images=len(labels),
        data=data,
    )
    nothing = torch.empty(0)
    return Uncertainty(
        facts=facts,
        confidence=confidence,
        correct=correct.to(torch.uint8),
        means=nothing.view(0, 0) if means is None else means.float(),
        distances=nothing if distances is None else distances.float(),
    )


def _cross_fitted(logits: Tensor, labels: Tensor) -> Tensor:
    """Scale logits by temperatures that did not see their images."""
    found = torch.empty_like(logits)
    fold_of = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)) % _FOLDS)
    for fold in range(_FOLDS):
        held = fold_of == fold
        rest = ~held if bool((~held).any()) else held
        temperature = fit_temperature(logits[rest], labels[rest])
        found[held] = logits[held] / temperature
    return found


def _ece(confidence: Tensor, correct: Tensor) -> float:
    found = measure_calibration(confidence.numpy(), correct.numpy(), resamples=1)
    return found.ece.value
