"""Errors of predicted numbers, target by target, with their 95 % confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate, positive, positive_mean


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
    predicted: np.ndarray, true: np.ndarray, names: tuple[str, ...]
) -> tuple[TargetResult, ...]:
    """Score predictions (images, targets) against the true numbers."""
    predicted, true = predicted.astype(float), true.astype(float)
    unexplained, left_out = _unexplained(predicted, true)
    found = []
    for column, name in enumerate(names):
        errors = predicted[:, column] - true[:, column]
        squared = positive_mean(errors**2)
        r2 = _explained(unexplained[column], left_out[:, column])
        root = Estimate(*map(math.sqrt, squared))
        found.append(TargetResult(name, len(true), positive_mean(np.abs(errors)), root, r2))
    return tuple(found)


def mean_r2(predicted: np.ndarray, true: np.ndarray) -> Estimate:
    """Estimate the mean R2 over targets (images, targets)."""
    unexplained, left_out = _unexplained(predicted.astype(float), true.astype(float))
    return _explained(unexplained.mean(), left_out.mean(1))


def _unexplained(predicted: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give 1 - R2 of each target (targets), and without each image (images, targets).

    NaN where the true numbers are all the same.
    """
    count = len(true)
    errors, spread = (predicted - true) ** 2, (true - true.mean(0)) ** 2
    whole, total = errors.sum(0), spread.sum(0)
    if count < 2:
        return np.full(len(whole), math.nan), np.full(errors.shape, math.nan)
    rest = total - spread * count / (count - 1)
    same, only = (true == true[0]).all(0), rest <= 1e-12 * total
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = np.where(only, math.nan, np.maximum(whole - errors, 0.0) / rest)
        return np.where(same, math.nan, whole / total), left_out


def _explained(unexplained: float, left_out: np.ndarray) -> Estimate:
    """Turn 1 - R2 into R2, with an interval that is at most 1."""
    if math.isnan(unexplained):
        return Estimate(math.nan, math.nan, math.nan)
    found = positive(float(unexplained), left_out)
    return Estimate(1 - found.value, 1 - found.high, 1 - found.low)
