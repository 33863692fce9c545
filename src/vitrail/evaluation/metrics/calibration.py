"""Calibration: whether a model is correct as often as it is confident."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate, wilson

BINS = 15  # "On Calibration of Modern Neural Networks" (arXiv 1706.04599), Table 1
_DRAWS, _FAR, _HALVINGS = 500, 64.0, 32


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
    """Expected calibration error: the mean difference over all images, without what chance adds."""
    binned: float
    """The formula as published, which few images make too large."""
    bins: tuple[Bin, ...]


def measure_calibration(
    confidence: np.ndarray, correct: np.ndarray, *, bins: int = BINS
) -> Calibration:
    """Compare confidence with accuracy, in bins of equal width."""
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
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
    full = counts > 0
    found, binned = _error(counts[full], total[full] / counts[full], hits[full] / counts[full])
    return Calibration(found, binned, rows)


def _error(
    counts: np.ndarray, confidence: np.ndarray, accuracy: np.ndarray
) -> tuple[Estimate, float]:
    """Estimate the true error: the one whose measured error is as often larger as smaller.

    The measured one is the mean size of gaps, and chance adds to sizes: a perfect model measures
    19 % on 20 images. All bins' gaps are moved by as many of their standard errors until the
    measured error is in the middle of simulated ones, and, for the ends of the interval, at their
    2.5 % and 97.5 % points. Whatever the bins, the error is at least the difference between mean
    confidence and accuracy, so the upper end is at least as far as that may be.
    """
    weights, gaps = counts / counts.sum(), confidence - accuracy
    measured = float(weights @ np.abs(gaps))
    # One image more that is right as often as it is sure, and one that is half right: an accuracy
    # of 0 or 1 in a bin of few images is not certain.
    smooth = (accuracy * counts + confidence + 0.5) / (counts + 2)
    errors = np.sqrt(smooth * (1 - smooth) / counts)
    noise = np.random.default_rng(0).standard_normal((_DRAWS, len(counts))) * errors
    noise = np.concatenate([noise, -noise])

    def moved(by: float) -> np.ndarray:
        return np.copysign(np.maximum(np.abs(gaps) + by * errors, 0.0), gaps)

    def solve(level: float) -> float:
        low, high = -_FAR, _FAR
        for _ in range(_HALVINGS):
            by = (low + high) / 2
            beyond = np.quantile(np.abs(moved(by) + noise) @ weights, level) < measured
            low, high = (by, high) if beyond else (low, by)
        return float(weights @ np.abs(moved((low + high) / 2)))

    sure, right = float(weights @ confidence), wilson(float(accuracy @ counts), counts.sum())
    most = max(solve(0.025), sure - right.low, right.high - sure)
    return Estimate(solve(0.5), solve(0.975), most).within(0.0, 1.0), measured
