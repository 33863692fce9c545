"""Predictions and their metrics against brute force: owners, restriction, several labels."""

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    log_loss,
    recall_score,
    top_k_accuracy_score,
)

from tests.evaluation.tables import CPU, TINY, Table, batches_of
from tests.shelf import refusal
from vitrail.data.dataset import ArrayDataset
from vitrail.evaluation.accuracy import measure_accuracy
from vitrail.evaluation.dataset_predictions import (
    ClassMatching,
    Predictions,
    join_predictions,
    predict_batches,
)
from vitrail.evaluation.evaluation_files import image_rows
from vitrail.evaluation.scoring import score_predictions

COUNT, CLASSES = 40, 7
LOGITS = np.random.default_rng(0).normal(size=(COUNT, CLASSES)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(CLASSES, size=COUNT)
NAMES = tuple("abcdefg")


def dataset_of(labels: np.ndarray, names: tuple[str, ...] = NAMES) -> ArrayDataset:
    return ArrayDataset("photos", names, labels, np.zeros((len(labels), 2, 2, 1), np.uint8))


def predictions_of(
    logits: np.ndarray,
    labels: np.ndarray,
    matching: ClassMatching,
    size: int = 9,
    bad: frozenset[int] = frozenset(),
) -> Predictions:
    model, batches = Table(torch.from_numpy(logits)), batches_of(labels, size, bad)
    return join_predictions(predict_batches(model, batches, TINY, matching, device=CPU))


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("bad", [frozenset[int](), frozenset({0, 8, 9, 39})])
def test_a_report_is_what_scikit_learn_says(bad: frozenset[int]) -> None:
    predictions = predictions_of(LOGITS, LABELS, ClassMatching(np.arange(CLASSES)), bad=bad)
    report = score_predictions(predictions, dataset_of(LABELS))
    good = np.array([row for row in range(COUNT) if row not in bad])
    probabilities, labels = softmax(LOGITS[good]), LABELS[good]
    assert report.macro_accuracy is not None
    assert report.macro_f1 is not None
    best = probabilities.argmax(1)
    assert report.macro_accuracy.value == pytest.approx(
        recall_score(labels, best, average="macro", labels=np.unique(labels))
    )
    assert report.macro_f1.value == pytest.approx(
        f1_score(labels, best, average="macro", labels=np.unique(labels))
    )
    assert report.macro_f1.low < report.macro_f1.value < report.macro_f1.high
    for most, found in ((1, report.top1), (5, report.top5)):
        assert found is not None
        peer = top_k_accuracy_score(labels, probabilities, k=most, labels=list(range(CLASSES)))
        assert found.value == pytest.approx(peer)
        assert found.low < found.value < found.high
    assert report.loss.value == pytest.approx(
        log_loss(labels, probabilities, labels=list(range(CLASSES))), abs=1e-6
    )
    assert (report.images, report.skipped) == (len(good), len(bad))
    predicted = probabilities.argmax(1)
    rows = {row.name: row.row() for row in report.classes}
    for number, name in enumerate(NAMES):
        own = labels == number
        assert rows[name]["images"] == own.sum()
        assert rows[name]["top1"] == pytest.approx((predicted[own] == number).mean())
        taken = predicted == number
        precision = own[taken].mean() if taken.any() else None
        assert rows[name]["precision"] == pytest.approx(precision)
    np.testing.assert_allclose(predictions.confidence, probabilities.max(1), atol=1e-6)
    shown = "on 36 of 40 images (4 unreadable)" if bad else "on 40 images"
    assert report.evaluated_on() == shown


def test_a_report_agrees_with_what_training_measures() -> None:
    matching = ClassMatching(np.arange(CLASSES))
    report = score_predictions(
        predictions_of(LOGITS, LABELS, matching),
        dataset_of(LABELS),
    )
    found = measure_accuracy(
        Table(torch.from_numpy(LOGITS)), batches_of(LABELS, 11), TINY, device=CPU
    )
    assert report.top1 is not None
    assert report.top5 is not None
    assert (report.top1.value, report.top5.value) == found[:2]
    assert report.loss.value == pytest.approx(found.loss, abs=1e-6)


def test_outputs_in_another_order_give_the_same_predictions() -> None:
    order = np.random.default_rng(2).permutation(CLASSES)  # output k is the data's class order[k]
    shuffled = predictions_of(np.ascontiguousarray(LOGITS[:, order]), LABELS, ClassMatching(order))
    plain = predictions_of(LOGITS, LABELS, ClassMatching(np.arange(CLASSES)))
    np.testing.assert_array_equal(shuffled.top, plain.top)
    np.testing.assert_allclose(shuffled.losses, plain.losses, atol=1e-6)


def test_outputs_of_no_class_compete_unless_left_out() -> None:
    """Two of seven outputs are the data's classes; with the others left out it is a coin's toss."""
    owner = np.array([-1, 0, -1, -1, 1, -1, -1])
    labels = LABELS % 2
    free = predictions_of(LOGITS, labels, ClassMatching(owner))
    assert free.top.shape == (COUNT, 5)
    best = LOGITS.argmax(1)
    np.testing.assert_array_equal(free.top[:, 0], owner[best])
    kept = predictions_of(LOGITS, labels, ClassMatching(owner, restricted=True))
    two = LOGITS[:, [1, 4]]
    np.testing.assert_array_equal(kept.top[:, 0], two.argmax(1))
    assert kept.top.shape == (COUNT, 2)
    np.testing.assert_allclose(kept.confidence, softmax(two).max(1), atol=1e-6)
    np.testing.assert_allclose(
        kept.losses, -np.log(softmax(two)[np.arange(COUNT), labels]), atol=1e-5
    )
    report = score_predictions(free, dataset_of(labels, ("x", "y")))
    assert report.confusion is not None
    outside = [cell.images for cell in report.confusion if cell.predicted < 0]
    assert sum(outside) == (owner[best] < 0).sum()
    assert None in {cell["predicted"] for cell in report.to_dict()["confusion"]}


def test_a_class_of_several_outputs_has_the_probability_of_all() -> None:
    owner = np.array([0, 1, 0, 1, 1, 2, 2])
    labels = LABELS % 3
    predictions = predictions_of(LOGITS, labels, ClassMatching(owner))
    probabilities = softmax(LOGITS) @ np.eye(3)[owner]
    np.testing.assert_allclose(
        predictions.losses, -np.log(probabilities[np.arange(COUNT), labels]), atol=1e-5
    )
    np.testing.assert_array_equal(predictions.correct(), owner[LOGITS.argmax(1)] == labels)


def test_reassessed_labels_count_any_of_their_classes_and_leave_empty_sets_out() -> None:
    predictions = predictions_of(
        LOGITS, LABELS, ClassMatching(np.arange(CLASSES)), bad=frozenset({3})
    )
    generator = np.random.default_rng(5)
    real = [
        frozenset(generator.choice(7, size=row % 3, replace=False).tolist()) for row in range(40)
    ]
    report = score_predictions(predictions, dataset_of(LABELS), real=real)
    best = LOGITS.argmax(1)
    hits = [best[row] in real[row] for row in range(COUNT) if real[row] and row != 3]
    assert report.real is not None
    assert report.real.value == pytest.approx(np.mean(hits))
    assert report.real_images == len(hits) == report.to_dict()["real_images"]


def test_several_labels_per_image_have_average_precisions() -> None:
    labels = (np.random.default_rng(4).uniform(size=(COUNT, 3)) < 0.3).astype(np.uint8)
    labels[:, 2] = 0  # a class without images
    owner = np.array([-1, 2, 0, -1, 1, -1, -1])
    predictions = predictions_of(LOGITS, labels, ClassMatching(owner), bad=frozenset({5}))
    report = score_predictions(predictions, dataset_of(labels, ("x", "y", "z")))
    good = np.arange(COUNT) != 5
    scores = LOGITS[:, [2, 4, 1]]
    peers = [average_precision_score(labels[good, k], scores[good, k]) for k in (0, 1)]
    found = report.mean_average_precision
    assert found is not None
    assert found.value == pytest.approx(np.mean(peers))
    assert found.low < found.value < found.high
    assert [row.average_precision for row in report.classes] == [*map(pytest.approx, peers), None]
    agreed = (scores[good] > 0) == labels[good]
    assert report.label_accuracy is not None
    assert report.label_accuracy.value == pytest.approx(agreed.mean())
    assert report.top1 is None
    assert not report.to_dict().keys() & {"top1", "top5"}
    assert (report.calibration, report.confusion) == (None, None)
    assert "classes" in report.to_dict()


def test_rows_of_images_name_the_unreadable_too() -> None:
    bad = frozenset({2})
    predictions = predictions_of(LOGITS, LABELS, ClassMatching(np.arange(CLASSES)), bad=bad)
    dataset = dataset_of(LABELS)
    rows = image_rows(score_predictions(predictions, dataset), dataset)
    assert len(rows) == COUNT
    assert rows[0]["image"] == "photos[0]"
    assert rows[0]["class"] == NAMES[LABELS[0]]
    assert rows[0]["predicted"] == NAMES[LOGITS[0].argmax()]
    assert rows[-1] == {**dict.fromkeys(rows[0], ""), "image": "p2", "error": "gone"}


def test_rows_of_images_with_several_labels_list_them() -> None:
    labels = np.eye(CLASSES, dtype=np.uint8)[LABELS]
    labels[0] = 1
    predictions = predictions_of(LOGITS, labels, ClassMatching(np.arange(CLASSES)))
    dataset, levels = dataset_of(labels), [0.4] * CLASSES
    result = score_predictions(predictions, dataset, thresholds=levels)
    rows = image_rows(result, dataset)
    assert rows[0]["class"] == "|".join(NAMES)
    for row, scores in zip(rows, LOGITS.tolist(), strict=True):
        there = [name for name, score in zip(NAMES, scores, strict=True) if score > np.log(2 / 3)]
        assert row["predicted"] == "|".join(there)
    assert rows[1].keys() == {"image", "class", "predicted", "loss", "error"}


def test_nothing_readable_is_refused() -> None:
    everything = frozenset(range(3))
    text = refusal(
        predictions_of, LOGITS, LABELS[:3], ClassMatching(np.arange(CLASSES)), bad=everything
    )
    assert text == "nothing to evaluate: none of 3 images can be read"


def test_predictions_that_are_no_numbers_are_refused() -> None:
    logits = LOGITS.copy()
    logits[3, 2] = np.nan
    text = refusal(predictions_of, logits, LABELS, ClassMatching(np.arange(CLASSES)))
    assert "outputs for 1 of 40 images are NaN or infinite" in text


def test_a_sigmoid_model_is_scored_with_sigmoid() -> None:
    """Its confidence is the sigmoid of the best logit, its loss binary and summed over classes."""
    batches, model = batches_of(LABELS, 9), Table(torch.from_numpy(LOGITS))
    matching = ClassMatching(np.arange(CLASSES))
    found = join_predictions(
        predict_batches(model, batches, TINY, matching, device=CPU, activation="sigmoid")
    )
    plain = predictions_of(LOGITS, LABELS, matching)
    np.testing.assert_array_equal(found.top, plain.top)
    chances = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    np.testing.assert_allclose(found.confidence, chances.max(1), atol=1e-6)
    own = np.eye(CLASSES)[LABELS]
    losses = -(own * np.log(chances) + (1 - own) * np.log(1 - chances)).sum(1)
    np.testing.assert_allclose(found.losses, losses, atol=1e-5)


def test_labels_are_counted_from_their_thresholds_on() -> None:
    labels = (np.random.default_rng(4).uniform(size=(COUNT, CLASSES)) < 0.3).astype(np.uint8)
    predictions = predictions_of(LOGITS, labels, ClassMatching(np.arange(CLASSES)))
    levels = np.linspace(0.2, 0.8, CLASSES)
    result = score_predictions(
        predictions,
        dataset_of(labels),
        thresholds=levels.tolist(),
    )
    predicted = 1 / (1 + np.exp(-LOGITS.astype(np.float64))) > levels
    assert result.macro_f1 is not None
    assert result.micro_f1 is not None
    assert result.macro_f1.value == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert result.micro_f1.value == pytest.approx(f1_score(labels, predicted, average="micro"))
    assert [each.threshold for each in result.classes] == levels.tolist()
    assert result.to_dict()["macro_f1"] == result.macro_f1.value
    assert result.to_dict()["label_accuracy"] == pytest.approx((predicted == labels).mean())
