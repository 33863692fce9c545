"""Procedural color images without limit, each a pure function of a seed and its number.

An image shows one large shape on a ground. Its class is what the shape is: its outline, from
`medium` on also its pattern, and in `hard` whether its colors are warm or cool. Place, size, turn,
colors, ground, light, noise and small shapes around it tell nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import pi

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ArrayDataset, FixedSizeDataset, ImageDataset
from vitrail.data.datasets.builtin.drawing import (
    OUTLINES,
    PATTERNS,
    Figure,
    Pattern,
    color,
    fill,
    grain,
    paint,
    smooth,
)
from vitrail.data.rng import CounterRNG
from vitrail.data.split import choose

_TEST = 1 << 40  # the number of the first test image; training images are counted from 0
_IN_MEMORY = 200_000_000  # bytes of images up to which they are drawn once, and kept
_AT_ONCE = 1 << 17  # pixels drawn together, so that the processor's cache holds them
_KNOTS = 4  # of a smooth field, each way
_HUES = {"warm": (-0.06, 0.16), "cool": (0.46, 0.76)}  # red to yellow, cyan to violet


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """What images of one kind have, and what decides their class."""

    outlines: int
    """How many of the outlines, from the first."""
    patterns: int
    hues: tuple[str, ...] = ()
    """Families of colors that count; with none, all colors do."""
    radius: tuple[float, float]
    """Of the large shape, as a part of the image's side."""
    ground: float
    """How far the two colors of the ground are apart in brightness; 0 is a plain ground."""
    around: int = 0
    """Small shapes, which may lie behind the large one."""
    before: int = 0
    """Small shapes that cover a part of it."""
    light: float
    """How much brighter or darker places are."""
    noise: float

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes: the hue changes slowest, the outline fastest."""
        outlines, patterns = list(OUTLINES)[: self.outlines], PATTERNS[: self.patterns]
        kinds = [f"{p} {o}" if self.patterns > 1 else o for p in patterns for o in outlines]
        return tuple(f"{hue} {kind}" for hue in self.hues for kind in kinds) or tuple(kinds)


DIFFICULTIES = {
    "easy": Difficulty(
        outlines=6, patterns=1, radius=(0.26, 0.42), ground=0, light=0.05, noise=0.02
    ),
    "medium": Difficulty(
        outlines=8, patterns=3, radius=(0.25, 0.4), ground=0.12, around=2, light=0.2, noise=0.05
    ),
    "hard": Difficulty(
        outlines=12,
        patterns=4,
        hues=("warm", "cool"),
        radius=(0.24, 0.38),
        ground=0.2,
        around=4,
        before=1,
        light=0.3,
        noise=0.08,
    ),
}


_NUMBERS = {"size": (32, 16, 512), "count": (20_000, 1, 10_000_000), "seed": (0, 0, 2**64 - 1)}
"""The other options: what each is by itself, at least and at most."""


def open_shapes(options: str, split: str) -> ImageDataset:
    """Open shapes by options such as `hard` or `hard,size=64,count=50000,seed=1`.

    `count` is that of the training images; there are a tenth as many for testing. Sets of up to
    200 MB are drawn at once and kept in memory, larger ones whenever they are asked for.
    """
    part = choose(split, ("train", "test"), "shapes")
    difficulty, size, count, seed = _parse(options)
    train, test = np.arange(count), _TEST + np.arange(max(1, count // 10))
    numbers = {"train": train, "test": test, "all": np.concatenate([train, test])}[part]
    name = f"shapes:{options}/{part}" if options else f"shapes/{part}"
    source = ShapesDataset(name, difficulty, size, seed, numbers)
    if len(numbers) * 3 * size**2 > _IN_MEMORY:
        return source
    return ArrayDataset(name, source.classes, source.labels, source.take(np.arange(len(numbers))))


def _parse(options: str) -> tuple[Difficulty, int, int, int]:
    """Read the difficulty, size, count and seed."""
    found: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in options.split(","))):
        key, sign, value = (text.strip() for text in word.partition("="))
        if word in DIFFICULTIES:
            key, value = "difficulty", word
        elif not sign or key not in _NUMBERS:
            there = (*DIFFICULTIES, *(f"{name}=" for name in _NUMBERS))
            near = suggest(key + sign, there) or f"; there are {', '.join(there)}"
            raise InputError(f"shapes: unknown option {word!r}{near}")
        if found.setdefault(key, value) != value:
            raise InputError(f"shapes: {key} is given twice, as {found[key]} and {value}")
    size, count, seed = (_number(key, found.get(key)) for key in _NUMBERS)
    return DIFFICULTIES[found.get("difficulty", "medium")], size, count, seed


def _number(key: str, text: str | None) -> int:
    usual, low, high = _NUMBERS[key]
    if text is None:
        return usual
    with suppress(ValueError):
        if low <= int(text) <= high:
            return int(text)
    raise InputError(f"shapes: {key} is a whole number from {low} to {high:_}, not {text!r}")


class ShapesDataset(FixedSizeDataset):
    """Shapes that are drawn whenever they are asked for."""

    def __init__(
        self, name: str, difficulty: Difficulty, size: int, seed: int, numbers: np.ndarray
    ) -> None:
        classes = difficulty.classes
        super().__init__(name, classes, numbers % len(classes))
        self._difficulty, self._size, self._seed, self._numbers = difficulty, size, seed, numbers

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Draw images: (n, size, size, 3), uint8."""
        pixels = np.empty((len(indices), self._size, self._size, 3), np.uint8)
        step = max(1, _AT_ONCE // self._size**2)
        for start in range(0, len(indices), step):
            numbers = self._numbers[indices[start : start + step]]
            pixels[start : start + step] = _draw(self._difficulty, self._size, self._seed, numbers)
        return pixels


def _draw(difficulty: Difficulty, size: int, seed: int, numbers: np.ndarray) -> np.ndarray:
    """Draw some images together."""
    draws = CounterRNG(seed, "shapes", 0, numbers)
    label = numbers % len(difficulty.classes)
    luma = draws.uniform(0.32, 0.68)
    canvas = np.empty((len(numbers), 3, size, size), np.float32)
    ground = _ground(draws, difficulty, size, _away_from(luma, draws.uniform()))
    fill(canvas, ground, _field(draws, size))
    for _ in range(difficulty.around):
        x, y = (draws.uniform(0, size) for _ in range(2))
        _paint_small(canvas, draws, x, y, draws.uniform(0.07, 0.13) * size)
    main = _main(draws, difficulty, size, label, luma)
    paint(canvas, main, size)
    for _ in range(difficulty.before):
        angle, far = draws.uniform(0, 2 * pi), draws.uniform(0.6, 1.0) * main.radius
        x, y = main.x + far * np.cos(angle), main.y + far * np.sin(angle)
        _paint_small(canvas, draws, x, y, draws.uniform(0.25, 0.4) * main.radius)
    light = 1 + (_field(draws, size) - 0.5) * (2 * difficulty.light)
    canvas *= light[:, None]
    noise = grain(draws.below(2**32), size)
    noise *= draws.uniform(0, difficulty.noise).astype(np.float32)[:, None, None, None]
    canvas += noise
    canvas *= 255
    canvas += 0.5
    return np.clip(canvas, 0, 255, out=canvas).astype(np.uint8).transpose(0, 2, 3, 1)


def _field(draws: CounterRNG, size: int) -> np.ndarray:
    knots = np.stack([draws.uniform() for _ in range(_KNOTS * _KNOTS)], 1)
    return smooth(knots.reshape(-1, _KNOTS, _KNOTS), size)


def _away_from(luma: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Choose a luma of 0.1 to 0.9 that is at least 0.22 darker or brighter than the given one."""
    darkest, darker, brighter, brightest = 0.1, luma - 0.22, luma + 0.22, 0.9
    found = darkest + part * (darker - darkest + brightest - brighter)
    return np.where(found < darker, found, found + brighter - darker)


def _ground(draws: CounterRNG, difficulty: Difficulty, size: int, luma: np.ndarray) -> Pattern:
    apart, hue = draws.uniform(0, difficulty.ground), draws.uniform()
    return Pattern(
        kind=draws.below(len(PATTERNS) if difficulty.ground else 1),
        period=draws.uniform(0.15, 0.4) * size,
        angle=draws.uniform(0, 2 * pi),
        colors=(
            color(hue, draws.uniform(0.1, 0.7), luma - apart / 2),
            color(hue + draws.uniform(-0.15, 0.15), draws.uniform(0.1, 0.7), luma + apart / 2),
        ),
    )


def _main(
    draws: CounterRNG, difficulty: Difficulty, size: int, label: np.ndarray, luma: np.ndarray
) -> Figure:
    """Say what the large shape is, by the class, and how it looks, by chance."""
    rest, outline = np.divmod(label, difficulty.outlines)
    family, kind = np.divmod(rest, difficulty.patterns)
    hue = draws.uniform()
    if difficulty.hues:
        low, high = np.array([_HUES[name] for name in difficulty.hues]).T
        hue = low[family] + hue * (high - low)[family]
    radius = draws.uniform(*difficulty.radius) * size
    x, y = (radius + draws.uniform() * (size - 2 * radius) for _ in range(2))
    fill = Pattern(
        kind=kind,
        period=draws.uniform(0.16, 0.22) * size,
        angle=draws.uniform(0, 2 * pi),
        colors=_two_tones(draws, hue, luma, kind),
    )
    angle = draws.uniform(0, 2 * pi)
    return Figure(outline=outline, x=x, y=y, radius=radius, angle=angle, fill=fill)


def _two_tones(
    draws: CounterRNG, hue: np.ndarray, luma: np.ndarray, kind: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Make the two colors of a pattern: a darker one and a brighter one of one hue."""
    saturation = draws.uniform(0.5, 1)
    apart = np.where(draws.uniform() < 0.5, 0.14, -0.14) * (kind > 0)
    return color(hue, saturation, luma + apart), color(hue, saturation, luma - apart)


def _paint_small(
    canvas: np.ndarray, draws: CounterRNG, x: np.ndarray, y: np.ndarray, radius: np.ndarray
) -> None:
    size, kind = canvas.shape[-1], draws.below(len(PATTERNS))
    fill = Pattern(
        kind=kind,
        period=draws.uniform(0.12, 0.2) * size,
        angle=draws.uniform(0, 2 * pi),
        colors=_two_tones(draws, draws.uniform(), draws.uniform(0.2, 0.8), kind),
    )
    outline, angle = draws.below(len(OUTLINES)), draws.uniform(0, 2 * pi)
    figure = Figure(outline=outline, x=x, y=y, radius=radius, angle=angle, fill=fill)
    paint(canvas, figure, round(0.4 * size) + 2)
