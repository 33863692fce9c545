"""Attention masks placed back onto the original images, however these were cropped."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.data.dataset import Content
from vitrail.data.decoding.decode import decode
from vitrail.data.transforms.geometry import fit_to_size
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.plotting.tiles import stretch, to_colors

_HEAT = np.array(
    [(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], np.float32
)
"""From cold to hot, evenly spaced: dark, violet, red, orange, yellow."""


def place_mask(mask: np.ndarray, height: int, width: int, preprocess: Preprocess) -> np.ndarray:
    """Lay a mask over a whole upright image of this size: float32 (height, width).

    The mask (rows, columns) is of the model's input, into which `preprocess` made the image. It
    is interpolated between its cells' centers; what the model did not see is 0.
    """
    before, size, after = fit_to_size(height, width, preprocess)
    sides = zip((height, width), before[:2], before[2:], size, after[:2], after[2:], strict=True)
    axes = []
    for length, start, extent, resized, cut, kept in sides:
        place = (torch.arange(length, dtype=torch.float64) + 0.5 - start) * (resized / extent) - cut
        axes.append(2 * place / kept - 1)  # from -1 to 1 over the input
    down, across = torch.meshgrid(*axes, indexing="ij")
    cells = torch.from_numpy(np.ascontiguousarray(mask, np.float32))[None, None]
    points = torch.stack([across, down], dim=-1)[None].to(cells.dtype)
    placed = F.grid_sample(cells, points, padding_mode="border", align_corners=False)[0, 0]
    seen = (down.abs() <= 1) & (across.abs() <= 1)
    return placed.where(seen, 0).numpy()


def overlay(
    content: Content, mask: np.ndarray, preprocess: Preprocess, *, opacity: float = 0.6
) -> np.ndarray:
    """Blend a mask's heat into the whole image: uint8 (height, width, 3).

    The image is a file's bytes, which are turned upright as the model saw them, or upright
    pixels. The mask (rows, columns) is stretched first, so that few cells don't outshine the rest.
    """
    if isinstance(content, bytes):
        channels = 3 if preprocess.channels == 1 else preprocess.channels
        content = decode(content, channels=channels, reading=preprocess.reading)
    height, width = content.shape[:2]
    image = to_colors(content).astype(np.float32)
    heat = color_heat(place_mask(stretch(mask), height, width, preprocess))
    return np.rint(image + opacity * (heat - image)).astype(np.uint8)


def color_heat(values: np.ndarray) -> np.ndarray:
    """Give values (…) from 0 to 1 colors (…, 3) from cold to hot, as float32 up to 255."""
    stops = np.linspace(0, 1, len(_HEAT))
    return np.stack([np.interp(values, stops, part) for part in _HEAT.T], -1).astype(np.float32)
