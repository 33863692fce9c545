"""Arrays laid out as images, before anything is drawn."""

from __future__ import annotations

import numpy as np


def light(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Light an image (height, width, 3) of uint8 by a mask (height, width); the rest is dark."""
    scaled = mask / max(1e-12, mask.max())
    return (image * (0.2 + 0.8 * scaled[..., None])).round().astype(np.uint8)


def stretch(mask: np.ndarray) -> np.ndarray:
    """Stretch a mask from its least value, 0, to the one that 98 % of the cells stay below, 1.

    A few cells often have far more attention than others (arXiv 2309.16588), and rollout leaves
    some everywhere; on the scale from 0 to the largest neither lets the rest be seen.
    """
    low, high = mask.min(), np.quantile(mask, 0.98)
    return ((mask - low) / max(1e-12, high - low)).clip(0, 1)


def mosaic(tiles: np.ndarray) -> np.ndarray:
    """Lay tiles (rows, columns, height, width, …) out, a pixel of NaN between them."""
    rows, columns, height, width, *rest = tiles.shape
    sheet = np.full((rows, height + 1, columns, width + 1, *rest), np.nan)
    sheet[:, :height, :, :width] = np.moveaxis(tiles, 1, 2)
    return sheet.reshape(rows * (height + 1), columns * (width + 1), *rest)[:-1, :-1]


def middles(count: int, size: int) -> np.ndarray:
    """Give the middle of each of a mosaic's tiles along one axis, in its pixels."""
    return np.arange(count) * (size + 1) + (size - 1) / 2


def hide_missing(colors: np.ndarray) -> np.ndarray:
    """Give colors (…, 3) a fourth channel, which hides those that are NaN."""
    seen = ~np.isnan(colors).any(-1, keepdims=True)
    return np.concatenate([np.nan_to_num(colors), seen], axis=-1)


def by_row(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Arrange tiles (count, …) in rows of `columns`, the last one filled up with NaN."""
    rows = -(-len(tiles) // columns)
    full = np.full((rows * columns, *tiles.shape[1:]), np.nan)
    full[: len(tiles)] = tiles
    return full.reshape(rows, columns, *tiles.shape[1:])


def to_colors(pixels: np.ndarray) -> np.ndarray:
    """Show one channel as gray, and of more than three the first three."""
    return np.repeat(pixels[..., :1], 3, -1) if pixels.shape[-1] < 3 else pixels[..., :3]
