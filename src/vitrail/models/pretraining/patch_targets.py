"""Images as patches of pixels, and the targets of masked image modeling.

Colors are those of the image, from 0 to 1, before normalization; pixels may be those after it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.pretraining.mim import LEVELS, PARTS, Target
from vitrail.models.spec import Size


def patchify(images: Tensor, patch: Size) -> Tensor:
    """Cut images (batch, height, width, channels) to (batch, patches, pixels, channels)."""
    batch, height, width, channels = images.shape
    cells = images.view(batch, height // patch[0], patch[0], width // patch[1], patch[1], -1)
    cells = cells.permute(0, 1, 3, 2, 4, 5)
    return cells.reshape(batch, -1, patch[0] * patch[1], channels)


def unpatchify(patches: Tensor, grid: Size, patch: Size) -> Tensor:
    """Join what `patchify` cut."""
    cells = patches.view(len(patches), *grid, *patch, -1).permute(0, 1, 3, 2, 4, 5)
    return cells.reshape(len(patches), grid[0] * patch[0], grid[1] * patch[1], -1)


def make_targets(patches: Tensor, patch: Size, target: Target) -> Tensor:
    """Return the targets for patches (batch, n, pixels, channels); colors are from 0 to 1.

    Classes (batch, n, parts) of colors, or numbers (batch, n, outputs).
    """
    if target == "color":
        return color_class(patches.mean(2, keepdim=True))
    if target == "colors":
        return color_class(_parts(patches, patch))
    flat = patches.flatten(2)
    if target == "pixels":
        return flat
    variance, mean = torch.var_mean(flat, dim=-1, keepdim=True)
    return (flat - mean) / (variance + 1e-6).sqrt()  # MAE's epsilon


def _parts(patches: Tensor, patch: Size) -> Tensor:
    """Average 4 x 4 parts of patches: (batch, n, 16, channels)."""
    height, width = patch[0] // PARTS, patch[1] // PARTS
    cells = patches.unflatten(2, (PARTS, height, PARTS, width))
    return cells.mean(dim=(3, 5)).flatten(2, 3)


def color_class(colors: Tensor) -> Tensor:
    """Return the class of colors (…, 3) from 0 to 1: 3 bits per channel, red first."""
    levels = (colors * LEVELS).long().clamp_(0, LEVELS - 1)
    return (levels[..., 0] * LEVELS + levels[..., 1]) * LEVELS + levels[..., 2]


def class_color(classes: Tensor) -> Tensor:
    """Return the central color (…, 3) of classes."""
    levels = [classes // LEVELS**2, classes // LEVELS % LEVELS, classes % LEVELS]
    return (torch.stack(levels, dim=-1) + 0.5) / LEVELS


def prediction_loss(
    predictions: Tensor, targets: Tensor, target: Target, *, absolute: bool = False
) -> Tensor:
    """Return each image's mean loss over its patches and their parts or pixels, in float32."""
    predictions = predictions.float()
    if target in ("color", "colors"):
        logits = predictions.unflatten(-1, (-1, LEVELS**3))
        each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        return each.view(len(targets), -1).mean(1)
    apart = predictions - targets.float()
    return (apart.abs() if absolute else apart.square()).flatten(1).mean(1)


def image_patches(predictions: Tensor, patches: Tensor, patch: Size, target: Target) -> Tensor:
    """Return predictions as patches (batch, n, pixels, channels), on the scale of the true ones.

    Normalized pixels get the mean and std of the true `patches`.
    """
    if target in ("color", "colors"):
        colors = class_color(predictions.unflatten(-1, (-1, LEVELS**3)).argmax(-1))
        if target == "color":
            return colors.expand(*patches.shape)
        height, width = patch[0] // PARTS, patch[1] // PARTS
        cells = colors.unflatten(2, (PARTS, 1, PARTS, 1))
        cells = cells.expand(-1, -1, PARTS, height, PARTS, width, -1)
        return cells.reshape(patches.shape)
    shown = predictions.float()
    if target == "normalized-pixels":
        variance, mean = torch.var_mean(patches.flatten(2), dim=-1, keepdim=True)
        shown = shown * (variance + 1e-6).sqrt() + mean
    return shown.view(patches.shape)
