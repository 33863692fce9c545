"""Accuracy on every image that can be read, counted exactly once over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.data.batches import Batch, UnreadableImage
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess


class Accuracy(NamedTuple):
    """How well a model does on a dataset."""

    top1: float
    """Fraction of images whose most likely class is correct; of labels, where images have several.
    """
    top5: float
    """Fraction whose class is among the five most likely."""
    loss: float
    """Mean cross-entropy."""
    images: int
    """Images evaluated."""
    skipped: int
    """Images that could not be read."""


def _this_process(*values: float) -> list[float]:
    return list(values)


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
    micro: int | None = None,
    total: Callable[..., list[float]] = _this_process,
    note: Callable[[Iterable[UnreadableImage]], None] = lambda bad: None,
) -> Accuracy:
    """Run a model over batches, `micro` images at a time; `total` adds up over all processes.

    `note` is told which images could not be read; an error is raised if none could.
    """
    sums = torch.zeros(4, dtype=torch.float64)  # correct, correct in the top 5, loss, images
    skipped = 0
    for batch, logits in run_batches(model, batches, preprocess, device=device, micro=micro):
        note(batch.bad)
        skipped += len(batch.bad)
        if len(batch.labels):
            sums += _count(logits, batch.labels, batch.weights.double())
    correct, in_top5, loss, images, bad = total(*sums.tolist(), float(skipped))
    if images == 0:
        raise InputError(f"nothing to evaluate: none of {bad:,.0f} images can be read")
    return Accuracy(correct / images, in_top5 / images, loss / images, int(images), int(bad))


def _count(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Sum up one batch: correct predictions, those in the top 5, losses, images."""
    if labels.ndim == 2:
        targets = labels.float()
        correct = ((logits > 0) == (labels > 0)).double().mean(-1)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)
        in_top5 = correct
    else:
        best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == labels[:, None]
        correct, in_top5 = best[:, 0].double(), best.any(-1).double()
        losses = F.cross_entropy(logits, labels, reduction="none")
    return torch.stack([correct, in_top5, losses.double(), torch.ones_like(weights)]) @ weights
