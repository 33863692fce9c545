"""Operations on one picture in closed form: uint8 (height, width, channels) in, the same shape out.

None draws a number; operations.py decides which to use. TensorFlow, in which AugReg trained, and
Pillow, on which torchvision and timm stand, round in different ways: where they do, an argument
says which, and the default is Pillow's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

_VALUES = np.arange(256)
TENSORFLOW_GREY = (0.2989 * 255.5 / 255, 0.587 * 255.5 / 255, 0.114 * 255.5 / 255, -0.5)
"""tf.image.rgb_to_grayscale as Pillow's matrix: it scales 0 .. 1 to 255.5 and cuts off."""


def posterize(picture: np.ndarray, bits: int) -> np.ndarray:
    """Keep the highest bits of each value."""
    return picture & np.uint8(256 - (1 << (8 - bits)))


def solarize(picture: np.ndarray, threshold: float) -> np.ndarray:
    """Invert the values from a threshold on."""
    turned = np.where(threshold > _VALUES, _VALUES, 255 - _VALUES)
    return np.take(turned.astype(np.uint8), picture)


def solarize_add(picture: np.ndarray, amount: int) -> np.ndarray:
    """Add an amount to the values below 128."""
    added = np.where(_VALUES < 128, np.minimum(_VALUES + amount, 255), _VALUES)
    return np.take(added.astype(np.uint8), picture)


def autocontrast(picture: np.ndarray, real: type[np.floating] = np.float64) -> np.ndarray:
    """Stretch each channel to 0 .. 255 and cut fractions off; TensorFlow does so in float32."""

    def stretch(channel: np.ndarray) -> np.ndarray:
        low, high = channel.min(), channel.max()
        if low == high:
            return _VALUES
        scale = real(255) / real(high - low)
        return np.clip(_VALUES.astype(real) * scale + -real(low) * scale, 0, 255)

    return _map_channels(picture, stretch)


def equalize(picture: np.ndarray) -> np.ndarray:
    """Spread each channel's values so that all are about equally frequent."""

    def spread(channel: np.ndarray) -> np.ndarray:
        counts = np.bincount(channel.ravel(), minlength=256)
        step = (channel.size - counts[channel.max()]) // 255
        if step == 0:
            return _VALUES
        below = np.cumsum(counts) - counts
        return np.minimum((below + step // 2) // step, 255)

    return _map_channels(picture, spread)


def blend(base: np.ndarray | int, picture: np.ndarray, factor: float) -> np.ndarray:
    """Go from a base (0) to the picture (1), and beyond; fractions are cut off."""
    if isinstance(base, int):
        base = np.full_like(picture, base)
    mixed = Image.blend(_flatten(base), _flatten(picture), factor)
    return np.array(mixed).reshape(picture.shape)


def grey(picture: np.ndarray, matrix: tuple[float, ...] | None = None) -> np.ndarray:
    """Take the colour out of an RGB picture, by Pillow's weights or a matrix; others stay."""
    if picture.shape[2] != 3:
        return picture
    return np.array(Image.fromarray(picture).convert("L", matrix).convert("RGB"))


def mean_grey(picture: np.ndarray) -> np.ndarray:
    """Fill a picture with the mean of its grey; channels that are no RGB have a mean each."""
    channels = grey(picture)[..., :1] if picture.shape[2] == 3 else picture
    means = [int(channels[..., i].mean() + 0.5) for i in range(channels.shape[2])]
    return np.broadcast_to(np.array(means, np.uint8), picture.shape)


def smooth(picture: np.ndarray, add: int = 6) -> np.ndarray:
    """Average 3 x 3 pixels, the middle one 5 times; the border stays.

    Pillow rounds thirteenths, so it adds 6 of them; TensorFlow adds 0.
    """
    wide = picture.astype(np.uint16)
    rows = wide[:-2] + wide[1:-1] + wide[2:]
    total = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * wide[1:-1, 1:-1]
    smoothed = picture.copy()
    smoothed[1:-1, 1:-1] = (total + add) // 13
    return smoothed


def turn_hue(picture: np.ndarray, turn: float) -> np.ndarray:
    """Turn the colour circle by a part of it, as torchvision does; only of RGB pictures."""
    if picture.shape[2] != 3:
        return picture
    colours = np.array(Image.fromarray(picture).convert("HSV"))
    colours[..., 0] += np.uint8(int(turn * 255) % 256)
    return np.array(Image.fromarray(colours, "HSV").convert("RGB"))


def transform(picture: np.ndarray, matrix: Sequence[float], fill: int) -> np.ndarray:
    """Take each pixel (x, y) from (ax + by + c, dx + ey + f), the nearest, or the fill outside.

    Coordinates are of pixels' centres, so that the first is (0.5, 0.5), as in Pillow.
    """
    channels = picture.shape[2]
    if channels not in (1, 3):
        parts = [transform(part, matrix, fill) for part in np.split(picture, channels, axis=2)]
        return np.concatenate(parts, axis=2)
    image = Image.fromarray(picture[..., 0] if channels == 1 else picture)
    affine, nearest = Image.Transform.AFFINE, Image.Resampling.NEAREST
    moved = image.transform(image.size, affine, matrix, nearest, fillcolor=(fill,) * channels)
    return np.array(moved).reshape(picture.shape)


def rotate(picture: np.ndarray, degrees: float, fill: int) -> np.ndarray:
    """Turn counter-clockwise around the middle."""
    x, y = picture.shape[1] / 2, picture.shape[0] / 2
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)
    return transform(picture, matrix, fill)


def _map_channels(picture: np.ndarray, table: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Send each channel through a table of 256 values that is made for it."""
    mapped = np.empty_like(picture)
    for index in range(picture.shape[2]):
        channel = np.ascontiguousarray(picture[..., index])
        mapped[..., index] = np.take(table(channel).astype(np.uint8), channel)
    return mapped


def _flatten(picture: np.ndarray) -> Image.Image:
    """Lay the channels side by side, for what treats all values alike."""
    return Image.fromarray(picture.reshape(len(picture), -1))
