"""Numbers from answers against scikit-learn, SciPy and closed forms."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, f1_score
from sklearn.metrics import confusion_matrix as peer_confusion

from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.metrics.intervals import wilson
from vitrail.evaluation.metrics.scores import (
    average_precision,
    choose_thresholds,
    confusion_matrix,
    count_confusion,
    f1,
    predict_labels,
    score_labels,
)
from vitrail.evaluation.metrics.significance import mcnemar

few = settings(max_examples=50)
counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@few
@given(counts)
def test_wilson_is_scipys(case: tuple[int, int]) -> None:
    right, count = case
    interval = stats.binomtest(right, count).proportion_ci(method="wilson")
    found = wilson(right, count)
    assert found == pytest.approx((right / count, interval.low, interval.high), abs=1e-12)


def test_wilson_of_nothing_is_everything() -> None:
    value, low, high = wilson(0, 0)
    assert math.isnan(value)
    assert (low, high) == (0, 1)


@few
@given(st.integers(2, 7), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_confusion_is_scikit_learns(classes: int, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels, predicted = generator.integers(classes, size=(2, count))
    cells = count_confusion(labels, predicted, classes)
    found = confusion_matrix(cells, classes)
    np.testing.assert_array_equal(
        found, peer_confusion(labels, predicted, labels=list(range(classes)))
    )
    assert sum(cell.images for cell in cells) == count
    assert all(found[cell.label, cell.predicted] == cell.images > 0 for cell in cells)


def test_predictions_of_no_class_have_a_column_of_their_own() -> None:
    found = count_confusion(np.array([0, 1, 1]), np.array([-1, 1, -1]), 2)
    assert found == ((0, -1, 1), (1, 1, 1), (1, -1, 1))
    np.testing.assert_array_equal(confusion_matrix(found, 2), [[0, 0, 1], [0, 1, 1]])


def test_confusion_of_many_classes_takes_the_memory_of_its_cells() -> None:
    labels = np.arange(500) * 2_000_000  # of a billion classes, whose matrix nobody could hold
    found = count_confusion(labels, labels[::-1], 1_000_000_000)
    assert found == tuple((a, b, 1) for a, b in zip(labels, labels[::-1], strict=True))


@few
@given(st.integers(1, 30), st.integers(1, 4), st.booleans(), st.integers(0, 2**32 - 1))
def test_average_precision_is_scikit_learns(
    count: int, classes: int, ties: bool, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(count, classes))
    scores = np.round(scores) if ties else scores
    labels = generator.integers(2, size=(count, classes)).astype(np.uint8)
    found = average_precision(scores, labels)
    for number in range(classes):
        if not labels[:, number].any():
            assert math.isnan(found[number])
            continue
        peer = average_precision_score(labels[:, number], scores[:, number])
        assert found[number] == pytest.approx(peer, abs=1e-12)


def brute_calibration(confidence: np.ndarray, right: np.ndarray, bins: int) -> float:
    """Go through the bins one by one, as the paper's formula has it."""
    edges, error = np.linspace(0, 1, bins + 1), 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean())
            error += inside.mean() * gap
    return error


@few
@given(st.integers(1, 80), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_calibration_is_that_of_brute_force(count: int, bins: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(1e-9, 1, size=count)
    right = generator.uniform(size=count) < confidence
    found = measure_calibration(confidence, right, bins=bins)
    assert found.binned == pytest.approx(brute_calibration(confidence, right, bins), abs=1e-12)
    assert 0 <= found.ece.low <= found.ece.value <= found.ece.high <= 1
    assert sum(each.images for each in found.bins) == count
    assert all((each.accuracy is None) == (each.images == 0) for each in found.bins)


def test_a_model_that_is_always_sure_and_half_right_is_off_by_a_half() -> None:
    right = np.array([True, False] * 200)
    found = measure_calibration(np.ones(400), right)
    assert found.ece.value == pytest.approx(0.5)
    # Off by 0.5 with a std of 0.5 / sqrt(400) = 0.025.
    assert found.ece.low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert found.ece.high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)
    assert [each.images for each in found.bins] == [0] * 14 + [400]


@few
@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_scipys_binomial_test(lost: int, won: int) -> None:
    exact, midp = mcnemar(lost, won)
    if lost + won == 0:
        assert (exact, midp) == (1, 1)
        return
    assert exact == pytest.approx(stats.binomtest(lost, lost + won).pvalue, rel=1e-8)
    # By definition: all that is less likely than the result, and half of what is as likely.
    chances = stats.binom.pmf(np.arange(lost + won + 1), lost + won, 0.5)
    here = chances[lost]
    same = np.isclose(chances, here, rtol=1e-9, atol=0)
    assert midp == pytest.approx(chances[~same & (chances < here)].sum() + chances[same].sum() / 2)


def test_mcnemar_of_many_disagreements_is_nearly_chi_squared() -> None:
    """Fagerland's example has 59 pairs against 6; a large one has the chi-squared's value."""
    lost, won = 30_500, 29_500
    statistic = (abs(lost - won) - 1) ** 2 / (lost + won)  # with continuity correction
    assert mcnemar(lost, won)[0] == pytest.approx(stats.chi2.sf(statistic, 1), rel=1e-3)


def test_f1_is_scikit_learns() -> None:
    generator = np.random.default_rng(3)
    predicted, labels = generator.uniform(size=(2, 50, 4)) < 0.4
    labels[:, 3] = False
    found = f1(predicted, labels)
    peers = [f1_score(labels[:, each], predicted[:, each]) for each in range(3)]
    np.testing.assert_allclose(found, [*peers, np.nan])


def best_threshold(scores: list[float], labels: list[bool]) -> float:
    """Try every threshold that makes a difference, with exact fractions."""
    if not any(labels):
        return 0.5
    values = sorted({0.0, *scores})
    between = {(low + high) / 2 for low, high in pairwise(values)}
    tried = {}
    for level in {0.5, *between, *([0.0] if 0.0 in scores else [])}:
        predicted = [score >= level for score in scores]
        both = sum(a and b for a, b in zip(predicted, labels, strict=True))
        tried[level] = Fraction(2 * both, sum(predicted) + sum(labels))
    return min(tried, key=lambda level: (-tried[level], abs(level - 0.5), level))


tables = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, 16).map(lambda n: n / 16), min_size=count, max_size=count),
        st.lists(st.booleans(), min_size=count, max_size=count),
    )
)


@given(tables)
def test_thresholds_are_those_of_brute_force(table: tuple[list[float], list[bool]]) -> None:
    scores, labels = table
    found = choose_thresholds(np.array([scores]).T, np.array([labels]).T)
    assert found == (best_threshold(scores, labels),)


def test_thresholds_are_of_each_class_and_tell_neighboring_numbers_apart() -> None:
    near = np.nextafter(0.9, 1.0)
    scores = np.array([[0.6, near, 0.1], [0.2, 0.9, 0.2]])
    labels = np.array([[1, 1, 0], [0, 0, 0]])
    assert choose_thresholds(scores, labels) == (0.5, near, 0.5)


def test_labels_are_predicted_from_their_threshold_on() -> None:
    logits = np.array([[0.0, 2.0, -800.0], [-0.1, 40.0, 800.0]], np.float32)
    assert predict_labels(logits).tolist() == [[True, True, False], [False, True, True]]
    levels = (0.4, 0.9, 1.0)
    assert predict_labels(logits, levels).tolist() == [[True, False, False], [True, True, True]]


def test_metrics_of_labels_are_scikit_learns() -> None:
    generator = np.random.default_rng(5)
    logits, labels = generator.normal(size=(40, 4)), generator.uniform(size=(40, 4)) < 0.3
    predicted = predict_labels(logits)
    expected = [
        average_precision_score(labels, logits),
        f1_score(labels, predicted, average="macro"),
        f1_score(labels, predicted, average="micro"),
    ]
    np.testing.assert_allclose(score_labels(logits, labels, predicted), expected)
    none = np.zeros((3, 4), bool)
    assert np.isnan(score_labels(logits[:3], none, none)).all()
