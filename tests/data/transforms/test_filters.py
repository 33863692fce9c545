"""filters.py: each operation against its closed form, brute force, Pillow and torchvision."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from tests.parity.peers import load
from vitrail.data.transforms import filters
from vitrail.data.transforms.filters import Outside

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)  # every value once
SHAPES = [*itertools.product([(1, 1), (1, 5), (2, 2), (3, 4), (9, 7)], [1, 2, 3, 4, 7])]

Filter = Callable[[np.ndarray], np.ndarray]


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, 256, (height, width, channels))
    return drawn.astype(np.uint8)


@st.composite
def images(draw: st.DrawFn, channels: int) -> np.ndarray:
    """Small images of few values or many, with narrow ranges among them."""
    low = draw(st.integers(0, 255))
    high = draw(st.integers(low, 255))
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 40)), channels)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    return generator.integers(low, high + 1, shape).astype(np.uint8)


def to_pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def to_array(image: Image.Image) -> np.ndarray:
    return np.array(image).reshape(image.height, image.width, -1)


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_keeps_the_highest_bits(bits: int) -> None:
    step = 2 ** (8 - bits)
    expected = [value // step * step for value in range(256)]
    assert filters.posterize(RAMP, bits).ravel().tolist() == expected


@pytest.mark.parametrize("threshold", [0, 1, 128, 178.5, 255, 256])
def test_solarize_inverts_from_the_threshold_on(threshold: float) -> None:
    expected = [value if value < threshold else 255 - value for value in range(256)]
    assert filters.solarize(RAMP, threshold).ravel().tolist() == expected


@pytest.mark.parametrize("amount", [0, 1, 110, 220])
def test_solarize_add_brightens_the_dark_half(amount: int) -> None:
    expected = [min(v + amount, 255) if v < 128 else v for v in range(256)]
    assert filters.solarize_add(RAMP, amount).ravel().tolist() == expected


def test_autocontrast_stretches_each_channel() -> None:
    image = np.array([[[10, 0, 7], [20, 255, 7], [61, 3, 7]]], np.uint8)
    assert filters.autocontrast(image).tolist() == [[[0, 0, 7], [50, 255, 7], [255, 3, 7]]]


def test_autocontrast_in_float32_is_tensorflows() -> None:
    """Multiply, then shift, each rounded to float32; some whole numbers come out just below."""
    values = np.arange(5, 251, dtype=np.uint8).reshape(1, -1, 1)
    scale = np.float32(255) / np.float32(245)
    exact = (values.astype(np.float32) * scale).astype(np.float32) - np.float32(5) * scale
    assert np.array_equal(filters.autocontrast(values, np.float32), exact.astype(np.uint8))
    differ = filters.autocontrast(values) != filters.autocontrast(values, np.float32)
    assert 0 < differ.sum() < 10


@settings(max_examples=60)
@given(st.sampled_from([1, 3]).flatmap(lambda channels: images(channels=channels)))
def test_autocontrast_and_equalize_are_pillows(image: np.ndarray) -> None:
    stretched = to_array(ImageOps.autocontrast(to_pillow(image)))
    assert np.array_equal(filters.autocontrast(image), stretched)
    spread = to_array(ImageOps.equalize(to_pillow(image)))
    assert np.array_equal(filters.equalize(image), spread)


def test_equalize_of_a_large_uneven_image_is_even() -> None:
    squares = (np.linspace(0, 1, 256 * 256) ** 3 * 255).astype(np.uint8).reshape(256, 256, 1)
    spread = filters.equalize(squares)
    assert np.array_equal(spread, to_array(ImageOps.equalize(to_pillow(squares))))
    top = np.sort(spread.ravel())[-1000:]
    assert top.min() > 245
    assert abs(spread.mean() - 127.5) < abs(squares.mean() - 127.5)


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.5, 1.0, 1.9, 3.7])
def test_blend_is_linear_and_cut(factor: float) -> None:
    image, base = noise(9, 8, 2), noise(9, 8, 2, seed=1)
    line = base + np.float32(factor) * (image.astype(np.float32) - base)
    assert np.array_equal(filters.blend(base, image, factor), np.clip(line, 0, 255).astype(int))
    assert np.array_equal(
        filters.blend(77, image, factor),
        filters.blend(np.full_like(image, 77), image, factor),
    )


@pytest.mark.parametrize("factor", [0.0, 0.37, 1.0, 1.63, 2.8])
@pytest.mark.parametrize("channels", [1, 3])
def test_enhancements_are_pillows(factor: float, channels: int) -> None:
    image = noise(31, 17, channels)
    pillow = to_pillow(image)
    for base, enhance in (
        (0, ImageEnhance.Brightness),
        (filters.mean_gray(image), ImageEnhance.Contrast),
        (filters.gray(image), ImageEnhance.Color),
        (filters.smooth(image), ImageEnhance.Sharpness),
    ):
        expected = to_array(enhance(pillow).enhance(factor))
        assert np.array_equal(filters.blend(base, image, factor), expected), enhance


def test_grey_of_tensorflow() -> None:
    image = noise(50, 50)
    weighed = image / 255 @ np.array([0.2989, 0.587, 0.114]) * 255.5
    assert np.abs(weighed - weighed.round()).min() > 1e-6, "no value on the edge"
    ours = filters.gray(image, filters.TENSORFLOW_GRAY)
    assert np.array_equal(ours, np.repeat(weighed.astype(np.uint8)[..., None], 3, axis=2))


def test_mean_grey_of_other_channels_is_one_each() -> None:
    image = np.stack([np.full((3, 3), 10), np.arange(9).reshape(3, 3)], axis=-1).astype(np.uint8)
    assert filters.mean_gray(image).tolist() == [[[10, 4]] * 3] * 3


@pytest.mark.parametrize("add", [0, 6])
def test_smooth_by_brute_force(add: int) -> None:
    image = noise(6, 5, 2)
    expected = image.astype(int)
    for y, x in itertools.product(range(1, 5), range(1, 4)):
        around = image[y - 1 : y + 2, x - 1 : x + 2].astype(int).sum((0, 1))
        expected[y, x] = (around + 4 * image[y, x].astype(int) + add) // 13
    assert np.array_equal(filters.smooth(image, add), expected)


@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.0, 0.1, 0.5])
def test_turn_hue_is_torchvisions(turn: float) -> None:
    image = noise(20, 20)
    functional = load("torchvision.transforms.functional")
    expected = np.array(functional.adjust_hue(to_pillow(image), turn))
    assert np.array_equal(filters.turn_hue(image, turn), expected)


def test_a_third_of_a_turn_makes_red_green() -> None:
    red = np.array([[[255, 0, 0]]], np.uint8)
    assert filters.turn_hue(red, 1 / 3).tolist() == [[[0, 255, 0]]]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("right", "down"), [(0, 0), (3, 0), (-2, 1), (0, -5), (99, 0)])
def test_moves_by_whole_pixels(channels: int, right: int, down: int) -> None:
    image = noise(8, 6, channels)
    expected = np.full_like(image, 128)
    for y, x in itertools.product(range(8), range(6)):
        if 0 <= y - down < 8 and 0 <= x - right < 6:
            expected[y, x] = image[y - down, x - right]
    assert np.array_equal(
        filters.transform(image, (1, 0, -right, 0, 1, -down), Outside(128)), expected
    )


def test_shears_by_whole_pixels() -> None:
    image = noise(5, 9)
    sheared = filters.transform(image, (1, 1, -0.5, 0, 1, 0), Outside(0))
    for y in range(5):
        assert np.array_equal(sheared[y, : 9 - y], image[y, y:])
        assert not sheared[y, 9 - y :].any()


@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize(("side", "channels"), [(1, 3), (6, 1), (7, 3), (7, 4)])
def test_rotates_by_right_angles(quarters: int, side: int, channels: int) -> None:
    image = noise(side, side, channels)
    rotated = filters.rotate(image, 90 * quarters, Outside(0))
    assert np.array_equal(rotated, np.rot90(image, quarters))


@pytest.mark.parametrize("degrees", [-60, -13.5, 27, 45])
def test_rotates_by_brute_force(degrees: float) -> None:
    """The pixel under the turned center, wherever that is not on the edge between two pixels."""
    image = noise(41, 30)
    rotated = filters.rotate(image, degrees, Outside(128))
    turn, middle = math.radians(degrees), np.array([14.5, 20])
    matrix = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    clear = 0
    for y, x in itertools.product(range(41), range(30)):
        place = matrix @ ([x, y] - middle) + middle
        if np.abs(place % 1 - 0.5).min() < 0.01:
            continue
        clear += 1
        column, row = (round(value) for value in place)
        inside = 0 <= row < 41 and 0 <= column < 30
        expected = image[row, column] if inside else [128] * 3
        assert np.array_equal(rotated[y, x], expected), (y, x)
    assert clear > 0.9 * 41 * 30


FILTERS: dict[str, Filter] = {
    "posterize": lambda image: filters.posterize(image, 3),
    "solarize": lambda image: filters.solarize(image, 100),
    "solarize_add": lambda image: filters.solarize_add(image, 50),
    "autocontrast": filters.autocontrast,
    "equalize": filters.equalize,
    "blend": lambda image: filters.blend(9, image, 1.5),
    "gray": filters.gray,
    "mean_gray": filters.mean_gray,
    "smooth": filters.smooth,
    "turn_hue": lambda image: filters.turn_hue(image, 0.2),
    "rotate": lambda image: filters.rotate(image, 20, Outside(1)),
}


@pytest.mark.parametrize("name", FILTERS)
def test_shape_and_type_stay_and_the_input_too(name: str) -> None:
    for (height, width), channels in SHAPES:
        image = noise(height, width, channels)
        before = image.copy()
        result = FILTERS[name](image)
        assert result.shape == image.shape
        assert result.dtype == np.uint8
        assert np.array_equal(image, before)
        mirrored = np.ascontiguousarray(image[:, ::-1])
        assert np.array_equal(FILTERS[name](image[:, ::-1]), FILTERS[name](mirrored))


@pytest.mark.parametrize("name", sorted(FILTERS.keys() - {"gray", "mean_gray", "turn_hue"}))
def test_channels_are_treated_alike(name: str) -> None:
    image = noise(12, 10, 5)
    channels = [FILTERS[name](image[..., i : i + 1]) for i in range(5)]
    assert np.array_equal(FILTERS[name](image), np.concatenate(channels, axis=2))


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_color_is_only_of_rgb(channels: int) -> None:
    image = noise(5, 5, channels)
    assert np.array_equal(filters.gray(image), image)
    assert np.array_equal(filters.turn_hue(image, 0.3), image)
