"""The guarantee of `--unsure`, by simulation, and its binomial test against scipy's."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from vitrail.config import InputError
from vitrail.evaluation.uncertainty.selective import (
    RISK,
    binomial_cdf,
    find_threshold,
    parse_rate,
)


@pytest.mark.parametrize(("most", "trials", "p"), [(0, 90, 0.05), (7, 100, 0.1), (370, 370, 0.2)])
def test_the_binomial_distribution_is_scipys(most: int, trials: int, p: float) -> None:
    assert binomial_cdf(most, trials, p) == pytest.approx(binom.cdf(most, trials, p), rel=1e-10)


def sample(rng: np.random.Generator, images: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Sample answers: of confidence c, right with probability c ** power."""
    confidence = rng.uniform(0.5, 1, images)
    return confidence, (rng.random(images) < confidence**power).astype(np.uint8)


def true_rate(threshold: float, power: float) -> float:
    """Compute the error rate of all answers above a threshold, by integration."""
    grid = np.linspace(max(threshold, 0.5), 1, 20_001)
    return float(1 - np.mean(grid**power))


@pytest.mark.parametrize("power", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("images", [150, 600])
def test_answers_are_wrong_more_often_than_stated_at_most_as_often_as_the_risk(
    images: int, power: float
) -> None:
    rng, rate, runs = np.random.default_rng(0), 0.05, 600
    found = [find_threshold(*sample(rng, images, power), rate) for _ in range(runs)]
    broken = sum(math.isfinite(t) and true_rate(t, power) > rate for t in found)
    broken += sum(t == -math.inf and true_rate(0.5, power) > rate for t in found)
    # Three standard errors above the promise would be another promise.
    assert broken / runs <= RISK + 3 * math.sqrt(RISK * (1 - RISK) / runs)


def test_it_answers_what_it_can() -> None:
    """Without the guarantee's slack the best rate would answer about half of the images."""
    rng = np.random.default_rng(1)
    confidence, correct = sample(rng, 20_000, 0.2)
    threshold = find_threshold(confidence, correct, 0.05)
    assert true_rate(threshold, 0.2) <= 0.05
    assert (confidence > threshold).mean() >= 0.8
    assert find_threshold(confidence, np.ones_like(correct), 0.05) == -math.inf
    assert find_threshold(confidence, np.zeros_like(correct), 0.05) == math.inf


def test_a_tie_is_answered_wholly_or_not_at_all() -> None:
    confidence = np.array([0.9] * 100 + [0.6] * 100)
    correct = np.array([1] * 100 + [0] * 100)
    threshold = find_threshold(confidence, correct, 0.05)
    assert threshold == 0.6


def test_too_few_images_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(InputError, match=r"needs 90 held-out images or more.* on 50"):
        find_threshold(np.ones(50), np.ones(50), 0.05)
    assert find_threshold(np.linspace(0, 1, 90), np.ones(90), 0.05) == -math.inf


def test_rates_are_read() -> None:
    assert parse_rate("5%") == parse_rate("5 %") == parse_rate(0.05) == pytest.approx(0.05)
    for wrong in ("5", "five", "0", "100%", "nan", ""):
        with pytest.raises(InputError, match=r"expected an error rate such as 5% or 0\.05"):
            parse_rate(wrong)
