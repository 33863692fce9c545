"""Images as patches of pixels, and what a model may be asked to say of a patch it did not see.

Colors are those of the image, from 0 to 1, before any mean and std.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.spec import Size

Target = Literal["color", "colors", "pixels", "normalized-pixels"]
"""The mean color of 512 (Appendix B.1.2), those of 4 x 4 parts, or the pixels themselves."""

_LEVELS = 8  # Appendix B.1.2: 3 bits a channel
_PARTS = 4  # Appendix B.1.2: 4 x 4 parts a patch


def target_size(target: Target, patch: Size, channels: int) -> int:
    """Say how many numbers a prediction of one patch has."""
    height, width = patch
    if target in ("pixels", "normalized-pixels"):
        return height * width * channels
    if channels != 3:
        raise InputError(f"colors are of 3 channels, the model's images have {channels}")
    if target == "color":
        return _LEVELS**3
    if height % _PARTS or width % _PARTS:
        raise InputError(
            f"4 x 4 colors need patches whose sides 4 divides, not {height}x{width}; "
            "choose --mim.target color or pixels"
        )
    return _PARTS**2 * _LEVELS**3


def patchify(images: Tensor, patch: Size) -> Tensor:
    """Cut images (batch, height, width, channels) to (batch, patches, pixels, channels)."""
    batch, height, width, channels = images.shape
    cells = images.view(batch, height // patch[0], patch[0], width // patch[1], patch[1], -1)
    cells = cells.permute(0, 1, 3, 2, 4, 5)
    return cells.reshape(batch, -1, patch[0] * patch[1], channels)


def unpatchify(patches: Tensor, grid: Size, patch: Size) -> Tensor:
    """Join what `to_patches` cut."""
    cells = patches.view(len(patches), *grid, *patch, -1).permute(0, 1, 3, 2, 4, 5)
    return cells.reshape(len(patches), grid[0] * patch[0], grid[1] * patch[1], -1)


def make_targets(patches: Tensor, patch: Size, target: Target) -> Tensor:
    """Say what is to be predicted of patches (batch, n, pixels, channels) of colors from 0 to 1.

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
    height, width = patch[0] // _PARTS, patch[1] // _PARTS
    cells = patches.unflatten(2, (_PARTS, height, _PARTS, width))
    return cells.mean(dim=(3, 5)).flatten(2, 3)


def color_class(colors: Tensor) -> Tensor:
    """Give colors (…, 3) from 0 to 1 a number, by 3 bits of each channel, red first."""
    levels = (colors * _LEVELS).long().clamp_(0, _LEVELS - 1)
    return (levels[..., 0] * _LEVELS + levels[..., 1]) * _LEVELS + levels[..., 2]


def class_color(classes: Tensor) -> Tensor:
    """Give the middle color (…, 3) of classes."""
    levels = [classes // _LEVELS**2, classes // _LEVELS % _LEVELS, classes % _LEVELS]
    return (torch.stack(levels, dim=-1) + 0.5) / _LEVELS


def prediction_loss(
    predictions: Tensor, targets: Tensor, target: Target, *, absolute: bool = False
) -> Tensor:
    """Give each image's mean loss over its patches and their parts or pixels, in float32."""
    predictions = predictions.float()
    if target in ("color", "colors"):
        logits = predictions.unflatten(-1, (-1, _LEVELS**3))
        each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        return each.view(len(targets), -1).mean(1)
    apart = predictions - targets.float()
    return (apart.abs() if absolute else apart.square()).flatten(1).mean(1)


def image_patches(predictions: Tensor, patches: Tensor, patch: Size, target: Target) -> Tensor:
    """Show predictions as patches (batch, n, pixels, channels) of colors from 0 to 1.

    Normalized pixels get the mean and std of the true `patches`.
    """
    if target in ("color", "colors"):
        colors = class_color(predictions.unflatten(-1, (-1, _LEVELS**3)).argmax(-1))
        if target == "color":
            return colors.expand(*patches.shape)
        height, width = patch[0] // _PARTS, patch[1] // _PARTS
        cells = colors.unflatten(2, (_PARTS, 1, _PARTS, 1))
        cells = cells.expand(-1, -1, _PARTS, height, _PARTS, width, -1)
        return cells.reshape(patches.shape)
    shown = predictions.float()
    if target == "normalized-pixels":
        variance, mean = torch.var_mean(patches.flatten(2), dim=-1, keepdim=True)
        shown = shown * (variance + 1e-6).sqrt() + mean
    return shown.view(patches.shape).clamp(0, 1)
