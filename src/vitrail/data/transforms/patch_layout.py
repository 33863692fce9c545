"""Images of different sizes in one array of uint8: their patches, each with its place (NaFlex).

A patch is one row: its row and column in the image, two bytes each, 1 (0 for padding), and then its
pixels row by row, channels last. So a batch is an array like any other, whatever its images' sizes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.data.transforms.preprocess import Preprocess

_PLACE = 5  # bytes before the pixels


def blank_patches(count: int, preprocess: Preprocess) -> np.ndarray:
    """Make black images of one patch each: uint8 (count, budget, 5 + pixels)."""
    pixels = preprocess.patch_size**2 * preprocess.channels
    images = np.zeros((count, preprocess.patches, _PLACE + pixels), np.uint8)
    images[:, 0, _PLACE - 1] = 1
    return images


def lay_out_patches(image: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """Cut an image of whole patches (height, width, channels) to a row for each: (budget, …)."""
    side, (height, width, channels) = preprocess.patch_size, image.shape
    rows, columns = height // side, width // side
    cells = image.reshape(rows, side, columns, side, channels).swapaxes(1, 2)
    laid = blank_patches(1, preprocess)[0]
    there = laid[: rows * columns]
    y, x = (each.ravel() for each in np.indices((rows, columns)))
    there[:, :_PLACE] = np.stack([y >> 8, y & 255, x >> 8, x & 255, np.ones_like(x)], axis=1)
    there[:, _PLACE:] = cells.reshape(rows * columns, -1)
    return laid


def normalize_patches(batch: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalize patches (n, budget, 5 + pixels) to what a ViT takes: float (n, budget, 3 + pixels).

    The first three numbers of a patch are its row, its column, and whether it is one.
    """
    place, pixels = batch[..., :_PLACE].to(scale.dtype), batch[..., _PLACE:].to(scale.dtype)
    scale, shift = scale.flatten(), shift.flatten()
    pixels = pixels.unflatten(-1, (-1, len(scale))).mul_(scale).add_(shift).flatten(-2)
    at = torch.stack([place[..., 0] * 256 + place[..., 1], place[..., 2] * 256 + place[..., 3]], -1)
    return torch.cat([at, place[..., 4:], pixels], dim=-1)
