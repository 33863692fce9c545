"""Draw many small images at once: outlines, patterns, smooth fields, colors, noise.

Pixels only go through operations that IEEE 754 rounds in one way (no sines), so that an image is
the same in any batch and on any machine. Arrays are float32, coordinates are pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sin, sqrt

import numpy as np

PATTERNS = ("plain", "striped", "checked", "dotted")
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601: how bright red, green and blue look


def _disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sqrt(x * x + y * y) - 0.9


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(y)) - 0.8


def _triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x) * (sqrt(3) / 2) + y * 0.5, -y) - 0.55


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fold the plane to a tenth of a star, which has one straight edge."""
    x = np.abs(x)
    for normal in ((cos(pi / 5), -sin(pi / 5)), (-cos(pi / 5), -sin(pi / 5))):
        across = 2 * np.maximum(normal[0] * x + normal[1] * y, 0)
        x, y = x - across * normal[0], y - across * normal[1]
    x, y = np.abs(x), y - 1.1
    edge = (0.45 * sin(pi / 5), 0.45 * cos(pi / 5) - 1)
    return (x * -edge[1] + y * edge[0]) / sqrt(edge[0] ** 2 + edge[1] ** 2)


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.sqrt(x * x + y * y) - 0.7) - 0.24


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = np.abs(x), np.abs(y)
    return np.maximum(np.maximum(x, y) - 0.95, np.minimum(x, y) - 0.3)


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Join a square on its tip and a disc on each of its two upper sides."""
    x, y = np.abs(x), y - 0.15
    along, across = (x + y) * sqrt(0.5), (x - y) * sqrt(0.5)
    square = np.maximum(np.abs(along), np.abs(across)) - 0.52
    return np.minimum(square, np.sqrt(along * along + (across - 0.52) ** 2) - 0.52)


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    across = y * y
    bite = 0.75 - np.sqrt((x - 0.5) ** 2 + across)
    return np.maximum(np.sqrt(x * x + across) - 0.95, bite)


def _oval(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = x / 1.05, y / 0.5
    level = np.sqrt(x * x + y * y) + 1e-3
    return level * (level - 1) / np.sqrt((x / 1.05) ** 2 + (y / 0.5) ** 2 + 1e-3)


def _flower(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Draw six petals: the radius goes with cos(6 a), a polynomial of cos(a)^2."""
    far = np.sqrt(x * x + y * y) + 1e-3
    square = (x / far) ** 2
    petals = ((32 * square - 48) * square + 18) * square - 1
    return (far - 0.72 - 0.24 * petals) * 0.7


def _frame(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.maximum(np.abs(x), np.abs(y)) - 0.62) - 0.2


def _arrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    shaft = np.maximum(x - 0.24, np.abs(y - 0.45) - 0.5)
    head = np.maximum(x * 0.77 - (y + 0.98) * 0.64, y - 0.05)
    return np.minimum(shaft, head)


OUTLINES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "ring": _ring,
    "cross": _cross,
    "heart": _heart,
    "crescent": _crescent,
    "oval": _oval,
    "flower": _flower,
    "frame": _frame,
    "arrow": _arrow,
}
"""Signed distances to the edge of shapes of a radius of about 1; negative inside."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """The fill of a shape or background, per image: two colors, and how they alternate."""

    kind: np.ndarray
    """Indices into `PATTERNS`."""
    period: np.ndarray
    """Pixels from one stripe, square or dot to the next of the same color."""
    angle: np.ndarray
    colors: tuple[np.ndarray, np.ndarray]
    """RGB from 0 to 1: (n, 3) each. A plain fill has the first."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A shape per image: its outline, position and fill."""

    outline: np.ndarray
    """Indices into `OUTLINES`."""
    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray
    angle: np.ndarray
    fill: Pattern


def paint(canvas: np.ndarray, figure: Figure, window: int) -> None:
    """Draw a figure on each image (n, 3, size, size); it must fit into a window of that side."""
    count, _, size, _ = canvas.shape
    window = min(window, size)
    left, top = (
        np.clip(np.rint(center - window / 2), 0, size - window).astype(np.int64)
        for center in (figure.x, figure.y)
    )
    x = _column(left + 0.5 - figure.x) + np.arange(window, dtype=np.float32)
    y = _column(top + 0.5 - figure.y) + np.arange(window, dtype=np.float32)
    cover = _cover(figure, x, y)
    if window == size:
        _blend(canvas, cover, _mixed(figure.fill, x, y), figure.fill)
        return
    rows = (top[:, None] + np.arange(window))[:, None, :, None]
    columns = (left[:, None] + np.arange(window))[:, None, None, :]
    place = (np.arange(count)[:, None, None, None], np.arange(3)[:, None, None], rows, columns)
    part = canvas[place]
    _blend(part, cover, _mixed(figure.fill, x, y), figure.fill)
    canvas[place] = part


def _cover(figure: Figure, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the fraction of each pixel inside the outline; x and y are relative to its center."""
    across, down = _turned(x, y, figure.angle, 1 / figure.radius)
    cover = np.empty(across.shape, np.float32)
    for number, outline in enumerate(OUTLINES.values()):
        some = np.flatnonzero(figure.outline == number)
        if len(some):
            distance = outline(across[some], down[some])
            distance *= -_column(figure.radius[some])[..., None]
            distance += 0.5
            cover[some] = np.clip(distance, 0, 1, out=distance)
    return cover


def _turned(
    x: np.ndarray, y: np.ndarray, angle: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rotate and scale a grid given by its columns and rows."""
    along, across = _column(np.cos(angle) * scale), _column(np.sin(angle) * scale)
    first = (x * along)[:, None, :] + (y * across)[:, :, None]
    second = (y * along)[:, :, None] - (x * across)[:, None, :]
    return first, second


def _mixed(pattern: Pattern, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the weight of the second color in each pixel."""
    mix = np.zeros((len(x), y.shape[1], x.shape[1]), np.float32)
    for number, kind in enumerate(PATTERNS[1:], 1):
        some = np.flatnonzero(pattern.kind == number)
        if len(some):
            period = pattern.period[some]
            waves = _turned(x[some], y[some], pattern.angle[some], 1 / period)
            one, two = (np.abs(wave - np.floor(wave) - 0.5) for wave in waves)
            sharp = _column(period)[..., None]
            if kind == "dotted":
                mix[some] = _step((np.sqrt(one * one + two * two) - 0.32) * sharp)
                continue
            mix[some] = one = _step((one - 0.25) * sharp)
            if kind == "checked":
                two = _step((two - 0.25) * sharp)
                mix[some] = one + two - 2 * one * two
    return mix


def _step(distance: np.ndarray) -> np.ndarray:
    distance += 0.5
    return np.clip(distance, 0, 1, out=distance)


def _blend(canvas: np.ndarray, cover: np.ndarray, mix: np.ndarray, pattern: Pattern) -> None:
    """Blend the pattern over the canvas where it covers."""
    second = cover * mix
    first = cover - second
    rest = 1 - cover
    for channel in range(3):
        plane = canvas[:, channel]
        plane *= rest
        for weight, color in zip((first, second), pattern.colors, strict=True):
            plane += weight * _column(color[:, channel])[..., None]


def fill(canvas: np.ndarray, pattern: Pattern, field: np.ndarray) -> None:
    """Fill whole images with a pattern whose colors also vary with a field of 0 to 1."""
    x = np.broadcast_to(np.arange(canvas.shape[-1], dtype=np.float32), canvas.shape[::3])
    mix = _mixed(pattern, x, x)
    mix += field
    mix *= 0.5
    first, second = pattern.colors
    for channel in range(3):
        step = _column(second[:, channel] - first[:, channel])[..., None]
        canvas[:, channel] = mix * step + _column(first[:, channel])[..., None]


def smooth_field(knots: np.ndarray, size: int) -> np.ndarray:
    """Interpolate a few values (n, k, k) to images (n, size, size), bilinearly."""
    place = (np.arange(size, dtype=np.float32) + 0.5) * ((knots.shape[1] - 1) / size)
    low = place.astype(np.int64)
    part = place - low
    knots = knots.astype(np.float32)
    rows = knots[:, low] * (1 - part)[:, None] + knots[:, low + 1] * part[:, None]
    return rows[:, :, low] * (1 - part) + rows[:, :, low + 1] * part


def color(hue: np.ndarray, saturation: np.ndarray, luma: np.ndarray) -> np.ndarray:
    """Make a color (n, 3) of a hue (a full turn is 1), a saturation and a luma."""
    turns = (np.array([5.0, 3.0, 1.0]) + 6 * hue[:, None]) % 6
    pure = 1 - saturation[:, None] * np.clip(np.minimum(turns, 4 - turns), 0, 1)
    bright, luma = (pure * _LUMA).sum(1, keepdims=True), luma[:, None]
    darker = pure * np.minimum(luma / bright, 1)
    return darker + (1 - darker) * np.maximum(luma - bright, 0) / (1 - np.minimum(bright, luma))


def grain(words: np.ndarray, size: int) -> np.ndarray:
    """Make noise in [-1, 1] for each channel (n, 3, size, size) from one word per image."""
    pixels = np.arange(size * size, dtype=np.uint32).reshape(size, size) * np.uint32(0x9E3779B1)
    mixed = pixels ^ words.astype(np.uint32)[:, None, None]
    for factor, shift in ((0x85EBCA6B, 13), (0xC2B2AE35, 16)):  # MurmurHash3's last steps
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    parts = mixed.astype("<u4", copy=False).view(np.uint8).reshape(*mixed.shape, 4)
    return (np.moveaxis(parts[..., 1:], -1, 1) - np.float32(127.5)) * np.float32(1 / 127.5)


def _column(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float32)[:, None]
