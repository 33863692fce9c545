"""Every kind of pixels becomes bytes: deep gray keeps its levels, colors and alpha are right."""

import io
import logging
import zlib

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageCms

from tests.data.decoding.images import chunk, encode, photo, png
from vitrail.data.decoding.decode import ImageError, decode
from vitrail.data.decoding.modes import BACKGROUND, warn_scaled


@pytest.fixture(autouse=True)
def _first_time() -> None:
    warn_scaled.cache_clear()


def gray_of(data: bytes) -> np.ndarray:
    """Decode to three channels, which must be alike, and to one, which must be the same."""
    pixels, single = decode(data), decode(data, channels=1)
    assert pixels.flags.c_contiguous
    assert single.shape == (*pixels.shape[:2], 1)
    for channel in range(3):
        np.testing.assert_array_equal(pixels[..., channel], single[..., 0])
    return single[..., 0]


@pytest.mark.parametrize("name", ["PNG", "TIFF", "PPM"])
def test_a_ramp_of_16_bits_stays_a_ramp(name: str) -> None:
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    gray = gray_of(encode(ramp, name))
    np.testing.assert_array_equal(gray, (ramp.astype(int) + 128) // 257)
    assert len(np.unique(gray)) == 256


def test_a_big_endian_tiff_of_16_bits() -> None:
    ramp = np.arange(0, 65536, 16, dtype=">u2").reshape(64, 64)
    image = Image.frombytes("I;16B", (64, 64), ramp.tobytes())
    np.testing.assert_array_equal(gray_of(encode(image, "TIFF")), np.rint(ramp / 257))


def test_a_tiff_of_12_bits_is_scaled_by_its_own_white() -> None:
    strip = bytes([0x00, 0x0F, 0xFF, 0x80, 0x08, 0x00])  # 0, 4095, 2048, 2048 of 12 bits each
    tags = [(256, 4), (257, 1), (258, 12), (259, 1), (262, 1), (273, 122), (277, 1), (279, 6)]
    entries = [np.array([tag, 3], "<u2").tobytes() for tag, _ in tags]
    numbers = [np.array([1, value], "<u4").tobytes() for _, value in tags]
    body = b"".join(a + b for a, b in zip(entries, numbers, strict=True))
    data = b"II*\0\x08\0\0\0\x08\0" + body + b"\0" * (122 - 10 - len(body)) + strip
    assert gray_of(data).tolist() == [[0, 255, 128, 128]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),  # fractions of white
        ([0.0, 100.0, 254.6], [0, 100, 255]),  # bytes as they are
        ([-1000.0, 0.0, 1000.0], [0, 128, 255]),  # from the least to the greatest
        ([0.0, 30000.0, 60000.0], [0, 128, 255]),
        ([np.nan, 0.25, np.inf], [0, 64, 255]),
        ([np.nan, np.nan, np.nan], [0, 0, 0]),
        ([-7.0, -7.0, -7.0], [0, 0, 0]),
    ],
)
def test_fractions(values: list[float], expected: list[int]) -> None:
    for name in ("TIFF", "PPM"):
        assert gray_of(encode(np.array([values], np.float32), name)).tolist() == [expected]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 255, 65535], [0, 1, 255]),
        ([0, 50000, 100000], [0, 128, 255]),
        ([-1, 0, 1], [0, 128, 255]),
    ],
)
def test_whole_numbers_of_32_bits(values: list[int], expected: list[int]) -> None:
    assert gray_of(encode(np.array([values], np.int32), "TIFF")).tolist() == [expected]


def test_a_clear_level_of_16_bits_is_white() -> None:
    rows = np.array([[0, 1000, 65535]], ">u2").tobytes()
    idat = chunk(b"IDAT", zlib.compress(b"\0" + rows))
    data = png(1, 3, chunk(b"tRNS", b"\x03\xe8"), idat, kind=b"\x10\0")
    assert gray_of(data).tolist() == [[0, BACKGROUND, 255]]


def test_deep_images_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    data = encode(np.zeros((4, 4), np.uint16), "PNG")
    with caplog.at_level(logging.WARNING, "vitrail"):
        for _ in range(3):
            decode(data)
    assert [record.getMessage() for record in caplog.records] == [
        "16-bit images are scaled by 1/257; other deep ones to 8 bits as well"
    ]


def test_colors_of_16_bits() -> None:
    rows = np.array([[0, 257 * 77, 65535]], ">u2").tobytes()
    data = png(1, 1, chunk(b"IDAT", zlib.compress(b"\0" + rows)), kind=b"\x10\2")
    assert decode(data).tolist() == [[[0, 77, 255]]]


@pytest.mark.parametrize("name", ["JPEG", "TIFF"])
def test_cmyk_is_near_a_second_decoder(name: str) -> None:
    image = Image.fromarray(photo(64, 64)).convert("CMYK")
    jpeg = encode(image, "JPEG", quality=95)
    second = simplejpeg.decode_jpeg(jpeg, "RGB").astype(int)
    pixels = decode(jpeg if name == "JPEG" else encode(image, name))
    assert abs(pixels - second).max() <= 12
    assert abs(pixels - photo(64, 64).astype(int)).max() <= 12


def test_lab() -> None:
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    transform = ImageCms.buildTransform(*profiles, "RGB", "LAB")
    lab = ImageCms.applyTransform(Image.fromarray(photo(16, 16)), transform)
    assert lab is not None
    pixels = decode(encode(lab, "TIFF"))
    assert abs(pixels - photo(16, 16).astype(int)).mean() < 3


def test_a_palette() -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 255, 0, 0, 0, 0, 255])
    colors = [[[10, 20, 30], [255, 0, 0]], [[0, 0, 255], [255, 0, 0]]]
    for name in ("PNG", "GIF", "BMP", "TIFF"):
        assert decode(encode(image, name)).tolist() == colors


@pytest.mark.parametrize("name", ["PNG", "GIF"])
def test_a_palette_with_a_clear_color(name: str) -> None:
    image = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 255, 0, 0])
    assert decode(encode(image, name, transparency=0)).tolist() == [[[255] * 3, [255, 0, 0]]]


def test_a_palette_with_alpha_for_each_color() -> None:
    image = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 255, 0, 0])
    data = encode(image, "PNG", transparency=bytes([0, 128]))
    assert decode(data).tolist() == [[[255, 255, 255], [255, 127, 127]]]


@pytest.mark.parametrize("name", ["PNG", "WEBP", "TIFF"])
def test_color_hidden_under_alpha_is_not_seen(name: str) -> None:
    pixels = np.array([[[200, 0, 0, 0], [200, 0, 0, 255], [200, 0, 0, 51]]], np.uint8)
    options = {"lossless": True, "exact": True} if name == "WEBP" else {}
    alpha = pixels[..., 3:] / 255
    expected = np.rint(pixels[..., :3] * alpha + BACKGROUND * (1 - alpha))
    data = encode(pixels, name, **options)
    np.testing.assert_array_equal(decode(data), expected)
    np.testing.assert_array_equal(decode(data, channels=4), pixels)


def test_grey_with_alpha() -> None:
    image = Image.fromarray(np.array([[[100, 255], [100, 0]]], np.uint8), "LA")
    assert gray_of(encode(image, "PNG")).tolist() == [[100, 255]]


@pytest.mark.parametrize("name", ["PNG", "TIFF", "BMP", "GIF", "PPM"])
def test_one_bit(name: str) -> None:
    image = Image.fromarray(np.array([[0, 255, 255, 0]], np.uint8)).convert("1")
    assert gray_of(encode(image, name)).tolist() == [[0, 255, 255, 0]]


def test_grey_is_that_of_pillow() -> None:
    colors = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for name in ("PNG", "JPEG"):
        data = encode(colors, name)
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
        np.testing.assert_array_equal(decode(data, channels=1)[..., 0], expected)


def test_many_rows_are_copied_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.decoding.modes._BAND", 50)
    np.testing.assert_array_equal(decode(encode(photo(13, 17), "PNG")), photo(13, 17))
    wide = np.arange(600, dtype=np.uint16).reshape(2, 300) * 100
    np.testing.assert_array_equal(gray_of(encode(wide, "PNG")), np.rint(wide / 257))


@pytest.mark.parametrize(("name", "channels"), [("JPEG", 4), ("PNG", 4), ("PNG", 2), ("JPEG", 5)])
def test_other_channels_are_refused(name: str, channels: int) -> None:
    with pytest.raises(ImageError, match=f"3 channels .* {channels} are expected") as caught:
        decode(encode(photo(8, 8), name), channels=channels)
    assert caught.value.kind == "wrong channels"
