"""resizing.py: Pillow to the bit, TensorFlow's rules in closed form, and the quick ways beside."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.transforms.geometry import Box
from vitrail.data.transforms.preprocess import Interpolation, Preprocess
from vitrail.data.transforms.resizing import resize, resize_boxes, resize_quickly

PILLOW: dict[Interpolation, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "area": Image.Resampling.BOX,
}
SIDES = st.one_of(st.integers(1, 3), st.integers(1, 80))
QUICK = pytest.mark.parametrize(
    ("interpolation", "antialias"), [("bilinear", True), ("bicubic", True), ("bilinear", False)]
)


def rule(
    interpolation: Interpolation, size: tuple[int, int] = (9, 9), *, antialias: bool = True
) -> Preprocess:
    return Preprocess(
        size=size,
        mean=(0.5,),
        std=(0.5,),
        interpolation=interpolation,
        fit="stretch",
        antialias=antialias,
    )


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def smooth(height: int, width: int, channels: int) -> np.ndarray:
    """Paint waves, such as photographs consist of, unlike noise."""
    y, x, c = np.ogrid[:height, :width, :channels]
    return (127.5 + 120 * np.sin(x / 9 + c) * np.cos(y / 7 - c)).round().astype(np.uint8)


def with_pillow(image: np.ndarray, size: tuple[int, int], how: Interpolation) -> np.ndarray:
    height, width = size
    planes = [Image.fromarray(plane) for plane in np.moveaxis(image, 2, 0)]
    resized = [np.asarray(plane.resize((width, height), PILLOW[how])) for plane in planes]
    return np.stack(resized, axis=-1)


@pytest.mark.parametrize("interpolation", PILLOW)
@given(SIDES, SIDES, SIDES, SIDES, st.integers(1, 5))
@settings(max_examples=20)
def test_evaluation_is_pillow_to_the_bit(
    interpolation: Interpolation, height: int, width: int, tall: int, wide: int, channels: int
) -> None:
    image = noise(height, width, channels)
    resized = resize(image, (tall, wide), rule(interpolation))
    assert np.array_equal(resized, with_pillow(image, (tall, wide), interpolation))
    assert not np.shares_memory(resized, image)


def test_colors_are_pillows_rgb() -> None:
    image = noise(40, 30, 3)
    expected = np.asarray(Image.fromarray(image).resize((17, 23), Image.Resampling.BICUBIC))
    assert np.array_equal(resize(image, (23, 17), rule("bicubic")), expected)


@given(SIDES, SIDES, SIDES, SIDES)
@settings(max_examples=40)
def test_bilinear_without_antialiasing_is_torchs(
    height: int, width: int, tall: int, wide: int
) -> None:
    """TensorFlow's has half-pixel centers too, and repeats the border."""
    image = noise(height, width, 2)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    expected = F.interpolate(planes, (tall, wide), mode="bilinear", align_corners=False)
    resized = resize(image, (tall, wide), rule("bilinear", antialias=False))
    away = np.abs(resized - expected[0].permute(1, 2, 0).numpy())
    assert away.max() <= 0.5 + 1e-4


@given(SIDES, SIDES, st.integers(0, 80), st.integers(0, 80))
@settings(max_examples=40)
def test_bicubic_without_antialiasing_is_keys_with_the_border_left_out(
    height: int, width: int, down: int, across: int
) -> None:
    """To enlarge, torch's antialiased rule is that one; its plain rule has another cubic."""
    assume(width + across > 1)  # torch repeats the first row of an image of one column
    image, size = noise(height, width, 2), (height + down, width + across)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    expected = F.interpolate(planes, size, mode="bicubic", antialias=True).clamp(0, 255)
    resized = resize(image, size, rule("bicubic", antialias=False))
    away = np.abs(resized - expected[0].permute(1, 2, 0).numpy())
    assert away.max() <= 0.5 + 1e-3


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_without_antialiasing_the_middle_of_three_pixels_is_taken(
    interpolation: Interpolation,
) -> None:
    image = noise(33, 48, 3)
    resized = resize(image, (11, 16), rule(interpolation, antialias=False))
    assert np.array_equal(resized, image[1::3, 1::3])


@pytest.mark.parametrize("size", [(3, 5), (8, 4), (12, 9), (4, 6), (1, 1)])
def test_area_without_antialiasing_weighs_by_what_is_covered(size: tuple[int, int]) -> None:
    image = noise(4, 6, 3)
    fine = image.repeat(size[0], 0).repeat(size[1], 1).astype(np.float64)
    blocks = fine.reshape(size[0], 4, size[1], 6, 3).mean((1, 3))
    resized = resize(image, size, rule("area", antialias=False))
    assert np.abs(resized - blocks).max() <= 0.5 + 1e-9


@QUICK
@given(SIDES, SIDES, SIDES, SIDES, st.integers(1, 5))
@settings(max_examples=30)
def test_training_differs_by_rounding_only(
    interpolation: Interpolation,
    antialias: bool,
    height: int,
    width: int,
    tall: int,
    wide: int,
    channels: int,
) -> None:
    image, how = smooth(height, width, channels), rule(interpolation, antialias=antialias)
    quick = resize_quickly(image, (tall, wide), how).astype(int)
    away = np.abs(quick - resize(image, (tall, wide), how))
    assert away.max() <= (2 if interpolation == "bicubic" else 1)


@pytest.mark.parametrize("interpolation", ["nearest", "lanczos", "area"])
@pytest.mark.parametrize("antialias", [True, False])
def test_rules_that_torch_lacks_are_evaluations(
    interpolation: Interpolation, antialias: bool
) -> None:
    image, how = noise(30, 20, 3), rule(interpolation, antialias=antialias)
    assert np.array_equal(resize_quickly(image, (7, 9), how), resize(image, (7, 9), how))


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", PILLOW)
def test_any_view_of_memory_will_do(interpolation: Interpolation, antialias: bool) -> None:
    """Turned by EXIF, cut out, or mapped from a file that must not be written to."""
    whole = noise(40, 50, 3)
    view = whole[::-1, 5:40].transpose(1, 0, 2)
    view.flags.writeable = False
    how = rule(interpolation, antialias=antialias)
    for size in [(12, 13), view.shape[:2]]:
        for function in (resize, resize_quickly):
            resized = function(view, size, how)
            assert np.array_equal(resized, function(view.copy(), size, how))
            assert resized.flags.c_contiguous
            assert resized.flags.writeable
            assert not np.shares_memory(resized, whole)


@QUICK
@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, (32, 32)), (28, 20, (64, 33)), (64, 50, (9, 16))]
)
def test_boxes_of_many_images_are_those_of_each(
    interpolation: Interpolation,
    antialias: bool,
    channels: int,
    height: int,
    width: int,
    size: tuple[int, int],
) -> None:
    how = rule(interpolation, size, antialias=antialias)
    pixels, generator = noise(70, height, width, channels), np.random.default_rng(0)
    tall, wide = generator.integers(1, height + 1, 70), generator.integers(1, width + 1, 70)
    top, left = generator.integers(0, height - tall + 1), generator.integers(0, width - wide + 1)
    boxes, flips = np.stack([top, left, tall, wide], axis=1), generator.random(70) < 0.5
    resized = resize_boxes(pixels, boxes, flips, how)
    each = [
        resize_quickly(Box(*box).cut(image), size, how)
        for box, image in zip(boxes.tolist(), pixels, strict=True)
    ]
    turned = [one[:, ::-1] if flip else one for one, flip in zip(each, flips, strict=True)]
    away = np.abs(resized.astype(int) - turned)
    # Torch's weights have 15 bits: after a cubic's overshoot that may be felt twice.
    assert away.max() <= (2 if interpolation == "bicubic" else 1)
    assert away.mean() < 0.02
