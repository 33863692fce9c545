"""Masks land on what the model saw: any shape, any fit, EXIF-turned files too."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.inspection.seen_part import seen_part
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Fit, Preprocess
from vitrail.inspection.overlay import color_heat, overlay, place_mask


def preprocess(fit: Fit, size: tuple[int, int] = (64, 64), crop: float = 1.0) -> Preprocess:
    half = (0.5, 0.5, 0.5)
    return Preprocess(size=size, mean=half, std=half, interpolation="bilinear", fit=fit, crop=crop)


FITS = [
    preprocess("stretch"),
    preprocess("stretch", crop=0.8),
    preprocess("stretch", size=(48, 96)),
    preprocess("crop"),
    preprocess("crop", crop=0.875),
    preprocess("crop", size=(96, 48)),
    preprocess("small", crop=0.875),
]
SHAPES = [(100, 100), (80, 200), (211, 90), (40, 50)]


@pytest.mark.parametrize("rule", FITS, ids=lambda rule: f"{rule.fit}-{rule.size}-{rule.crop}")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_spot_comes_back_to_where_it_was(rule: Preprocess, shape: tuple[int, int]) -> None:
    """Draw a bright spot, find it in the model's input, and put its patch back on the image."""
    height, width = shape
    seen = seen_part(height, width, rule)
    for part in ((0.3, 0.3), (0.7, 0.45), (0.5, 0.8)):
        y = seen.top + part[0] * seen.height
        x = seen.left + part[1] * seen.width
        rows, columns = np.ogrid[:height, :width]
        spot = np.exp(-((rows + 0.5 - y) ** 2 + (columns + 0.5 - x) ** 2) / 50)
        image = np.repeat((255 * spot[..., None]).astype(np.uint8), 3, axis=2)
        input = eval_image(image, rule)[..., 0].astype(np.float32)
        back = place_mask(input, height, width, rule)  # a mask as fine as the input itself
        assert back.shape == shape
        was, now = seen.cut(image[..., 0]).astype(float), seen.cut(back)
        np.testing.assert_allclose(now, was, atol=45)  # resizing has blurred it
        for axis in (0, 1):
            places = np.arange(was.shape[axis])
            old, new = ((part.sum(1 - axis) @ places) / part.sum() for part in (was, now))
            assert new == pytest.approx(old, abs=0.5)


@pytest.mark.parametrize("rule", FITS, ids=lambda rule: f"{rule.fit}-{rule.size}-{rule.crop}")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_the_model_did_not_see_is_zero(rule: Preprocess, shape: tuple[int, int]) -> None:
    placed = place_mask(np.ones((4, 4)), *shape, rule)
    rows, columns = (np.flatnonzero(placed.any(axis)) for axis in (1, 0))
    seen = seen_part(*shape, rule)
    assert abs(rows[0] - seen.top) <= 1
    assert abs(rows[-1] + 1 - seen.top - seen.height) <= 1
    assert abs(columns[0] - seen.left) <= 1
    assert abs(columns[-1] + 1 - seen.left - seen.width) <= 1
    np.testing.assert_allclose(placed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], 1)


def test_a_mask_is_bilinear_between_its_cells_centres() -> None:
    rule = preprocess("stretch", size=(8, 8))
    placed = place_mask(np.array([[0.0, 1.0]]), 4, 8, rule)
    np.testing.assert_allclose(placed[0], [0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1], atol=1e-6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_file_is_overlaid_upright(orientation: int) -> None:
    """A mask of the top left corner lights the top left corner of the upright image."""
    upright = np.zeros((60, 100, 3), np.uint8)
    upright[:20, :30] = 255
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(upright)
    image = image.transpose(undo[orientation]) if orientation > 1 else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    rule = preprocess("stretch")
    input = eval_image(file.getvalue(), rule)[..., 0]
    mask = input.reshape(8, 8, 8, 8).mean((1, 3))  # what is bright for the model
    found = overlay(file.getvalue(), mask, rule, opacity=1.0)
    assert found.shape == upright.shape
    warmth = found[..., 0].astype(int)
    assert warmth[:15, :22].min() > 200
    assert warmth[32:, 45:].max() < 40


def test_overlay_blends_heat_into_pixels() -> None:
    image = np.full((8, 8, 1), 100, np.uint8)
    mask = np.zeros((1, 2), np.float32)
    mask[0, 1] = 3
    found = overlay(image, mask, preprocess("stretch", size=(8, 8)), opacity=0.5)
    np.testing.assert_array_equal(found[0, 0], [50, 50, 52])  # half the coldest color
    np.testing.assert_array_equal(found[0, -1], [176, 178, 132])  # half the hottest
    clear = overlay(image, mask, preprocess("stretch", size=(8, 8)), opacity=0.0)
    np.testing.assert_array_equal(clear, np.full((8, 8, 3), 100))
    assert overlay(image, 0 * mask, preprocess("stretch"), opacity=1).max() == 4


def test_heat_rises_from_dark_to_bright() -> None:
    brightness = color_heat(np.linspace(0, 1, 64)) @ [0.299, 0.587, 0.114]
    assert (np.diff(brightness) > 0).all()
