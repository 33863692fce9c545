"""Whether one model is better than another on the same images, or was only lucky."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.intervals import Estimate


@dataclass(frozen=True)
class Paired:
    """Two models on the same images."""

    only_first: int
    """Images that only the first was right on."""
    only_second: int
    difference: Estimate
    """Accuracy of the second less that of the first, with a paired bootstrap's interval."""
    exact: float
    """How likely so uneven a result is if both are equally good: McNemar's exact test."""
    midp: float
    """The same, less cautious: its mid-p version."""


def pair(first: np.ndarray, second: np.ndarray, *, resamples: int = 10_000) -> Paired:
    """Hold two models against each other by which images each was right on."""
    assert first.shape == second.shape
    lost, won = int((first & ~second).sum()), int((second & ~first).sum())
    exact, midp = mcnemar(lost, won)
    return Paired(lost, won, _difference(lost, won, len(first), resamples), exact, midp)


def mcnemar(lost: int, won: int) -> tuple[float, float]:
    """Test whether two counts of disagreement are a fair coin's: exact and mid-p, two-sided.

    Mid-p counts half of what is as uneven as the result (Fagerland et al., 2013:
    "The McNemar test for binary matched-pairs data").
    """
    count, least = lost + won, min(lost, won)
    if count == 0:
        return 1.0, 1.0
    chances = [_binomial(count, k) for k in range(least + 1)]
    below, here = math.fsum(chances[:-1]), chances[-1]
    if 2 * least == count:
        return 1.0, 1 - here / 2
    return min(1.0, 2 * (below + here)), min(1.0, 2 * below + here)


def _binomial(count: int, successes: int) -> float:
    """Give the chance of so many heads of a fair coin."""
    ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(ways - count * math.log(2))


def _difference(lost: int, won: int, count: int, resamples: int) -> Estimate:
    """Bootstrap the difference over images, each drawn with both models' results.

    A resample is decided by how many of either kind it has, which are multinomial.
    """
    shares = np.array([lost, won, count - lost - won]) / count
    drawn = np.random.default_rng(0).multinomial(count, shares, size=resamples)
    low, high = np.quantile((drawn[:, 1] - drawn[:, 0]) / count, (0.025, 0.975))
    return Estimate((won - lost) / count, float(low), float(high))
