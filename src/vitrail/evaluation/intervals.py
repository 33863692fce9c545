"""Estimates with 95 % confidence intervals, in closed form or by bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_Z = 1.959963984540054  # the normal distribution's 97.5 % point


class Estimate(NamedTuple):
    """A number and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def wilson(successes: float, count: int) -> Estimate:
    """Estimate a probability from successes among `count` trials (Wilson, 1927)."""
    if count == 0:
        return Estimate(math.nan, 0.0, 1.0)
    share, spread = successes / count, _Z * _Z / count
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == count else min(1.0, middle + half)
    return Estimate(share, low, high)


def bootstrap(
    statistic: Callable[[np.ndarray], float], count: int, *, resamples: int = 1000, seed: int = 0
) -> Estimate:
    """Estimate a statistic of `count` images by resampling them (percentile bootstrap).

    `statistic` is a function of how often each image counts: once each in the estimate itself.
    """
    generator = np.random.default_rng(seed)
    sampled = np.empty(resamples)
    for number in range(resamples):
        chosen = generator.integers(count, size=count)
        sampled[number] = statistic(np.bincount(chosen, minlength=count).astype(np.float64))
    sampled = sampled[np.isfinite(sampled)]
    value = statistic(np.ones(count))
    if not len(sampled):
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(sampled, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def mean(values: np.ndarray, *, resamples: int = 1000) -> Estimate:
    """Estimate a mean."""
    return bootstrap(lambda weights: float(weights @ values / len(values)), len(values),
                     resamples=resamples)  # fmt: skip
