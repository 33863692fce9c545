"""Errors of predicted numbers, target by target, with their 95 % confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate, bootstrap


@dataclass(frozen=True)
class TargetResult:
    """How near the predictions of one target are."""

    name: str
    images: int
    mae: Estimate
    """Mean absolute error, in the target's own unit."""
    rmse: Estimate
    """Root of the mean squared error."""
    r2: Estimate
    """Fraction of the variance that is predicted; 0 for predicting the mean, which may be beaten or
    not. NaN where all images have the same number."""

    def row(self) -> dict[str, Any]:
        """Give the row of a table, by column."""
        found: dict[str, Any] = {"target": self.name, "images": self.images}
        for name in ("mae", "rmse", "r2"):
            estimate: Estimate = getattr(self, name)
            found |= {name: estimate.value, f"{name}_low": estimate.low}
            found |= {f"{name}_high": estimate.high}
        return found


def score_targets(
    predicted: np.ndarray, true: np.ndarray, names: tuple[str, ...], *, resamples: int = 1000
) -> tuple[TargetResult, ...]:
    """Score predictions (images, targets) against the true numbers, by resampling the images."""
    found = []
    for column, name in enumerate(names):
        own, target = predicted[:, column].astype(float), true[:, column].astype(float)

        def estimate(
            statistic: Any, own: np.ndarray = own, target: np.ndarray = target
        ) -> Estimate:
            return bootstrap(
                lambda weights: statistic(own, target, weights), len(target), resamples=resamples
            )

        found.append(
            TargetResult(
                name, len(target), estimate(absolute_error), estimate(root_error), estimate(r2)
            )
        )
    return tuple(found)


def absolute_error(predicted: np.ndarray, true: np.ndarray, weights: np.ndarray) -> float:
    """Compute the mean absolute error, each image as often as its weight says."""
    return float(weights @ np.abs(predicted - true) / weights.sum())


def root_error(predicted: np.ndarray, true: np.ndarray, weights: np.ndarray) -> float:
    """Compute the root of the mean squared error."""
    return math.sqrt(weights @ (predicted - true) ** 2 / weights.sum())


def r2(predicted: np.ndarray, true: np.ndarray, weights: np.ndarray) -> float:
    """Compute the coefficient of determination; NaN where the true numbers are all the same."""
    spread = float(weights @ (true - weights @ true / weights.sum()) ** 2)
    return 1 - float(weights @ (predicted - true) ** 2) / spread if spread > 0 else math.nan
