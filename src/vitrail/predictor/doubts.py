"""What a predictor doubts: answers that it withholds, images unlike the training images."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from vitrail.config import InputError
from vitrail.evaluation.uncertainty.novelty import feature_distance, ood_score
from vitrail.evaluation.uncertainty.selective import find_threshold
from vitrail.weights.loaded import LoadedModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubts:
    """When an answer is withheld, and how far images are from those that the model knows."""

    threshold: float | None
    """Confidence (without temperature) above which an answer is given; None: always."""
    means: Tensor | None
    """(classes, width) of the training images' features; None where they are unknown."""
    held_out: Tensor | None
    """(n) distances of held-out images."""

    def unsure(self, logits: Tensor) -> bool | None:
        """Tell whether an image with these logits (classes) gets no answer; None if not asked."""
        if self.threshold is None:
            return None
        return not float(logits.double().softmax(-1).max()) > self.threshold

    def distance(self, features: Tensor) -> Tensor:
        """Compute the distance (n) of features (n, width) from the training images."""
        assert self.means is not None
        return feature_distance(features, self.means.to(features))

    def ood(self, distance: Tensor) -> float:
        """Score a distance (1) by those of the held-out images."""
        assert self.held_out is not None
        return float(ood_score(distance, self.held_out))


def doubts_of(loaded: LoadedModel, name: str, rate: float | None) -> Doubts:
    """Find when a model's answers are withheld, so that at most `rate` of the others is wrong."""
    found, threshold = loaded.uncertainty, None
    if rate is not None:
        if loaded.activation != "softmax":
            what = "numbers" if loaded.activation == "none" else "several labels per image"
            raise InputError(f"--unsure: {name} predicts {what}, not one class")
        if found is None:
            raise InputError(
                f"--unsure: {name} was not calibrated on held-out images; first run: vitrail "
                f"calibrate {name} DATA, with --out FOLDER for weights of another project"
            )
        threshold = find_threshold(found.confidence.numpy(), found.correct.numpy(), rate)
    known = found is not None and len(found.means) > 0 and len(found.distances) > 0
    return Doubts(
        threshold=threshold,
        means=found.means if known and found else None,
        held_out=found.distances if known and found else None,
    )


def answers_nothing(doubts: Doubts) -> bool:
    """Tell whether no image gets an answer at the rate that was asked for."""
    return doubts.threshold == math.inf
