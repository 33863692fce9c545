"""Intervals against closed forms and SciPy, and by simulation: they have the truth in them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.metrics.errors import mean_r2, score_targets
from vitrail.evaluation.metrics.intervals import (
    Estimate,
    clustered,
    mean_of_classes,
    over_folds,
    positive_mean,
    student_t,
    t_quantile,
    wilson,
)
from vitrail.evaluation.metrics.scores import (
    average_precision,
    estimate_labels,
    estimate_macro,
    macro_scores,
    score_labels,
)
from vitrail.evaluation.metrics.significance import mcnemar, paired_difference, paired_test

few = settings(max_examples=50)
Z = stats.norm.ppf(0.975)


@pytest.mark.parametrize("freedom", [1, 2, 7, 400, 401, 5_000, 10**7])
@pytest.mark.parametrize("probability", [0.9, 0.975, 0.9995])
def test_students_quantile_is_scipys(probability: float, freedom: int) -> None:
    found = t_quantile(probability, freedom)
    assert found == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)


def scores_of(labels: np.ndarray, predicted: np.ndarray, classes: int) -> list[np.ndarray]:
    rows = labels, labels[labels == predicted], predicted
    return [np.bincount(row, minlength=classes) for row in rows]


@few
@given(st.integers(1, 6), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_a_mean_over_classes_is_in_its_interval_and_no_surer_than_top_1(
    classes: int, count: int, accuracy: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    labels, guesses = generator.integers(classes, size=(2, count))
    predicted = np.where(generator.uniform(size=count) < accuracy, labels, guesses)
    counts = scores_of(labels, predicted, classes)
    found, plain = estimate_macro(*counts), macro_scores(*counts)
    for each, value in zip(found, plain, strict=True):
        assert each.value == pytest.approx(value, abs=1e-12)
        assert 0 <= each.low <= each.value <= each.high <= 1
        assert each.low < each.high
    perfect = estimate_macro(*scores_of(labels, labels, classes))
    top1 = wilson(count, count)
    for each in perfect:
        assert each.value == each.high == 1
        assert each.low <= top1.low + 1e-12


def test_macro_accuracy_of_equal_classes_is_at_least_as_wide_as_top_1() -> None:
    """Where one class is all there is, or all classes are alike, it is the same number."""
    found, _ = estimate_macro(np.array([20]), np.array([17]), np.array([20]))
    assert tuple(found) == pytest.approx(tuple(wilson(17, 20)))
    found = mean_of_classes(np.full(4, 0.9), np.full(4, 10.0))
    top1 = wilson(36, 40)
    assert found.value == pytest.approx(top1.value)
    assert found.low <= top1.low + 1e-12
    assert found.high >= top1.high - 1e-12


def test_classes_are_combined_by_squares() -> None:
    """MOVER by hand: two classes of 400 and 4 images, 99 % and 50 %."""
    large, small = wilson(396, 400), wilson(2, 4)
    found = mean_of_classes(np.array([0.99, 0.5]), np.array([400.0, 4.0]))
    down = math.hypot(0.99 - large.low, 0.5 - small.low) / 2
    up = math.hypot(large.high - 0.99, small.high - 0.5) / 2
    alike = wilson(0.745 * (worth := 4 / (1 / 400 + 1 / 4)), worth)
    assert found.low == pytest.approx(min(0.745 - down, alike.low))
    assert found.high == pytest.approx(max(0.745 + up, alike.high))


def test_labels_of_an_image_count_for_what_they_vary() -> None:
    every = np.full(50, 4.0)
    right = np.where(np.arange(50) < 40, 4.0, 0.0)  # whole images are right or wrong
    found = clustered(right, every)
    assert found.value == 0.8
    worth = 0.16 / (0.16 / 50 * 50 / 49)  # the variance of a mean of 50 numbers, by n - 1
    assert tuple(found) == pytest.approx(tuple(wilson(0.8 * worth, worth)))
    assert tuple(clustered(every, every)) == tuple(wilson(50, 50))
    alone = clustered(np.array([1.0] * 8 + [0.0] * 2), np.ones(10))
    assert alone.high - alone.low == pytest.approx(np.ptp(wilson(8, 10)[1:]), rel=0.1)
    assert math.isnan(clustered(np.zeros(2), np.zeros(2)).value)


def test_perfect_labels_are_not_certain() -> None:
    labels = np.random.default_rng(0).uniform(size=(20, 5)) < 0.4
    logits = np.where(labels, 3.0, -3.0)
    precision, macro, micro = estimate_labels(logits, labels, labels)
    assert precision.value == macro.value == micro.value == 1
    assert max(precision.low, macro.low) <= wilson(20, 20).low
    assert micro.low < 2 * (share := wilson(20, 20).low) / (1 + share) + 1e-12
    assert [each.value for each in estimate_labels(logits, labels, ~labels)] == pytest.approx(
        list(score_labels(logits, labels, ~labels))
    )
    nothing = np.zeros((3, 2), bool)
    assert all(math.isnan(each.value) for each in estimate_labels(logits[:3, :2], nothing, nothing))


def log_interval(statistic: Callable[[np.ndarray], float], rows: np.ndarray) -> tuple[float, float]:
    """Leave each row out, one by one, and take Student's t on the logarithm."""
    left = np.log([statistic(np.delete(rows, each, axis=0)) for each in range(len(rows))])
    count, value = len(rows), math.log(statistic(rows))
    error = math.sqrt((count - 1) / count * ((left - left.mean()) ** 2).sum())
    half = stats.t.ppf(0.975, count - 1) * error
    return math.exp(value - half), math.exp(value + half)


def test_errors_of_numbers_are_those_of_brute_force() -> None:
    generator = np.random.default_rng(2)
    true = generator.normal(5, 3, size=(12, 2))
    predicted = true + generator.normal(size=(12, 2)) * (0.5, 2)

    def unexplained(rows: np.ndarray) -> float:
        own, target = rows.T
        return float(((own - target) ** 2).sum() / ((target - target.mean()) ** 2).sum())

    def both(rows: np.ndarray) -> float:
        return (unexplained(rows[:, (0, 2)]) + unexplained(rows[:, (1, 3)])) / 2

    for column, found in enumerate(score_targets(predicted, true, ("x", "y"))):
        rows = np.stack([predicted[:, column], true[:, column]], 1)
        error = rows[:, 0] - rows[:, 1]
        low, high = log_interval(lambda e: float(np.abs(e).mean()), error)
        assert tuple(found.mae) == pytest.approx((np.abs(error).mean(), low, high))
        low, high = log_interval(lambda e: float((e**2).mean()), error)
        ends = math.sqrt(low), math.sqrt(high)
        assert tuple(found.rmse) == pytest.approx((math.sqrt((error**2).mean()), *ends))
        low, high = log_interval(unexplained, rows)
        assert tuple(found.r2) == pytest.approx((1 - unexplained(rows), 1 - high, 1 - low))
        assert found.r2.high < 1
    rows = np.concatenate([predicted, true], 1)
    low, high = log_interval(both, rows)
    assert tuple(mean_r2(predicted, true)) == pytest.approx((1 - both(rows), 1 - high, 1 - low))


def test_an_error_of_one_image_has_no_upper_end() -> None:
    assert positive_mean(np.array([0.7])) == (0.7, 0, math.inf)
    assert positive_mean(np.array([0.0, 0.0, 3.0])) == (1, 0, math.inf)
    assert math.isnan(mean_r2(np.ones((1, 1)), np.zeros((1, 1))).value)
    same, _ = score_targets(np.eye(3)[:, :2], np.array([[2, 1], [2, 2], [2, 3]]), ("a", "b"))
    assert all(map(math.isnan, same.r2))
    assert same.mae.value == pytest.approx(5 / 3)


def test_folds_are_pooled_and_never_beyond_all_images() -> None:
    sizes = np.array([10.0, 10, 9])
    shares = np.array([1, 0.9, 1])
    found = over_folds(shares, sizes)
    assert tuple(found) == pytest.approx(tuple(wilson(28, 29)))
    perfect = over_folds(np.ones(3), sizes, grouped=True)
    assert tuple(perfect) == tuple(wilson(29, 29))
    torn = over_folds(np.array([1.0, 0.1, 1.0]), sizes, grouped=True)
    assert (torn.low, torn.high) == (0, 1)  # groups differ so much that three folds say nothing
    assert over_folds(np.array([1.0, 0.1, 1.0]), sizes).low > 0.4


def tango(lost: int, won: int, count: int) -> tuple[float, float]:
    """Invert the score test: its rate of disagreement is found by maximizing the likelihood."""

    def score(difference: float) -> float:
        def unlikely(one: float) -> float:  # only the first is right
            other = one + difference
            chances = np.array([one, other, 1 - one - other]).clip(1e-300)
            return -float(np.array([lost, won, count - lost - won]) @ np.log(chances))

        least, most = max(0.0, -difference), (1 - difference) / 2
        bounds: dict[str, Any] = {"bounds": (least, most), "options": {"xatol": 1e-12}}
        best: Any = optimize.minimize_scalar(unlikely, method="bounded", **bounds)
        one = float(best.x)
        variance = count * (2 * one + difference * (1 - difference))
        return (won - lost - count * difference) / math.sqrt(max(variance, 1e-300))

    value = (won - lost) / count
    ends = (1e-9 - 1, value), (value, 1 - 1e-9)
    solve: Any = optimize.brentq
    low = solve(lambda d: score(d) - Z, *ends[0], xtol=1e-10)
    return low, solve(lambda d: score(d) + Z, *ends[1], xtol=1e-10)


@pytest.mark.parametrize(
    ("lost", "won", "count"), [(5, 8, 370), (1, 9, 30), (3, 3, 10), (2, 30, 100), (1, 2, 4)]
)
def test_tangos_interval_has_what_its_test_does_not_reject(lost: int, won: int, count: int) -> None:
    found = paired_difference(lost, won, count)
    assert found.value == (won - lost) / count
    assert found[1:] == pytest.approx(tango(lost, won, count), abs=2e-5)
    turned = paired_difference(won, lost, count)
    assert (-turned.high, -turned.low) == pytest.approx(found[1:], abs=1e-12)


def test_two_models_that_never_differ_may_differ_on_other_images() -> None:
    """Tango's interval of no disagreement is that of Wilson's for none: z² / (n + z²)."""
    same = paired_test(np.ones(20, bool), np.ones(20, bool))
    assert (same.exact, same.difference.value) == (1, 0)
    assert same.difference.high == pytest.approx(Z**2 / (20 + Z**2))
    assert same.difference.low == -same.difference.high


def test_the_interval_and_p_never_contradict_each_other() -> None:
    changed = 0
    for count in range(1, 41):
        for won in range(count + 1):
            lost = count - won
            first = np.repeat([True, False, True], [lost, won, 60 - count])
            second = np.repeat([False, True, True], [lost, won, 60 - count])
            found = paired_test(first, second)
            low, high = found.difference[1:]
            assert (found.exact < 0.05) == (low > 0 or high < 0), (lost, won)
            assert -1 <= low <= found.difference.value <= high <= 1
            assert found.exact == mcnemar(lost, won)[0]
            plain = paired_difference(lost, won, 60)
            changed += plain != found.difference
    assert changed > 20  # Tango's own test is less strict than the exact one: 5 against 0


def test_a_calibration_error_is_in_its_interval_and_not_chances() -> None:
    """A perfect model measures an error by chance, most of which is not counted as its own."""
    generator, found = np.random.default_rng(0), []
    for _ in range(60):
        confidence = generator.uniform(0.4, 1, size=20)
        found.append(measure_calibration(confidence, generator.uniform(size=20) < confidence))
        assert 0 <= found[-1].ece.low <= found[-1].ece.value <= found[-1].ece.high <= 1
    assert np.mean([each.binned for each in found]) > 0.18
    assert np.mean([each.ece.value for each in found]) < 0.08
    assert np.mean([each.ece.low == 0 for each in found]) > 0.9
    sure = measure_calibration(np.ones(20), np.ones(20, bool))
    assert (sure.binned, sure.ece.value) == (0, 0)
    assert sure.ece.high == pytest.approx(1 - wilson(20, 20).low)


def draw_confusions(
    generator: np.random.Generator, count: int, weights: np.ndarray, accuracies: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels by weight, and predictions: right as often as told, else any other class."""
    classes = len(weights)
    labels = generator.choice(classes, size=count, p=weights)
    other = (labels + generator.integers(1, classes, size=count)) % classes
    return labels, np.where(generator.uniform(size=count) < accuracies[labels], labels, other)


def true_f1(weights: np.ndarray, accuracies: np.ndarray) -> np.ndarray:
    """Give each class's F1 on all images that there are."""
    right, wrong = weights * accuracies, weights * (1 - accuracies)
    predicted = right + (wrong.sum() - wrong) / (len(weights) - 1)
    return 2 * right / (weights + predicted)


UNEVEN = (0.8, 0.15, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 20, 100])
@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.2,) * 5, (0.05,) * 20, UNEVEN])
def test_macro_scores_cover(count: int, weights: tuple[float, ...]) -> None:
    """The truth is in nine of ten intervals or more, at every accuracy; bootstrap's: 4 to 96 %."""
    generator, shares = np.random.default_rng(0), np.array(weights)
    cases = [np.full(len(shares), each) for each in (0.5, 0.8, 0.9, 0.95, 0.99)]
    cases += [np.array([0.99, 0.8, 0.5])] if weights == UNEVEN else []
    for accuracies in cases:
        covered, f1_each = np.zeros(2), true_f1(shares, accuracies)
        for _ in range(400):
            counts = scores_of(*draw_confusions(generator, count, shares, accuracies), len(shares))
            there = counts[0] > 0
            truths = accuracies[there].mean(), f1_each[there].mean()
            found = estimate_macro(*counts)
            covered += [e.low <= truth <= e.high for e, truth in zip(found, truths, strict=True)]
        assert (covered / 400 >= 0.88).all(), (accuracies, covered / 400)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 20, 100])
def test_paired_differences_cover(count: int) -> None:
    """Exactly: the probability of all results whose interval has the truth in it."""
    for won, lost in ((0.02, 0.02), (0.1, 0.0), (0.1, 0.02), (0.2, 0.1), (0.25, 0.25)):
        results = [(one, two) for one in range(count + 1) for two in range(count + 1 - one)]
        chances = stats.multinomial.pmf(
            [(one, two, count - one - two) for one, two in results],
            count,
            [won, lost, 1 - won - lost],
        )
        covered = 0.0
        for (one, two), chance in zip(results, chances, strict=True):
            if chance > 1e-9:
                found = paired_difference(two, one, count)
                covered += chance * (found.low - 1e-12 <= won - lost <= found.high + 1e-12)
        assert covered >= 0.92, (won, lost, covered)


@pytest.mark.slow
def test_folds_cover_and_students_do_not() -> None:
    generator, sizes = np.random.default_rng(0), np.full(5, 8.0)
    for accuracy in (0.5, 0.8, 0.95, 0.99):
        pooled = students = 0
        for _ in range(1000):
            shares = generator.binomial(8, accuracy, size=5) / 8
            found, other = over_folds(shares, sizes), student_t(shares)
            pooled += found.low <= accuracy <= found.high
            students += other.low <= accuracy <= other.high
        assert pooled / 1000 >= 0.92
    assert students / 1000 < 0.5  # at 0.99 most draws have no mistake, and no width


MODELS: dict[str, Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]] = {
    "perfect": lambda g, n: (c := g.uniform(0.4, 1, size=n), c),
    "overconfident": lambda g, n: (c := g.uniform(0.6, 1, size=n), c - 0.2),
    "certain": lambda g, n: (np.ones(n), np.full(n, 0.9)),
    "half right": lambda g, n: (np.ones(n), np.full(n, 0.5)),
    "mixed": lambda g, n: (c := g.uniform(0.3, 1, size=n), c + np.where(c > 0.65, -0.15, 0.1)),
}
"""Confidences, and how often each is right."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_calibration_errors_cover(name: str) -> None:
    generator, draw = np.random.default_rng(0), MODELS[name]
    truth = measure_calibration(*draw(generator, 400_000)).binned
    for count in (5, 20, 100, 1000):
        covered = 0
        for _ in range(100):
            confidence, chance = draw(generator, count)
            found = measure_calibration(confidence, generator.uniform(size=count) < chance).ece
            covered += found.low - 1e-9 <= truth <= found.high + 1e-9
        assert covered >= 90, (count, covered)


@pytest.mark.slow
def test_errors_of_numbers_cover() -> None:
    generator = np.random.default_rng(0)
    for count in (5, 20, 100):
        for noise in (1.0, 0.5, 0.3):
            covered = np.zeros(3)
            for _ in range(500):
                true = generator.normal(size=(count, 1))
                predicted = true + noise * generator.normal(size=(count, 1))
                (found,) = score_targets(predicted, true, ("x",))
                truths = noise * math.sqrt(2 / math.pi), noise, 1 - noise**2
                estimates = found.mae, found.rmse, found.r2
                covered += [e.low <= t <= e.high for e, t in zip(estimates, truths, strict=True)]
            assert (covered / 500 >= 0.89).all(), (count, noise, covered / 500)


@pytest.mark.slow
def test_average_precisions_cover() -> None:
    generator = np.random.default_rng(0)

    def draw(count: int, apart: float) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.uniform(size=(count, 3)) < 0.3
        return generator.normal(size=(count, 3)) + apart * labels, labels

    for apart in (1.0, 2.0, 4.0):
        truth = average_precision(*draw(200_000, apart)).mean()
        for count in (20, 100):
            found: list[Estimate] = []
            for _ in range(200):
                scores, labels = draw(count, apart)
                found.append(estimate_labels(scores, labels, scores > apart / 2)[0])
            assert np.mean([e.low <= truth <= e.high for e in found]) >= 0.9
