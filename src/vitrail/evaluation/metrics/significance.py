"""Whether one model is significantly better than another on the same images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate, Z

_LEVEL, _HALVINGS = 0.05, 50


@dataclass(frozen=True)
class PairedTest:
    """Two models on the same images."""

    only_first: int
    """Images that only the first predicts correctly."""
    only_second: int
    difference: Estimate
    """Accuracy of the second minus that of the first, with Tango's interval of paired data; it
    excludes 0 exactly where `exact` is below 5 %."""
    exact: float
    """p-value of McNemar's exact test: the probability of so uneven a result if both are equal."""
    midp: float
    """p-value of its less conservative mid-p version."""


def paired_test(first: np.ndarray, second: np.ndarray) -> PairedTest:
    """Compare two models by which images each predicts correctly."""
    assert first.shape == second.shape
    lost, won = int((first & ~second).sum()), int((second & ~first).sum())
    exact, midp = mcnemar(lost, won)
    difference = paired_difference(lost, won, len(first))
    if exact >= _LEVEL:  # Tango's test is the less strict one: p decides
        low, high = min(difference.low, 0.0), max(difference.high, 0.0)
        difference = Estimate(difference.value, low, high)
    return PairedTest(lost, won, difference, exact, midp)


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


def paired_difference(lost: int, won: int, count: int) -> Estimate:
    """Estimate the difference of two shares of the same images (Tango, 1998).

    The interval has all differences that a score test does not reject; the rate of disagreement
    that it needs is the most likely one if that difference were true.
    """
    value = (won - lost) / count

    def rejected(difference: float) -> bool:
        linear = (2 * count - won + lost) * difference - lost - won
        constant = -lost * difference * (1 - difference)
        root = math.sqrt(max(linear**2 - 8 * count * constant, 0.0))
        only_first = (root - linear) / (4 * count)
        variance = max(count * (2 * only_first + difference * (1 - difference)), 0.0)
        return (won - lost - count * difference) ** 2 > Z**2 * variance

    def end(far: float) -> float:
        near = value
        if not rejected(far):
            return far
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            near, far = (near, middle) if rejected(middle) else (middle, far)
        return near

    return Estimate(value, end(-1.0), end(1.0))
