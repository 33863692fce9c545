"""Calibration: whether a model is correct as often as it is confident."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate, bootstrap

BINS = 15  # "On Calibration of Modern Neural Networks" (arXiv 1706.04599), Table 1


@dataclass(frozen=True)
class Bin:
    """The images whose confidence is in (low, high]."""

    low: float
    high: float
    images: int
    confidence: float | None
    """Their mean; None without images."""
    accuracy: float | None
    """The fraction of them that is predicted correctly."""


@dataclass(frozen=True)
class Calibration:
    """How far confidence and accuracy differ."""

    ece: Estimate
    """Expected calibration error: the mean difference over all images."""
    bins: tuple[Bin, ...]


def measure_calibration(
    confidence: np.ndarray, correct: np.ndarray, *, bins: int = BINS, resamples: int = 1000
) -> Calibration:
    """Compare confidence with accuracy, in bins of equal width."""
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    excess = confidence - correct

    def error(weights: np.ndarray) -> float:
        sums = np.bincount(bin_of, weights=weights * excess, minlength=bins)
        return float(np.abs(sums).sum() / weights.sum())

    counts = np.bincount(bin_of, minlength=bins)
    total = np.bincount(bin_of, weights=confidence, minlength=bins)
    hits = np.bincount(bin_of, weights=correct, minlength=bins)
    rows = tuple(
        Bin(
            number / bins,
            (number + 1) / bins,
            int(count),
            float(total[number] / count) if count else None,
            float(hits[number] / count) if count else None,
        )
        for number, count in enumerate(counts)
    )
    return Calibration(bootstrap(error, len(confidence), resamples=resamples), rows)
