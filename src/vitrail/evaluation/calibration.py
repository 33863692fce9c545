"""Whether a model is as often right as it is sure: expected calibration error and its bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.intervals import Estimate, bootstrap

BINS = 15  # "On Calibration of Modern Neural Networks" (arXiv 1706.04599), Table 1


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies between two numbers, the upper one with them."""

    low: float
    high: float
    images: int
    confidence: float | None
    """Their mean confidence; none where there is no image."""
    accuracy: float | None
    """The part of them that was right."""


@dataclass(frozen=True)
class Calibration:
    """How far confidence and accuracy are apart."""

    ece: Estimate
    """The mean distance over all images (expected calibration error)."""
    bins: tuple[Bin, ...]


def calibrate(
    confidence: np.ndarray, right: np.ndarray, *, bins: int = BINS, resamples: int = 1000
) -> Calibration:
    """Sort images into bins of equal width by confidence, and hold it against what was right."""
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    excess = confidence - right

    def error(weights: np.ndarray) -> float:
        sums = np.bincount(place, weights=weights * excess, minlength=bins)
        return float(np.abs(sums).sum() / weights.sum())

    counts = np.bincount(place, minlength=bins)
    sure = np.bincount(place, weights=confidence, minlength=bins)
    hits = np.bincount(place, weights=right, minlength=bins)
    rows = tuple(
        Bin(
            number / bins,
            (number + 1) / bins,
            int(count),
            float(sure[number] / count) if count else None,
            float(hits[number] / count) if count else None,
        )
        for number, count in enumerate(counts)
    )
    return Calibration(bootstrap(error, len(confidence), resamples=resamples), rows)
