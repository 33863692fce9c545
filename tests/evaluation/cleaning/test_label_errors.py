"""Confident learning against its definition image by image, planted errors, outliers, folds."""

import numpy as np
import pytest

from vitrail.config import InputError
from vitrail.data.split import assign_folds
from vitrail.evaluation.cleaning.label_errors import (
    ProbabilityBlocks,
    cross_validate_probabilities,
    find_label_errors,
)
from vitrail.evaluation.cleaning.outlying import find_outliers, neighbor_distances
from vitrail.evaluation.metrics.scores import confusion_matrix


def dense(blocks: ProbabilityBlocks, images: int, classes: int) -> np.ndarray:
    found = np.full((images, classes), np.nan)
    for rows, each in blocks():
        found[rows] = each
    return found


def test_the_joint_is_counted_as_defined() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), 200)
    probabilities[::4] = rng.dirichlet(np.full(4, 200), 50)  # no class is probable
    labels = rng.integers(0, 4, 200)
    thresholds = [probabilities[labels == k, k].mean() for k in range(4)]
    joint = np.zeros((4, 4), int)
    for row, label in zip(probabilities, labels, strict=True):
        reached = [k for k in range(4) if row[k] >= thresholds[k]]
        if reached:
            joint[label, max(reached, key=lambda k: row[k])] += 1
    halves = [np.arange(200)[::2], np.arange(200)[1::2]]
    found = find_label_errors(lambda: [(h, probabilities[h]) for h in halves], labels, 4)
    assert confusion_matrix(found.joint, 4).tolist() == joint.tolist()
    own = probabilities[np.arange(200), labels]
    errors = joint.sum() - np.trace(joint)
    assert sorted(found.rows) == sorted(np.argsort(own)[:errors])
    assert found.own.tolist() == own[found.rows].tolist()
    assert 0 < found.sure.sum() < len(found.rows)
    for row, suggested, chance, sure in zip(
        found.rows, found.suggested, found.chance, found.sure, strict=True
    ):
        others = np.delete(probabilities[row], labels[row])
        assert suggested != labels[row]
        assert probabilities[row, suggested] == others.max() == chance
        assert sure == (chance >= thresholds[suggested])
    for k, example in enumerate(found.examples):
        unflagged = [i for i in range(200) if labels[i] == k and i not in set(found.rows)]
        assert example == max(unflagged, key=lambda i: own[i])


def test_planted_errors_are_found() -> None:
    rng = np.random.default_rng(1)
    true = np.arange(300) % 5
    features = rng.normal(size=(300, 8)) + 4 * rng.normal(size=(5, 8))[true]
    labels, wrong = true.copy(), rng.permutation(300)[:30]
    labels[wrong] = (true[wrong] + rng.integers(1, 5, 30)) % 5
    probabilities = cross_validate_probabilities(features, labels, 5)
    assert dense(probabilities, 300, 5).sum(1) == pytest.approx(1)
    found = find_label_errors(probabilities, labels, 5)
    hits = np.isin(found.rows, wrong)
    assert hits.mean() > 0.9
    assert hits.sum() >= 24
    assert (found.suggested == true[found.rows])[hits].mean() > 0.95


def test_copies_are_judged_by_probes_that_saw_neither() -> None:
    """An image whose wrong label its copy shares is not excused by the copy."""
    rng = np.random.default_rng(2)
    true = np.arange(60) % 2
    features = rng.normal(size=(60, 6)) + 3 * np.array([[0], [1]])[true]
    features[1::2] += 2
    features[58] = features[56]
    labels = true.copy()
    labels[[56, 58]] = 1
    groups = np.arange(60)
    groups[58] = 56
    found = dense(cross_validate_probabilities(features, labels, 2, groups=groups), 60, 2)
    assert found[56] == pytest.approx(found[58], rel=1e-6)
    assert found[56, 1] < 0.5


def test_outliers_are_far_from_all_others() -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(100, 5)) * 0.1 + 1
    features[7] = [-1, 5, 0, 0, 0]
    distances = neighbor_distances(features)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    expected = 1 - np.sort(cosines, 1)[:, -5:].mean(1)
    assert distances == pytest.approx(expected, abs=1e-6)
    assert find_outliers(distances).tolist()[0] == 7
    assert find_outliers(np.zeros(9)).tolist() == []
    assert neighbor_distances(np.ones((1, 3))).tolist() == [0]


def test_folds_hold_each_class_alike_and_never_tear_a_group() -> None:
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    found = assign_folds(labels, 3, 5, seed=1)
    for fold in range(5):
        assert np.bincount(labels[found == fold]).tolist() == [10, 6, 4]
    rng = np.random.default_rng(0)
    groups = rng.permutation(100) % 30
    found = assign_folds(labels, 3, 5, seed=1, groups=groups)
    assert all(len(set(found[groups == group])) == 1 for group in set(groups))
    sizes = np.bincount(found, minlength=5)
    assert sizes.max() - sizes.min() <= 8
    for wrong, said in ((1, "expected 2 or more"), (31, "only 30 groups")):
        with pytest.raises(InputError, match=said):
            assign_folds(labels, 3, wrong, groups=groups)
