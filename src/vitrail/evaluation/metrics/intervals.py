"""Estimates with 95 % confidence intervals, in closed form."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

_NORMAL = NormalDist()
Z = _NORMAL.inv_cdf(0.975)
"""The normal distribution's 97.5 % point."""
_LARGE = 400  # degrees of freedom from which on an expansion in their inverse is exact to 1e-10


class Estimate(NamedTuple):
    """A number and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Estimate:
        """Cut the interval where the number itself cannot be."""
        return Estimate(self.value, max(self.low, least), min(self.high, most))

    def wider(self, other: Estimate) -> Estimate:
        """Keep the number, with the hull of both intervals."""
        return Estimate(self.value, min(self.low, other.low), max(self.high, other.high))


def wilson(successes: float, count: float) -> Estimate:
    """Estimate a probability from successes among `count` trials (Wilson, 1927)."""
    if count == 0:
        return Estimate(math.nan, 0.0, 1.0)
    share = successes / count
    low, high = wilson_ends(np.array(share), np.array(count))
    return Estimate(share, float(low), float(high))


def wilson_ends(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the ends of Wilson's interval for shares of counts above 0."""
    spread = Z * Z / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * np.sqrt(share * (1 - share) / count + spread / (4 * count))
    low = np.where(share <= 0, 0.0, np.maximum(middle - half, 0.0))
    return low, np.where(share >= 1, 1.0, np.minimum(middle + half, 1.0))


def mean_of_classes(
    shares: np.ndarray,
    counts: np.ndarray,
    *,
    ends: tuple[np.ndarray, np.ndarray] | None = None,
    shared: float = 1.0,
    most: float = math.inf,
) -> Estimate:
    """Estimate the mean over classes of shares in [0, 1], from how many images each class has.

    The hull of two intervals: the classes' own (`ends`, Wilson's unless given) combined by squares
    (MOVER: Zou and Donner, 2008), which knows that classes differ, and Wilson's for as many images
    as the mean is worth where they are alike, classes^2 / sum(1 / images) and at most `most`; it
    is that of all images together where classes are equally large. `shared` classes are moved at
    once by a mistake.
    """
    value, classes = float(shares.mean()), len(shares)
    lows, highs = wilson_ends(shares, counts) if ends is None else ends
    down, up = (
        math.sqrt(shared * float(((shares - each) ** 2).sum())) / classes for each in (lows, highs)
    )
    worth = min(classes**2 / float((1 / counts).sum()), most)
    alike = wilson(value * worth, worth)
    return Estimate(value, value - down, value + up).wider(alike).within(0.0, 1.0)


def clustered(successes: np.ndarray, trials: np.ndarray) -> Estimate:
    """Estimate a probability from trials that come in clusters, as the labels of an image do.

    Wilson's interval for as many independent trials as would vary as much; where nothing varies,
    for as many as there are clusters.
    """
    total, clusters = float(trials.sum()), int((trials > 0).sum())
    if not total:
        return Estimate(math.nan, 0.0, 1.0)
    share, worth = float(successes.sum()) / total, float(clusters)
    squares = float(((successes - share * trials) ** 2).sum())
    if squares > 0 and clusters > 1:
        variance = clusters / (clusters - 1) * squares / total**2
        worth = min(share * (1 - share) / variance, total)
    low, high = wilson_ends(np.array(share), np.array(worth))
    return Estimate(share, float(low), float(high))


def positive(value: float, left_out: np.ndarray) -> Estimate:
    """Estimate a number above 0, such as a mean loss, from what it is without each image in turn.

    Student's t on its logarithm, whose variance is the jackknife's: never below 0, and wider above
    than below, as skewed errors ask for. Without an upper end where one image is all there is.
    """
    if value == 0 and not left_out.any():
        return Estimate(value, 0.0, 0.0 if len(left_out) > 1 else math.inf)
    if len(left_out) < 2 or not (left_out > 0).all() or not np.isfinite(left_out).all():
        return Estimate(value, 0.0, math.inf)
    logs = np.log(left_out)
    spread = math.sqrt((len(logs) - 1) * float(logs.var()))
    half = t_quantile(0.975, len(logs) - 1) * spread
    return Estimate(value, value * math.exp(-half), value * math.exp(min(half, 700.0)))


def positive_mean(values: np.ndarray) -> Estimate:
    """Estimate the mean of numbers of at least 0."""
    count, total = len(values), float(values.sum())
    left_out = (total - values) / (count - 1) if count > 1 else np.full(count, math.nan)
    return positive(total / count, np.maximum(left_out, 0.0))


def student_t(values: np.ndarray, level: float = 0.95) -> Estimate:
    """Estimate a mean from a few values, such as one per seed, by Student's t."""
    count = len(values)
    if count < 2:
        return Estimate(float(values.mean()) if count else math.nan, -math.inf, math.inf)
    half = t_quantile((1 + level) / 2, count - 1) * values.std(ddof=1) / math.sqrt(count)
    value = float(values.mean())
    return Estimate(value, float(value - half), float(value + half))


def over_folds(shares: np.ndarray, counts: np.ndarray, *, grouped: bool = False) -> Estimate:
    """Estimate a share of all images from the shares and the number of images of each fold.

    Wilson's interval of all images together. Where folds keep groups of images whole, images of
    one group are alike and count for fewer; what that does to the folds' shares, Student's t tells.
    """
    pooled = wilson(float(shares @ counts), float(counts.sum()))
    spread = student_t(shares) if grouped else pooled
    middle = pooled.value - spread.value
    moved = Estimate(pooled.value, spread.low + middle, spread.high + middle)
    return pooled.wider(moved).within(0.0, 1.0)


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """Give the quantile, above one half, of Student's t with a whole number of degrees of freedom.

    The angle atan(t / sqrt(freedom)) is found by bisection; its probability is a finite sum
    (Abramowitz and Stegun, 26.7.3 and 26.7.4). Of many, 26.7.5 is an expansion around the normal's.
    """
    assert 0.5 < probability < 1
    assert freedom >= 1
    if freedom > _LARGE:
        z = _NORMAL.inv_cdf(probability)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / freedom + second / freedom**2 + third / freedom**3
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
