"""Pictures as patches of pixels, and what a model may be asked to say of a patch it did not see.

Colours are those of the picture, from 0 to 1, before any mean and deviation.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.spec import Size

Target = Literal["colour", "colours", "pixels", "normalised-pixels"]
"""The mean colour of 512 (Appendix B.1.2), those of 4 x 4 parts, or the pixels themselves."""

_LEVELS = 8  # Appendix B.1.2: 3 bits a channel
_PARTS = 4  # Appendix B.1.2: 4 x 4 parts a patch


def outputs_of(target: Target, patch: Size, channels: int) -> int:
    """Say how many numbers a prediction of one patch has."""
    height, width = patch
    if target in ("pixels", "normalised-pixels"):
        return height * width * channels
    if channels != 3:
        raise InputError(f"colours are of 3 channels, the model's pictures have {channels}")
    if target == "colour":
        return _LEVELS**3
    if height % _PARTS or width % _PARTS:
        raise InputError(
            f"4 x 4 colours need patches whose sides 4 divides, not {height}x{width}; "
            "choose --pretext.target colour or pixels"
        )
    return _PARTS**2 * _LEVELS**3


def to_patches(pictures: Tensor, patch: Size) -> Tensor:
    """Cut pictures (batch, height, width, channels) to (batch, patches, pixels, channels)."""
    batch, height, width, channels = pictures.shape
    cells = pictures.view(batch, height // patch[0], patch[0], width // patch[1], patch[1], -1)
    cells = cells.permute(0, 1, 3, 2, 4, 5)
    return cells.reshape(batch, -1, patch[0] * patch[1], channels)


def from_patches(patches: Tensor, grid: Size, patch: Size) -> Tensor:
    """Join what `to_patches` cut."""
    cells = patches.view(len(patches), *grid, *patch, -1).permute(0, 1, 3, 2, 4, 5)
    return cells.reshape(len(patches), grid[0] * patch[0], grid[1] * patch[1], -1)


def targets_of(patches: Tensor, patch: Size, target: Target) -> Tensor:
    """Say what is to be predicted of patches (batch, n, pixels, channels) of colours from 0 to 1.

    Classes (batch, n, parts) of colours, or numbers (batch, n, outputs).
    """
    if target == "colour":
        return colour_class(patches.mean(2, keepdim=True))
    if target == "colours":
        return colour_class(_parts(patches, patch))
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


def colour_class(colours: Tensor) -> Tensor:
    """Give colours (…, 3) from 0 to 1 a number, by 3 bits of each channel, red first."""
    levels = (colours * _LEVELS).long().clamp_(0, _LEVELS - 1)
    return (levels[..., 0] * _LEVELS + levels[..., 1]) * _LEVELS + levels[..., 2]


def class_colour(classes: Tensor) -> Tensor:
    """Give the middle colour (…, 3) of classes."""
    levels = [classes // _LEVELS**2, classes // _LEVELS % _LEVELS, classes % _LEVELS]
    return (torch.stack(levels, dim=-1) + 0.5) / _LEVELS


def distance(
    predictions: Tensor, targets: Tensor, target: Target, *, absolute: bool = False
) -> Tensor:
    """Give each picture's mean loss over its patches and their parts or pixels, in float32."""
    predictions = predictions.float()
    if target in ("colour", "colours"):
        logits = predictions.unflatten(-1, (-1, _LEVELS**3))
        each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        return each.view(len(targets), -1).mean(1)
    apart = predictions - targets.float()
    return (apart.abs() if absolute else apart.square()).flatten(1).mean(1)


def picture_patches(predictions: Tensor, patches: Tensor, patch: Size, target: Target) -> Tensor:
    """Show predictions as patches (batch, n, pixels, channels) of colours from 0 to 1.

    Normalised pixels get the mean and deviation of the true `patches`.
    """
    if target in ("colour", "colours"):
        colours = class_colour(predictions.unflatten(-1, (-1, _LEVELS**3)).argmax(-1))
        if target == "colour":
            return colours.expand(*patches.shape)
        height, width = patch[0] // _PARTS, patch[1] // _PARTS
        cells = colours.unflatten(2, (_PARTS, 1, _PARTS, 1))
        cells = cells.expand(-1, -1, _PARTS, height, _PARTS, width, -1)
        return cells.reshape(patches.shape)
    shown = predictions.float()
    if target == "normalised-pixels":
        variance, mean = torch.var_mean(patches.flatten(2), dim=-1, keepdim=True)
        shown = shown * (variance + 1e-6).sqrt() + mean
    return shown.view(patches.shape).clamp(0, 1)
