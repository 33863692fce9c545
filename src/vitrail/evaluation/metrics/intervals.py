"""Estimates with 95 % confidence intervals, in closed form or by bootstrap."""

from __future__ import annotations

import functools
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
    statistic: Callable[[np.ndarray], float], count: int, *, resamples: int = 1000
) -> Estimate:
    """Estimate a statistic of `count` images by resampling them (percentile bootstrap).

    `statistic` is a function of how often each image counts: once each in the estimate itself.
    """
    generator = np.random.default_rng(0)
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


def student_t(values: np.ndarray, level: float = 0.95) -> Estimate:
    """Estimate a mean from a few values, such as one per seed, by Student's t."""
    count = len(values)
    if count < 2:
        return Estimate(float(values.mean()) if count else math.nan, -math.inf, math.inf)
    half = t_quantile((1 + level) / 2, count - 1) * values.std(ddof=1) / math.sqrt(count)
    value = float(values.mean())
    return Estimate(value, float(value - half), float(value + half))


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """Give the quantile, above one half, of Student's t with a whole number of degrees of freedom.

    The angle atan(t / sqrt(freedom)) is found by bisection; its probability is a finite sum
    (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    assert 0.5 < probability < 1
    assert freedom >= 1
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        angle = (low + high) / 2
        term = math.cos(angle) if freedom % 2 else 1.0
        series = 0.0
        for power in range(1 + freedom % 2, freedom, 2):
            series += term
            term *= power / (power + 1) * math.cos(angle) ** 2
        inside = math.sin(angle) * series
        if freedom % 2:
            inside = 2 / math.pi * (angle + inside)
        low, high = (angle, high) if (1 + inside) / 2 < probability else (low, angle)
    return math.sqrt(freedom) * math.tan(low)
