"""Whether one model is significantly better than another on the same images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate


@dataclass(frozen=True)
class PairedTest:
    """Two models on the same images."""

    only_first: int
    """Images that only the first predicts correctly."""
    only_second: int
    difference: Estimate
    """Accuracy of the second minus that of the first, with a paired bootstrap interval."""
    exact: float
    """p-value of McNemar's exact test: the probability of so uneven a result if both are equal."""
    midp: float
    """p-value of its less conservative mid-p version."""


def paired_test(first: np.ndarray, second: np.ndarray, *, resamples: int = 10_000) -> PairedTest:
    """Compare two models by which images each predicts correctly."""
    assert first.shape == second.shape
    lost, won = int((first & ~second).sum()), int((second & ~first).sum())
    exact, midp = mcnemar(lost, won)
    return PairedTest(lost, won, _difference(lost, won, len(first), resamples), exact, midp)


def mcnemar(lost: int, won: int) -> tuple[float, float]:
    """Test whether two counts of disagreements could be equal: exact and mid-p, two-sided.

    Mid-p counts the result itself half (Fagerland et al., 2013:
    "The McNemar test for binary matched-pairs data").
    """
    count, least = lost + won, min(lost, won)
    if count == 0:
        return 1.0, 1.0
    probabilities = [_binomial(count, k) for k in range(least + 1)]
    below, here = math.fsum(probabilities[:-1]), probabilities[-1]
    if 2 * least == count:
        return 1.0, 1 - here / 2
    return min(1.0, 2 * (below + here)), min(1.0, 2 * below + here)


def _binomial(count: int, successes: int) -> float:
    """Give the probability of this number of heads among tosses of a fair coin."""
    ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(ways - count * math.log(2))


def _difference(lost: int, won: int, count: int, resamples: int) -> Estimate:
    """Bootstrap the difference over images, each sampled with both models' results.

    A resample is determined by its counts of either kind, which are multinomial.
    """
    shares = np.array([lost, won, count - lost - won]) / count
    sampled = np.random.default_rng(0).multinomial(count, shares, size=resamples)
    low, high = np.quantile((sampled[:, 1] - sampled[:, 0]) / count, (0.025, 0.975))
    return Estimate((won - lost) / count, float(low), float(high))
