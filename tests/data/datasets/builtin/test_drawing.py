"""Outlines, patterns, fields, colors and noise against areas, brute force and colorsys."""

import colorsys
from math import pi, sqrt

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

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

BLACK, WHITE = np.zeros((1, 3)), np.ones((1, 3))
RNG = np.random.default_rng(0)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def pattern(kind: str = "plain", period: float = 16, angle: float = 0) -> Pattern:
    return Pattern(
        kind=np.array([PATTERNS.index(kind)]),
        period=column(period),
        angle=column(angle),
        colors=(WHITE, BLACK),
    )


def drawn(name: str, radius: float, angle: float, x: float, y: float, size: int) -> np.ndarray:
    """Draw a white shape on black, and give how white each pixel is."""
    figure = Figure(
        outline=np.array([list(OUTLINES).index(name)]),
        x=column(x),
        y=column(y),
        radius=column(radius),
        angle=column(angle),
        fill=pattern(),
    )
    canvas = np.zeros((1, 3, size, size), np.float32)
    paint(canvas, figure, size)
    np.testing.assert_array_equal(canvas[0, 0], canvas[0, 2])
    return canvas[0, 0]


AREAS = {
    "disc": pi * 0.9**2,
    "square": 1.6**2,
    "triangle": 3 * sqrt(3) * 0.55**2,
    "ring": pi * (0.94**2 - 0.46**2),
    "cross": 2 * 1.9 * 0.6 - 0.6**2,
    "heart": 1.04**2 + pi * 0.52**2,
    "oval": pi * 1.05 * 0.5,
    "flower": pi * (0.72**2 + 0.24**2 / 2),
    "frame": 1.64**2 - 0.84**2,
}


@pytest.mark.parametrize("name", AREAS)
@pytest.mark.parametrize("angle", [0.0, 0.7])
def test_areas(name: str, angle: float) -> None:
    cover = drawn(name, 30, angle, 49.3, 51.2, 100)
    assert cover.sum() == pytest.approx(AREAS[name] * 30**2, rel=0.01)
    assert cover[:3].max() == cover[-3:].max() == cover[:, :3].max() == cover[:, -3:].max() == 0


@pytest.mark.parametrize("name", OUTLINES)
def test_edges_are_averages_of_many_points(name: str) -> None:
    """Hold each pixel's cover against a count of 16 x 16 points in it."""
    size, radius, angle, x, y = 32, 11.0, 0.4, 15.2, 16.9
    points = (np.arange(size * 16) + 0.5) / 16
    across, down = points[None] - x, points[:, None] - y
    u = (across * np.cos(angle) + down * np.sin(angle)) / radius
    v = (down * np.cos(angle) - across * np.sin(angle)) / radius
    inside = OUTLINES[name](u, v) < 0
    counted = inside.reshape(size, 16, size, 16).mean((1, 3))
    off = np.abs(drawn(name, radius, angle, x, y, size) - counted)
    assert off.max() < 0.45  # at corners, where the distance to one edge says less
    assert off.mean() < 0.006
    assert off[(counted == 0) | (counted == 1)].mean() < 0.002


def test_a_star_has_five_tips_and_five_dents() -> None:
    angles = np.linspace(0, 2 * pi, 1000, endpoint=False)
    radii = np.linspace(0, 1.3, 2000)[:, None]
    inside = OUTLINES["star"](radii * np.sin(angles), radii * np.cos(angles)) < 0
    edge = radii[:, 0][inside.sum(0)]
    assert edge.max() == pytest.approx(1.1, abs=2e-3)
    tips = (edge > np.roll(edge, 1)) & (edge >= np.roll(edge, -1))
    assert tips.sum() == 5
    np.testing.assert_allclose(edge, np.roll(edge, 200), atol=5e-3)


def test_small_windows_hold_small_shapes() -> None:
    """Draw all outlines at random places and turns, in a window and on the whole image."""
    count, size, radius = 240, 32, 4.9
    figure = Figure(
        outline=np.arange(count) % len(OUTLINES),
        x=RNG.uniform(-2, size + 2, count),
        y=RNG.uniform(-2, size + 2, count),
        radius=np.full(count, radius),
        angle=RNG.uniform(0, 2 * pi, count),
        fill=Pattern(
            kind=np.arange(count) % 4,
            period=RNG.uniform(4, 6, count),
            angle=RNG.uniform(0, 2 * pi, count),
            colors=(RNG.random((count, 3)), RNG.random((count, 3))),
        ),
    )
    ground = RNG.random((count, 3, size, size)).astype(np.float32)
    small, whole = ground.copy(), ground.copy()
    paint(small, figure, round(0.4 * size) + 2)
    paint(whole, figure, size)
    np.testing.assert_allclose(small, whole, atol=1e-4)
    assert np.abs(whole - ground).max() > 0.5


@pytest.mark.parametrize(
    ("kind", "white"), [("plain", 1), ("striped", 0.5), ("checked", 0.5), ("dotted", pi * 0.32**2)]
)
def test_patterns_have_their_parts(kind: str, white: float) -> None:
    canvas = np.empty((1, 3, 192, 192), np.float32)
    fill(canvas, pattern(kind, period=16), np.zeros((1, 192, 192), np.float32))
    found = 2 * canvas[0, 0] - 1  # without its field, a ground is a mix of up to a half
    assert found.mean() == pytest.approx(white, abs=0.01)
    np.testing.assert_allclose(found, np.roll(found, (16, 16), (0, 1)), atol=1e-5)
    if kind == "striped":
        np.testing.assert_array_equal(found, found[:1].repeat(192, 0))
    if kind == "checked":
        np.testing.assert_allclose(found, 1 - np.roll(found, 8, 0), atol=1e-5)


def test_smooth_is_linear_between_knots() -> None:
    knots = RNG.random((3, 4, 4))
    place = (np.arange(20) + 0.5) * 3 / 20
    grid = np.meshgrid(place, place, indexing="ij")
    wanted = [map_coordinates(some, grid, order=1) for some in knots]
    np.testing.assert_allclose(smooth_field(knots, 20), wanted, atol=1e-6)


def test_colors_have_their_hue_and_brightness() -> None:
    hue, saturation, luma = RNG.uniform(-1, 2, 200), RNG.uniform(0.2, 1, 200), RNG.random(200)
    found = color(hue, saturation, luma)
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-9
    np.testing.assert_allclose(found @ (0.299, 0.587, 0.114), luma, atol=1e-9)
    turns = [colorsys.rgb_to_hsv(*row)[0] for row in found.tolist()]
    off = (np.array(turns) - hue + 0.5) % 1 - 0.5
    assert np.abs(off).max() < 1e-6


def test_grain_is_noise() -> None:
    noise = grain(np.array([1, 2, 2, 2**32 - 1]), 32)
    assert noise.shape == (4, 3, 32, 32)
    assert noise.dtype == np.float32
    assert (noise.min(), noise.max()) == (-1, 1)
    np.testing.assert_array_equal(noise[1], noise[2])
    planes = noise[[0, 1, 3]].reshape(9, -1)
    related = np.corrcoef(planes) - np.eye(9)
    assert np.abs(related).max() < 0.12  # 1,024 pixels: four stds
    assert np.abs(planes.mean(1)).max() < 0.08
    neighbors = [np.corrcoef(plane[:-1], plane[1:])[0, 1] for plane in planes]
    assert np.abs(neighbors).max() < 0.12
    assert planes.std() == pytest.approx(1 / sqrt(3), rel=0.02)
