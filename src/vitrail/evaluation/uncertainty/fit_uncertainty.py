"""Gather what held-out images say about a model: temperature, confidence, distances."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.uncertainty.temperature import fit_temperature, is_infinite
from vitrail.weights.uncertainty_record import Uncertainty, UncertaintyFacts

_FOLDS = 5
UNHELPFUL = "no temperature helps images that it was not fitted to"
CHANCE = "its answers are no better than chance"


def fit_uncertainty(
    logits: Tensor,
    labels: Tensor,
    *,
    data: str,
    means: Tensor | None = None,
    distances: Tensor | None = None,
) -> Uncertainty:
    """Fit a temperature to held-out images' logits (n, classes), and note how sure they were.

    The temperature is 1 where the fitted one helps no images that it was not fitted to, as of very
    few, by cross-entropy or by calibration error; and where it is infinite, since the logits say
    nothing about the labels.
    `means` are the training images' class means, `distances` (n) those of the held-out images.
    """
    logits = logits.double()
    confidence, predicted = logits.softmax(1).max(1)
    correct = predicted == labels
    temperature, scaled = fit_temperature(logits, labels), _cross_fitted(logits, labels)
    before, after = _ece(confidence, correct), _ece(scaled.softmax(1).amax(1), correct)
    lower = bool(F.cross_entropy(scaled, labels) < F.cross_entropy(logits, labels))
    why = "" if lower and after <= before else UNHELPFUL
    why = CHANCE if is_infinite(temperature) else why
    facts = UncertaintyFacts(
        temperature=1.0 if why else temperature,
        ece_before=before,
        ece_after=before if why else after,
        images=len(labels),
        data=data,
        why=why,
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
    found = measure_calibration(confidence.numpy(), correct.numpy())
    return found.ece.value
