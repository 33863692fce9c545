"""Accuracy against brute force: partial batches, unreadable images, several labels, processes."""

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, recall_score

from tests.evaluation.tables import CPU, TINY, Table, batches_of
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ArrayDataset
from vitrail.distributed import Shard
from vitrail.evaluation.accuracy import Accuracy, measure_accuracy
from vitrail.evaluation.dataset_predictions import ClassMatching, predict_batches
from vitrail.evaluation.metrics.scores import MacroScores
from vitrail.predictor.predictions import rank
from vitrail.tasks.classification import result_of
from vitrail.training.best_tracker import BestTracker, EvalResult


def brute_force(logits: np.ndarray, labels: np.ndarray, bad: frozenset[int]) -> Accuracy:
    """Go through the images one by one."""
    top1 = top5 = loss = 0.0
    rows = [row for row in range(len(labels)) if row not in bad]
    for row in rows:
        order = sorted(range(logits.shape[1]), key=lambda c: -logits[row, c])
        top1 += order[0] == labels[row]
        top5 += labels[row] in order[:5]
        loss -= logits[row, labels[row]] - np.log(np.exp(logits[row]).sum())
    count = len(rows)
    best, there = logits[rows].argmax(1), labels[rows]
    macro = MacroScores(
        float(recall_score(there, best, average="macro", labels=np.unique(there))),
        float(f1_score(there, best, average="macro", labels=np.unique(there))),
    )
    near = top5 / count if logits.shape[1] > 5 else None  # otherwise each class is among the five
    return Accuracy(top1 / count, near, loss / count, count, len(bad), macro=macro)


@pytest.mark.parametrize("classes", [3, 5, 11])
@pytest.mark.parametrize(("size", "micro"), [(7, None), (7, 3), (40, 1), (40, 100)])
@pytest.mark.parametrize("bad", [frozenset[int](), frozenset({0, 6, 7, 39})])
def test_accuracy_is_that_of_brute_force(
    classes: int, size: int, micro: int | None, bad: frozenset[int]
) -> None:
    generator = np.random.default_rng(classes)
    logits = generator.normal(size=(40, classes)).astype(np.float32)
    labels = generator.integers(classes, size=40)
    model = Table(torch.from_numpy(logits))
    noted: list[str] = []
    found = measure_accuracy(
        model,
        batches_of(labels, size, bad),
        TINY,
        device=CPU,
        micro=micro,
        note=lambda images: noted.extend(image.where for image in images),
    )
    expected = brute_force(logits.astype(np.float64), labels, bad)
    assert found.loss == pytest.approx(expected.loss, abs=1e-6)
    assert found.macro == pytest.approx(expected.macro)
    assert found[:2] == expected[:2]
    assert found[3:-1] == expected[3:-1]
    assert noted == [f"p{row}" for row in sorted(bad)]
    assert max(model.seen) == min(size, micro or size, 40)


def test_of_equal_logits_the_first_counts_everywhere() -> None:
    """In bfloat16 many are equal; a constant model says class 0 to all."""
    generator = np.random.default_rng(0)
    rounded = torch.from_numpy(generator.normal(size=(40, 200))).bfloat16().float()
    for logits in (torch.zeros(40, 7), (rounded * 4).round() / 4):
        classes = logits.shape[1]
        labels = generator.integers(classes, size=40)
        order = [sorted(range(classes), key=lambda c, row=row: (-row[c], c)) for row in logits]
        found = measure_accuracy(Table(logits), batches_of(labels, 9), TINY, device=CPU)
        first = np.array([each[0] for each in order])
        assert found.top1 == np.mean(first == labels)
        assert sum(right for _, right in found.by_class) == round(40 * found.top1)
        near = [label in each[:5] for label, each in zip(labels, order, strict=True)]
        assert found.top5 == np.mean(near)
        matching = ClassMatching(np.arange(classes))
        (part,) = predict_batches(Table(logits), batches_of(labels, 40), TINY, matching, device=CPU)
        assert part.top.tolist() == [each[:5] for each in order]
        told = [[score.index for score in row] for row in rank(logits, None, 5)]
        assert told == part.top.tolist()


def test_several_labels_per_image_are_counted_one_by_one() -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0], [-2.0, 0.5, -0.5]])
    labels = np.array([[1, 1, 1], [0, 1, 0]], np.uint8)
    found = measure_accuracy(Table(logits), batches_of(labels, 2), TINY, device=CPU)
    assert found.top1 == found.top5 == pytest.approx(5 / 6)
    signs = np.where(labels, 1, -1) * logits.numpy()
    assert found.loss == pytest.approx(np.log1p(np.exp(-signs)).sum() / 2, abs=1e-6)
    # Only the second label of the first image is missed: 3 of 4 are found, and nothing else.
    assert found.labels == pytest.approx((1.0, (1 + 2 / 3 + 1) / 3, 2 * 3 / (3 + 4)))
    assert found.thresholds == pytest.approx((0.5, 1 / (1 + np.exp(1)) / 2, 0.5))
    result = result_of(found)
    assert result.score == 1.0
    assert result.values.keys() == {"map", "macro_f1", "micro_f1", "loss"}
    tracker = BestTracker().after(3, result)
    assert BestTracker.load(json.loads(json.dumps(asdict(tracker)))) == tracker


def test_without_a_single_label_the_loss_is_the_score() -> None:
    none = np.zeros((2, 3), np.uint8)
    found = measure_accuracy(Table(torch.zeros(2, 3)), batches_of(none, 2), TINY, device=CPU)
    result = result_of(found)
    assert result.values == {"loss": found.loss}
    assert result.score == -found.loss
    assert result.thresholds == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("several", [False, True])
def test_the_sums_of_several_processes_are_those_of_one(several: bool) -> None:
    """The last batches leave some processes without an image."""
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(10, 6)).astype(np.float32))
    labels = generator.integers(6, size=10)
    if several:
        labels = generator.integers(2, size=(10, 6), dtype=np.uint8)
    pixels = np.broadcast_to(np.arange(10, dtype=np.uint8)[:, None, None, None], (10, 2, 2, 1))
    source = ArrayDataset(
        "numbers", [str(n) for n in range(6)], labels, np.ascontiguousarray(pixels)
    )
    sums, parts = np.zeros(5), list[Any]()

    def total(*values: float) -> list[float]:
        """Add up over the processes that were here so far."""
        nonlocal sums
        sums = sums + values
        return sums.tolist()

    def gather(part: Any) -> list[Any]:
        parts.append(part)
        return parts

    found = None
    for process in (3, 2, 1, 0):  # of which the last has nothing of a batch of 3
        batches = EvalBatches(source, TINY, batch=3, shard=Shard(process, 4))
        part = map(batches.__getitem__, range(len(batches)))
        found = measure_accuracy(Table(logits), part, TINY, device=CPU, total=total, gather=gather)
    assert found
    alone = EvalBatches(source, TINY, batch=10)
    expected = measure_accuracy(Table(logits), [alone[0]], TINY, device=CPU)
    assert found[:3] == pytest.approx(expected[:3])
    assert found[3:-1] == expected[3:-1]
    assert (found.labels is not None) == several
    assert found.images == 10


def test_a_model_is_left_in_the_mode_it_was_in() -> None:
    model = Table(torch.zeros(4, 3)).train()
    measure_accuracy(model, batches_of(np.zeros(4, np.int64), 2), TINY, device=CPU)
    assert model.training
    measure_accuracy(model.eval(), batches_of(np.zeros(4, np.int64), 2), TINY, device=CPU)
    assert not model.training


@pytest.mark.parametrize("count", [0, 3])
def test_nothing_to_measure_is_an_error(count: int) -> None:
    batches = batches_of(np.zeros(count, np.int64), 2, frozenset(range(count)))
    with pytest.raises(
        InputError, match=f"nothing to evaluate: none of {count} images can be read"
    ):
        measure_accuracy(Table(torch.zeros(4, 3)), batches, TINY, device=CPU)


def test_nan_is_never_the_best() -> None:
    """A first evaluation that is NaN would compare greater than nothing, and less than nothing."""
    standing = BestTracker()
    for step, score in enumerate((math.nan, 0.2, math.nan, 0.1), start=1):
        standing = standing.after(step, EvalResult(score, {"top1": score}, 9, 0))
        if step == 1:
            assert (standing.best, standing.worse) == (None, 1)
    assert standing.best
    assert (standing.best.score, standing.worse) == (0.2, 2)


def test_a_standing_counts_what_was_worse_and_keeps_the_first_best() -> None:
    standing, accuracies = BestTracker(), (0.3, 0.5, 0.5, 0.4, 0.6, 0.1)
    seen = []
    for step, top1 in enumerate(accuracies, start=1):
        found = Accuracy(top1, 1.0, 10.0 - step, 9, 1)
        standing = standing.after(step, result_of(found))
        assert standing.best
        best = standing.best.values
        seen.append((standing.evaluated, standing.worse, best["top1"], best["loss"]))
    assert seen == [
        (1, 0, 0.3, 9.0),
        (2, 0, 0.5, 8.0),
        (3, 1, 0.5, 8.0),
        (4, 2, 0.5, 8.0),
        (5, 0, 0.6, 5.0),
        (6, 1, 0.6, 5.0),
    ]
