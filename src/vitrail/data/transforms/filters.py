"""Deterministic operations on one image: uint8 (height, width, channels) in, the same shape out.

operations.py chooses among them. TensorFlow, with which AugReg was trained, and Pillow, which
torchvision and timm use, round differently: where that matters an argument says which, and the
default is Pillow's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

_VALUES = np.arange(256)
TENSORFLOW_GRAY = (0.2989 * 255.5 / 255, 0.587 * 255.5 / 255, 0.114 * 255.5 / 255, -0.5)
"""tf.image.rgb_to_grayscale as Pillow's matrix: it scales 0 .. 1 to 255.5 and cuts off."""


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
    """Keep the highest bits of each value."""
    return image & np.uint8(256 - (1 << (8 - bits)))


def solarize(image: np.ndarray, threshold: float) -> np.ndarray:
    """Invert the values at or above a threshold."""
    turned = np.where(threshold > _VALUES, _VALUES, 255 - _VALUES)
    return np.take(turned.astype(np.uint8), image)


def solarize_add(image: np.ndarray, amount: int) -> np.ndarray:
    """Add an amount to the values below 128."""
    added = np.where(_VALUES < 128, np.minimum(_VALUES + amount, 255), _VALUES)
    return np.take(added.astype(np.uint8), image)


def autocontrast(image: np.ndarray, real: type[np.floating] = np.float64) -> np.ndarray:
    """Stretch each channel to 0 .. 255 and truncate; TensorFlow does so in float32."""

    def stretch(channel: np.ndarray) -> np.ndarray:
        low, high = channel.min(), channel.max()
        if low == high:
            return _VALUES
        scale = real(255) / real(high - low)
        return np.clip(_VALUES.astype(real) * scale + -real(low) * scale, 0, 255)

    return _map_channels(image, stretch)


def equalize(image: np.ndarray) -> np.ndarray:
    """Equalize the histogram of each channel."""

    def spread(channel: np.ndarray) -> np.ndarray:
        counts = np.bincount(channel.ravel(), minlength=256)
        step = (channel.size - counts[channel.max()]) // 255
        if step == 0:
            return _VALUES
        below = np.cumsum(counts) - counts
        return np.minimum((below + step // 2) // step, 255)

    return _map_channels(image, spread)


def blend(base: np.ndarray | int, image: np.ndarray, factor: float) -> np.ndarray:
    """Interpolate from a base (0) to the image (1), and beyond; values are truncated."""
    if isinstance(base, int):
        base = np.full_like(image, base)
    mixed = Image.blend(_flatten(base), _flatten(image), factor)
    return np.array(mixed).reshape(image.shape)


def gray(image: np.ndarray, matrix: tuple[float, ...] | None = None) -> np.ndarray:
    """Convert an RGB image to gray, by Pillow's weights or a matrix; others are unchanged."""
    if image.shape[2] != 3:
        return image
    return np.array(Image.fromarray(image).convert("L", matrix).convert("RGB"))


def mean_gray(image: np.ndarray) -> np.ndarray:
    """Fill an image with the mean of its gray values; other than RGB, with each channel's mean."""
    channels = gray(image)[..., :1] if image.shape[2] == 3 else image
    means = [int(channels[..., i].mean() + 0.5) for i in range(channels.shape[2])]
    return np.broadcast_to(np.array(means, np.uint8), image.shape)


def smooth(image: np.ndarray, add: int = 6) -> np.ndarray:
    """Average 3 x 3 pixels, the middle one 5 times; the border stays.

    Pillow rounds thirteenths, so it adds 6 of them; TensorFlow adds 0.
    """
    wide = image.astype(np.uint16)
    rows = wide[:-2] + wide[1:-1] + wide[2:]
    total = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * wide[1:-1, 1:-1]
    smoothed = image.copy()
    smoothed[1:-1, 1:-1] = (total + add) // 13
    return smoothed


def turn_hue(image: np.ndarray, turn: float) -> np.ndarray:
    """Shift the hue by a fraction of the color circle, as torchvision does; only of RGB images."""
    if image.shape[2] != 3:
        return image
    colors = np.array(Image.fromarray(image).convert("HSV"))
    colors[..., 0] += np.uint8(int(turn * 255) % 256)
    return np.array(Image.fromarray(colors, "HSV").convert("RGB"))


class Outside(NamedTuple):
    """How an image is moved: its color outside, for all channels or each, and what is between."""

    fill: int | tuple[int, ...]
    resample: Image.Resampling = Image.Resampling.NEAREST

    def per_channel(self, channels: int) -> tuple[int, ...]:
        """Return the fill of each channel."""
        return (self.fill,) * channels if isinstance(self.fill, int) else self.fill


def transform(image: np.ndarray, matrix: Sequence[float], outside: Outside) -> np.ndarray:
    """Take each pixel (x, y) from (ax + by + c, dx + ey + f), or the fill outside.

    Coordinates are pixel centers: the first is (0.5, 0.5), as in Pillow.
    """
    channels = image.shape[2]
    fill = outside.per_channel(channels)
    if channels not in (1, 3):
        parts = zip(np.split(image, channels, axis=2), fill, strict=True)
        moved = [transform(part, matrix, outside._replace(fill=each)) for part, each in parts]
        return np.concatenate(moved, axis=2)
    pillow = Image.fromarray(image[..., 0] if channels == 1 else image)
    affine = Image.Transform.AFFINE
    moved = pillow.transform(pillow.size, affine, matrix, outside.resample, fillcolor=fill)
    return np.array(moved).reshape(image.shape)


def rotate(image: np.ndarray, degrees: float, outside: Outside) -> np.ndarray:
    """Rotate counter-clockwise around the center."""
    x, y = image.shape[1] / 2, image.shape[0] / 2
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)
    return transform(image, matrix, outside)


def _map_channels(image: np.ndarray, table: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Map each channel through a table of 256 values made for it."""
    mapped = np.empty_like(image)
    for index in range(image.shape[2]):
        channel = np.ascontiguousarray(image[..., index])
        mapped[..., index] = np.take(table(channel).astype(np.uint8), channel)
    return mapped


def _flatten(image: np.ndarray) -> Image.Image:
    """Put the channels side by side, for operations that treat all values alike."""
    return Image.fromarray(image.reshape(len(image), -1))
