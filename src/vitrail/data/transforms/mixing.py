"""Mixup and CutMix of a batch that may be spread over several processes.

Each image of the global batch is mixed with the one before it, all with the same weight, as in
big_vision. A process gets its slice with one more image in front, so the result does not depend on
the number of processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.rng import CounterRNG
from vitrail.data.transforms.augment import Augment


@dataclass(frozen=True)
class Mix:
    """How one global batch is mixed."""

    share: float
    """Weight of the image itself: at least 0.5 with mixup; with CutMix the area outside the box."""
    box: tuple[int, int, int, int] | None = None
    """The box that CutMix takes from the image before: top, left, bottom, right; None for mixup."""


def draw_mix(augment: Augment, size: tuple[int, int], seed: int, step: int) -> Mix | None:
    """Sample how the batch of a step is mixed, if at all; `size` is its height and width.

    With both mixup and CutMix, each batch uses one of them with equal probability, as in timm.
    """
    if not augment.mixes:
        return None
    rng = CounterRNG(seed, "batch", 0, np.array([step]))
    chance = 0.5 if augment.mixup > 0 and augment.cutmix > 0 else float(augment.cutmix > 0)
    if rng.uniform()[0] < chance:
        return _draw_box(_draw_beta(augment.cutmix, rng), size, rng)
    share = _draw_beta(augment.mixup, rng)
    return Mix(max(share, 1 - share))


def _draw_beta(alpha: float, rng: CounterRNG) -> float:
    """Sample from Beta(alpha, alpha), by rejection."""
    while True:
        one, two = (1 - float(rng.uniform()[0]) for _ in range(2))  # from (0, 1]
        if alpha >= 1:  # a point under the density's peak counts if it lies under the density
            if two <= (4 * one * (1 - one)) ** (alpha - 1):
                return one
        else:  # Jöhnk 1964: x^(1/a), by the sum of two if that is at most 1; small a need logs
            first, second = math.log(one) / alpha, math.log(two) / alpha
            total = float(np.logaddexp(first, second))
            if total <= 0:
                return math.exp(first - total)


def _draw_box(share: float, size: tuple[int, int], rng: CounterRNG) -> Mix:
    """Sample a box of the image's aspect ratio around a random pixel, clipped to the image."""
    edges: list[tuple[int, int]] = []
    for side in size:
        length, middle = int(side * math.sqrt(1 - share)), int(rng.below(side)[0])
        edges.append((max(middle - length // 2, 0), min(middle + (length + 1) // 2, side)))
    (top, bottom), (left, right) = edges
    area = (bottom - top) * (right - left)
    return Mix(1 - area / (size[0] * size[1]), (top, left, bottom, right))


def mix_images(batch: Tensor, mix: Mix) -> Tensor:
    """Mix each image (n + 1, channels, height, width) with the one before it; n come out."""
    if mix.box is None:
        return _mix_rows(batch, mix.share)
    top, left, bottom, right = mix.box
    mixed = batch[1:].clone()
    mixed[..., top:bottom, left:right] = batch[:-1, :, top:bottom, left:right]
    return mixed


def mix_targets(targets: Tensor, mix: Mix) -> Tensor:
    """Mix each row of class probabilities (n + 1, classes) with the one before it; n come out."""
    return _mix_rows(targets, mix.share)


def _mix_rows(rows: Tensor, share: float) -> Tensor:
    # Not lerp: when fused, its rounding may depend on the place in memory, and so on the slice.
    return rows[1:] * share + rows[:-1] * (1 - share)


def soft_targets(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Return targets (n, classes) for class indices (n) or several labels per image (n, classes).

    `smoothing` is the fraction of each label that is spread over all classes.
    """
    off = smoothing / classes
    if labels.ndim == 2:
        return labels.float() * (1 - smoothing) + off
    targets = torch.full((len(labels), classes), off, device=labels.device)
    return targets.scatter_(1, labels[:, None], 1 - smoothing + off)
