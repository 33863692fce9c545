"""How sure a measured number is: 95 % intervals, in closed form or by bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_Z = 1.959963984540054  # the normal distribution's 97.5 % point


class Estimate(NamedTuple):
    """A number and the interval that it lies in, 95 times of 100."""

    value: float
    low: float
    high: float


def wilson(right: float, count: int) -> Estimate:
    """Estimate a probability from so many successes of so many trials (Wilson, 1927)."""
    if count == 0:
        return Estimate(math.nan, 0.0, 1.0)
    share, spread = right / count, _Z * _Z / count
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    low = 0.0 if right == 0 else max(0.0, middle - half)
    high = 1.0 if right == count else min(1.0, middle + half)
    return Estimate(share, low, high)


def bootstrap(
    statistic: Callable[[np.ndarray], float], count: int, *, resamples: int = 1000, seed: int = 0
) -> Estimate:
    """Estimate a statistic of so many images by drawing them again (percentile bootstrap).

    It is a function of how often each image counts, which is once in what was measured.
    """
    generator = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for number in range(resamples):
        chosen = generator.integers(count, size=count)
        drawn[number] = statistic(np.bincount(chosen, minlength=count).astype(np.float64))
    drawn = drawn[np.isfinite(drawn)]
    value = statistic(np.ones(count))
    if not len(drawn):
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def mean(values: np.ndarray, *, resamples: int = 1000) -> Estimate:
    """Estimate a mean."""
    return bootstrap(lambda weights: float(weights @ values / len(values)), len(values),
                     resamples=resamples)  # fmt: skip
