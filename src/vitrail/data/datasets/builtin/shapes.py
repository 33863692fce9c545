"""Procedural color images without limit, each a pure function of a seed and its number.

An image shows one large shape on a background. Its class is the outline of the shape, from `medium`
on also its pattern, and in `hard` also whether its colors are warm or cool. Position, size,
rotation, colors, background, light, noise and small shapes around it are random.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import numpy as np

from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.builtin.drawing import (
    OUTLINES,
    PATTERNS,
    Figure,
    Pattern,
    color,
    fill,
    grain,
    paint,
    smooth_field,
)
from vitrail.data.datasets.builtin.procedural import (
    Numbers,
    ProceduralDataset,
    open_procedural,
    parse_numbers,
)
from vitrail.data.rng import CounterRNG

_KNOTS = 4  # of a smooth field, each way
_HUES = {"warm": (-0.06, 0.16), "cool": (0.46, 0.76)}  # red to yellow, cyan to violet


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """What the images of one difficulty contain, and what decides their class."""

    outlines: int
    """Number of outlines, from the first."""
    patterns: int
    hues: tuple[str, ...] = ()
    """Color families that are part of the class; empty if the color is not."""
    radius: tuple[float, float]
    """Of the large shape, as a fraction of the image's side."""
    ground: float
    """Difference in brightness of the background's two colors; 0 for a plain background."""
    around: int = 0
    """Number of small shapes, maybe behind the large one."""
    before: int = 0
    """Number of small shapes that cover a part of it."""
    light: float
    """Amount of uneven lighting."""
    noise: float

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes: the hue varies slowest, the outline fastest."""
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


_NUMBERS: Numbers = {
    "size": (32, 16, 512),
    "count": (20_000, 1, 10_000_000),
    "seed": (0, 0, 2**64 - 1),
}


def open_shapes(options: str, split: str) -> ImageDataset:
    """Open shapes by options such as `hard` or `hard,size=64,count=50000,seed=1`.

    `count` is the number of training images; there are a tenth as many for testing.
    """
    found = parse_numbers("shapes", options, _NUMBERS, {"difficulty": tuple(DIFFICULTIES)})
    difficulty = DIFFICULTIES[str(found.get("difficulty", "medium"))]
    size, count, seed = (int(found[key]) for key in _NUMBERS)
    return open_procedural(
        "shapes",
        options,
        split,
        count,
        lambda name, numbers: ShapesDataset(name, difficulty, size, seed, numbers),
    )


class ShapesDataset(ProceduralDataset):
    """Shapes that are drawn each time they are read."""

    channels = 3

    def __init__(
        self, name: str, difficulty: Difficulty, size: int, seed: int, numbers: np.ndarray
    ) -> None:
        super().__init__(name, difficulty.classes, size, numbers)
        self._difficulty, self._seed = difficulty, seed

    def draw(self, numbers: np.ndarray) -> np.ndarray:
        """Draw some images together."""
        return _draw(self._difficulty, self.image_size, self._seed, numbers)


def _draw(difficulty: Difficulty, size: int, seed: int, numbers: np.ndarray) -> np.ndarray:
    """Draw some images together."""
    rng = CounterRNG(seed, "shapes", 0, numbers)
    label = numbers % len(difficulty.classes)
    luma = rng.uniform(0.32, 0.68)
    canvas = np.empty((len(numbers), 3, size, size), np.float32)
    ground = _ground(rng, difficulty, size, _away_from(luma, rng.uniform()))
    fill(canvas, ground, _field(rng, size))
    for _ in range(difficulty.around):
        x, y = (rng.uniform(0, size) for _ in range(2))
        _paint_small(canvas, rng, x, y, rng.uniform(0.07, 0.13) * size)
    main = _main(rng, difficulty, size, label, luma)
    paint(canvas, main, size)
    for _ in range(difficulty.before):
        angle, far = rng.uniform(0, 2 * pi), rng.uniform(0.6, 1.0) * main.radius
        x, y = main.x + far * np.cos(angle), main.y + far * np.sin(angle)
        _paint_small(canvas, rng, x, y, rng.uniform(0.25, 0.4) * main.radius)
    light = 1 + (_field(rng, size) - 0.5) * (2 * difficulty.light)
    canvas *= light[:, None]
    noise = grain(rng.below(2**32), size)
    noise *= rng.uniform(0, difficulty.noise).astype(np.float32)[:, None, None, None]
    canvas += noise
    canvas *= 255
    canvas += 0.5
    return np.clip(canvas, 0, 255, out=canvas).astype(np.uint8).transpose(0, 2, 3, 1)


def _field(rng: CounterRNG, size: int) -> np.ndarray:
    knots = np.stack([rng.uniform() for _ in range(_KNOTS * _KNOTS)], 1)
    return smooth_field(knots.reshape(-1, _KNOTS, _KNOTS), size)


def _away_from(luma: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Choose a luma in [0.1, 0.9] that is at least 0.22 darker or brighter than the given one."""
    darkest, darker, brighter, brightest = 0.1, luma - 0.22, luma + 0.22, 0.9
    found = darkest + part * (darker - darkest + brightest - brighter)
    return np.where(found < darker, found, found + brighter - darker)


def _ground(rng: CounterRNG, difficulty: Difficulty, size: int, luma: np.ndarray) -> Pattern:
    apart, hue = rng.uniform(0, difficulty.ground), rng.uniform()
    return Pattern(
        kind=rng.below(len(PATTERNS) if difficulty.ground else 1),
        period=rng.uniform(0.15, 0.4) * size,
        angle=rng.uniform(0, 2 * pi),
        colors=(
            color(hue, rng.uniform(0.1, 0.7), luma - apart / 2),
            color(hue + rng.uniform(-0.15, 0.15), rng.uniform(0.1, 0.7), luma + apart / 2),
        ),
    )


def _main(
    rng: CounterRNG, difficulty: Difficulty, size: int, label: np.ndarray, luma: np.ndarray
) -> Figure:
    """Make the large shape: its kind by the class, its looks at random."""
    rest, outline = np.divmod(label, difficulty.outlines)
    family, kind = np.divmod(rest, difficulty.patterns)
    hue = rng.uniform()
    if difficulty.hues:
        low, high = np.array([_HUES[name] for name in difficulty.hues]).T
        hue = low[family] + hue * (high - low)[family]
    radius = rng.uniform(*difficulty.radius) * size
    x, y = (radius + rng.uniform() * (size - 2 * radius) for _ in range(2))
    fill = Pattern(
        kind=kind,
        period=rng.uniform(0.16, 0.22) * size,
        angle=rng.uniform(0, 2 * pi),
        colors=_two_tones(rng, hue, luma, kind),
    )
    angle = rng.uniform(0, 2 * pi)
    return Figure(outline=outline, x=x, y=y, radius=radius, angle=angle, fill=fill)


def _two_tones(
    rng: CounterRNG, hue: np.ndarray, luma: np.ndarray, kind: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Make the two colors of a pattern, a darker and a brighter one of the same hue."""
    saturation = rng.uniform(0.5, 1)
    apart = np.where(rng.uniform() < 0.5, 0.14, -0.14) * (kind > 0)
    return color(hue, saturation, luma + apart), color(hue, saturation, luma - apart)


def _paint_small(
    canvas: np.ndarray, rng: CounterRNG, x: np.ndarray, y: np.ndarray, radius: np.ndarray
) -> None:
    size, kind = canvas.shape[-1], rng.below(len(PATTERNS))
    fill = Pattern(
        kind=kind,
        period=rng.uniform(0.12, 0.2) * size,
        angle=rng.uniform(0, 2 * pi),
        colors=_two_tones(rng, rng.uniform(), rng.uniform(0.2, 0.8), kind),
    )
    outline, angle = rng.below(len(OUTLINES)), rng.uniform(0, 2 * pi)
    figure = Figure(outline=outline, x=x, y=y, radius=radius, angle=angle, fill=fill)
    paint(canvas, figure, round(0.4 * size) + 2)
