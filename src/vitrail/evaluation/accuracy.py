"""Accuracy on every image that can be read, counted exactly once over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.data.batches import Batch, UnreadableImage
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.metrics.scores import (
    LabelMetrics,
    MacroScores,
    choose_thresholds,
    macro_scores,
    predict_labels,
    score_labels,
    sigmoid,
)
from vitrail.weights.checkpoint import Activation

TOP_K = 5
"""How many of the most likely classes may contain the image's own."""


class Accuracy(NamedTuple):
    """How well a model does on a dataset."""

    top1: float
    """Fraction of images whose most likely class is correct; of labels, where images have several.
    """
    top5: float | None
    """Fraction whose class is among the five most likely; None where there are no more than five.
    """
    loss: float
    """Mean cross-entropy, by the model's activation; of sigmoids, summed over classes."""
    images: int
    """Images evaluated."""
    skipped: int
    """Images that could not be read."""
    labels: LabelMetrics | None = None
    """Where images have several labels, predicted from a probability of 0.5 on."""
    thresholds: tuple[float, ...] | None = None
    """There, each class's probability of the best F1 on these images."""
    macro: MacroScores | None = None
    """Where images have one label: accuracy and F1 as means over the classes."""
    by_class: tuple[tuple[int, int], ...] = ()
    """There, the images of each class and how many of them are predicted correctly."""


def _this_process(*values: float) -> list[float]:
    return list(values)


def _only_this(value: Any) -> list[Any]:
    return [value]


def rank_classes(logits: Tensor, most: int) -> Tensor:
    """Give the classes of each row's `most` greatest logits, of equals the lowest number first.

    `topk` leaves the order of equals open, and bfloat16 has many.
    """
    if most == 1:
        return logits.argmax(-1, keepdim=True)
    return logits.sort(dim=-1, descending=True, stable=True).indices[..., :most]


@torch.inference_mode()
def run_batches(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    *,
    device: torch.device,
    micro: int | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Run a model over batches, `micro` images at a time; yield each with its logits, on the CPU.

    Empty batches, which some processes get at the end, are yielded too. The model is in eval mode
    for as long.
    """
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            parts = batch.images.split(micro or len(batch.labels)) if len(batch.labels) else ()
            logits = [model(normalize(part, preprocess, device=device)).float() for part in parts]
            yield batch, torch.cat(logits).cpu() if logits else torch.empty(0, 0)
    finally:
        model.train(was_training)


def measure_accuracy(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    *,
    device: torch.device,
    activation: Activation = "softmax",
    micro: int | None = None,
    total: Callable[..., list[float]] = _this_process,
    gather: Callable[[Any], list[Any]] = _only_this,
    note: Callable[[Iterable[UnreadableImage]], None] = lambda bad: None,
    keep: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> Accuracy:
    """Run a model over batches, `micro` images at a time.

    Over all processes `total` adds up and `gather` gives what each has, as those of `Processes`.
    `note` is told which images could not be read; an error is raised if none could. `keep` gets
    numbers, logits and labels of those that could.
    """
    sums = torch.zeros(4, dtype=torch.float64)  # correct, correct in the top 5, loss, images
    skipped, rows = 0, list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
    classes: np.ndarray | None = None  # (3, classes): images, correct ones, predictions
    for batch, logits in run_batches(model, batches, preprocess, device=device, micro=micro):
        note(batch.bad)
        skipped += len(batch.bad)
        if len(batch.labels):
            sums += _count(logits, batch.labels, batch.weights.double(), activation)
            if keep is not None:
                there = batch.weights > 0
                keep(batch.indices[there], logits[there], batch.labels[there])
            if batch.labels.ndim == 2:
                rows.append(_readable_rows(batch, logits))
            else:
                counted = _count_classes(logits, batch.labels, batch.weights)
                classes = counted if classes is None else classes + counted
    correct, in_top5, loss, images, bad = total(*sums.tolist(), float(skipped))
    if images == 0:
        raise InputError(f"nothing to evaluate: none of {bad:,.0f} images can be read")
    found = Accuracy(correct / images, in_top5 / images, loss / images, int(images), int(bad))
    parts = gather((rows, classes))
    if everywhere := [each for own, _ in parts for each in own]:
        return _score_labels(found, everywhere)
    counts = sum(each for _, each in parts if each is not None)
    assert isinstance(counts, np.ndarray), "give `gather` with `total`"
    by_class = tuple(zip(counts[0].tolist(), counts[1].tolist(), strict=True))
    top5 = found.top5 if counts.shape[1] > TOP_K else None
    return found._replace(top5=top5, macro=macro_scores(*counts), by_class=by_class)


def _readable_rows(batch: Batch, logits: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the images' numbers, logits and labels of a batch."""
    there = batch.weights > 0
    found = batch.indices[there], logits[there], batch.labels[there] > 0
    return found[0].numpy(), found[1].numpy(), found[2].numpy()


def _score_labels(
    found: Accuracy, rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> Accuracy:
    """Add what can only be computed of all images together, in the order of the dataset."""
    indices, logits, labels = map(np.concatenate, zip(*rows, strict=True))
    assert len(indices) == found.images, "give `gather` with `total`"
    order = np.argsort(indices, kind="stable")
    logits, labels = logits[order], labels[order]
    return found._replace(
        labels=score_labels(logits, labels, predict_labels(logits)),
        thresholds=choose_thresholds(sigmoid(logits), labels),
    )


def _count_classes(logits: Tensor, labels: Tensor, weights: Tensor) -> np.ndarray:
    """Count the images of each class, those predicted correctly, and the predictions."""
    best, there, count = rank_classes(logits, 1)[:, 0], weights > 0, logits.shape[-1]
    rows = (labels[there], labels[there & (best == labels)], best[there])
    return np.stack([np.bincount(row.numpy(), minlength=count) for row in rows])


def _count(logits: Tensor, labels: Tensor, weights: Tensor, activation: Activation) -> Tensor:
    """Sum up one batch: correct predictions, those in the top 5, losses, images."""
    if labels.ndim == 2:
        targets = labels.float()
        correct = in_top5 = ((logits > 0) == (labels > 0)).double().mean(-1)
    else:
        targets = F.one_hot(labels, logits.shape[-1]).float()
        best = rank_classes(logits, min(TOP_K, logits.shape[-1])) == labels[:, None]
        correct, in_top5 = best[:, 0].double(), best.any(-1).double()
    if labels.ndim == 2 or activation == "sigmoid":
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)
    else:
        losses = F.cross_entropy(logits, labels, reduction="none")
    return torch.stack([correct, in_top5, losses.double(), torch.ones_like(weights)]) @ weights
