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
    """How well a model does on a set."""

    top1: float
    """Part of the images whose most likely class is right; of labels, with several an image."""
    top5: float
    """Part whose class is among the five most likely."""
    loss: float
    """Mean cross-entropy."""
    images: int
    """Images that were measured."""
    skipped: int
    """Images that could not be read."""


def _alone(*values: float) -> list[float]:
    return list(values)


@torch.inference_mode()
def answer(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    *,
    device: torch.device,
    micro: int | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Run a model over batches, `micro` images at a time; give each with its logits, on the CPU.

    Empty batches, as some processes get at the end, are given too. The model is in eval mode for
    as long.
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


def measure(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    *,
    device: torch.device,
    micro: int | None = None,
    total: Callable[..., list[float]] = _alone,
    note: Callable[[Iterable[UnreadableImage]], None] = lambda bad: None,
) -> Accuracy:
    """Run a model over batches, `micro` images at a time; `total` adds up over all processes.

    `note` is told of the images that could not be read; where all are such, that is an error.
    """
    sums = torch.zeros(4, dtype=torch.float64)  # right, right among five, loss, images
    skipped = 0
    for batch, logits in answer(model, batches, preprocess, device=device, micro=micro):
        note(batch.bad)
        skipped += len(batch.bad)
        if len(batch.labels):
            sums += _count(logits, batch.labels, batch.weights.double())
    right, among, loss, images, bad = total(*sums.tolist(), float(skipped))
    if images == 0:
        raise InputError(f"there is nothing to measure: {bad:,.0f} images, none of them readable")
    top1, top5, loss = right / images, among / images, loss / images
    return Accuracy(top1, top5, loss, int(images), int(bad))


def _count(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Sum up what one batch adds: right answers, losses, images."""
    if labels.ndim == 2:
        targets = labels.float()
        right = ((logits > 0) == (labels > 0)).double().mean(-1)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)
        among = right
    else:
        best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == labels[:, None]
        right, among = best[:, 0].double(), best.any(-1).double()
        losses = F.cross_entropy(logits, labels, reduction="none")
    return torch.stack([right, among, losses.double(), torch.ones_like(weights)]) @ weights
