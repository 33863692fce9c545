"""Decoding: the same pixels by either decoder, smaller ones on request, and errors of one type."""

import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tests.data.decoding.images import encode, exif, photo, run_fresh, tall_jpeg
from vitrail.config import InputError
from vitrail.data.decoding import decode as decoding
from vitrail.data.decoding.decode import ImageError, decode, read_header
from vitrail.data.decoding.faults import explained

LOSSLESS = ("PNG", "BMP", "TIFF", "PPM")
FORMATS = ("JPEG", "GIF", "WEBP", "AVIF", *LOSSLESS)
SMALL = {name: encode(photo(24, 40), name) for name in FORMATS} | {
    "progressive": encode(photo(24, 40), "JPEG", progressive=True, exif=exif(6)),
    "palette": encode(Image.fromarray(photo(24, 40)).quantize(16), "PNG", transparency=3),
    "deep": encode(photo(24, 40)[..., 0].astype(np.uint16) * 257, "TIFF", compression="tiff_lzw"),
    "alpha": encode(np.dstack([photo(24, 40), photo(24, 40)[..., 0]]), "WEBP"),
}
"""Small files of each format, to be damaged."""


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_keep_every_pixel(name: str) -> None:
    pixels = decode(encode(photo(24, 40), name))
    np.testing.assert_array_equal(pixels, photo(24, 40))
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": "4:4:4"}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("shrink", [1, 2, 3.9, 4, 8, 100])
def test_both_decoders_of_jpeg_agree(
    mode: str, options: dict, shrink: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(Image.fromarray(photo(133, 250)).convert(mode), "JPEG", **options)
    for channels in (1, 3):
        fast = decode(data, channels=channels, shrink=shrink)
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "simplejpeg", None)
            np.testing.assert_array_equal(decode(data, channels=channels, shrink=shrink), fast)
        assert fast.flags.writeable


def test_the_fast_decoder_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SMALL["JPEG"]
    np.testing.assert_array_equal(decode(data), simplejpeg.decode_jpeg(data))
    monkeypatch.setattr(decoding, "open_image", lambda *_: pytest.fail("Pillow was asked"))
    decode(data)


def test_pillow_decides_where_the_fast_decoder_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = decode(SMALL["JPEG"])

    class Broken:
        @staticmethod
        def decode_jpeg(*_: object, **__: object) -> None:
            raise RuntimeError("out of order")

    monkeypatch.setattr(decoding, "simplejpeg", Broken)
    np.testing.assert_array_equal(decode(SMALL["JPEG"]), expected)


@given(st.integers(1, 200), st.integers(1, 200), st.floats(1, 20))
@settings(max_examples=30)
def test_a_shrunk_image_is_never_smaller_than_asked(height: int, width: int, shrink: float) -> None:
    data = encode(photo(height, width), "JPEG")
    shape = decode(data, shrink=shrink).shape
    factors = [factor for factor in (1, 2, 4, 8) if shape[0] == -(-height // factor)]
    assert any(shape == (-(-height // factor), -(-width // factor), 3) for factor in factors)
    assert shape[0] >= height / shrink
    assert shape[1] >= width / shrink
    if min(height, width) >= 64 and shrink >= 2:
        assert shape[0] < height


def test_a_shrunk_image_shows_the_same() -> None:
    small = decode(encode(photo(256, 256), "JPEG", quality=95), shrink=4)
    means = photo(256, 256).reshape(64, 4, 64, 4, 3).mean((1, 3))
    assert abs(small - means).max() < 4


def test_other_formats_do_not_shrink() -> None:
    assert decode(SMALL["PNG"], shrink=8).shape == (24, 40, 3)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 30_000), (30_000, 1)])
@pytest.mark.parametrize("name", ["JPEG", "PNG"])
def test_tiny_and_narrow_images(name: str, height: int, width: int) -> None:
    data = encode(photo(height, width), name)
    assert decode(data, shrink=8).shape == (height, width, 3)


FRAMES = [photo(24, 40), 255 - photo(24, 40), photo(24, 40) // 2]


@pytest.mark.parametrize("name", ["GIF", "PNG", "WEBP", "AVIF", "TIFF", "MPO"])
def test_the_first_of_several_images(name: str) -> None:
    first, *others = map(Image.fromarray, FRAMES)
    data = encode(first, name, save_all=True, append_images=others, quality=95)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    assert abs(decode(data).astype(int) - FRAMES[0]).mean() < 6
    assert read_header(data).format == ("JPEG" if name == "MPO" else name)


@pytest.mark.parametrize("name", ["GIF", "PNG", "TIFF", "MPO"])
def test_later_images_cost_nothing(name: str) -> None:
    """What isn't looked at can be destroyed."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    frames = [Image.fromarray(photo(24, 40)), *[Image.fromarray(noise)] * 3]
    data = encode(frames[0], name, save_all=True, append_images=frames[1:])
    size = len(encode(frames[0], name, save_all=True)) + 400
    assert size < len(data) * 3 / 4
    np.testing.assert_array_equal(decode(data[:size] + bytes(len(data) - size)), decode(data))


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_images_are_refused(name: str) -> None:
    """None comes half gray: a cut that is overlooked has cost no pixel."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encode(noise, name)
    for part in (0.05, 0.3, 0.5, 0.7, 0.9):
        with pytest.raises(ImageError) as caught:
            decode(data[: int(part * len(data))])
        certain = name not in ("WEBP", "AVIF") and part > 0.1
        assert caught.value.kind in (("truncated",) if certain else ("truncated", "damaged"))
    whole = decode(data)
    for missing in range(1, 40):
        with suppress(ImageError):
            np.testing.assert_array_equal(decode(data[:-missing]), whole)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


@given(st.sampled_from(sorted(SMALL)), st.data())
@settings(max_examples=300)
def test_damaged_files_raise_nothing_else(name: str, choose: st.DataObject) -> None:
    data = bytearray(SMALL[name])
    last = len(data) - 1
    for _ in range(choose.draw(st.integers(0, 8))):
        # Headers are where damage has the most kinds of consequences.
        at = choose.draw(st.integers(0, last) | st.integers(0, min(100, last)))
        data[at] = choose.draw(st.integers(0, 255))
    cut = choose.draw(st.just(len(data)) | st.integers(0, len(data)))
    channels, shrink = choose.draw(st.sampled_from([1, 3, 4])), choose.draw(st.sampled_from([1, 8]))
    try:
        header = read_header(bytes(data[:cut]))
        if header.height * header.width > 10**6:  # much time for one example
            return
        pixels = decode(bytes(data[:cut]), channels=channels, header=header, shrink=shrink)
    except ImageError as error:
        check_line(error)
        return
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == channels
    assert shrink > 1 or pixels.shape[:2] == (header.height, header.width)


def check_line(error: ImageError) -> None:
    assert error.kind
    assert 0 < len(str(error)) < 200
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError("broken data stream"),
        SyntaxError("not identified"),
        NotImplementedError("I;24"),
        TypeError("bad operand"),
        KeyError("MPO"),
        OverflowError("too large to convert"),
        ZeroDivisionError(),
        ValueError("two\nlines " + "and long " * 50),
    ],
)
def test_every_exception_becomes_one_line(error: Exception) -> None:
    with pytest.raises(ImageError) as caught, explained("PNG"):
        raise error
    assert caught.value.kind == "damaged"
    assert str(caught.value).startswith("damaged PNG: ")
    assert len(str(caught.value)) < 100
    assert "\n" not in str(caught.value)


def test_kinds_of_exceptions() -> None:
    kinds = {
        EOFError(): "truncated",
        OSError("image file is truncated (3 bytes not processed)"): "truncated",
        MemoryError(): "too large",
        Image.DecompressionBombError("many"): "too large",
    }
    for error, kind in kinds.items():
        with pytest.raises(ImageError) as caught, explained("PNG"):
            raise error
        assert caught.value.kind == kind
    with pytest.raises(KeyboardInterrupt), explained("PNG"):
        raise KeyboardInterrupt


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ImageError("gone", "unreadable")))
    assert type(error) is ImageError
    assert isinstance(error, InputError)
    assert (str(error), error.kind) == ("gone", "unreadable")


def test_threads_do_not_disturb_each_other() -> None:
    names = sorted(SMALL) * 8
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda name: decode(SMALL[name]), names))
    for name, pixels in zip(names, results, strict=True):
        np.testing.assert_array_equal(pixels, decode(SMALL[name]))


SCRIPT = """
    import sys
    sys.modules["simplejpeg"] = {module}
    from vitrail.data.decoding.decode import decode
    data = sys.stdin.buffer.read()
    print(*decode(data, shrink=8).shape, len(data), peak_megabytes())
"""


@pytest.mark.parametrize("module", ["None", "__import__('simplejpeg')"])
def test_100_megapixels_need_little_memory(module: str) -> None:
    """In a process of its own, where also no warning may come, and simplejpeg be missing."""
    done = run_fresh(SCRIPT.format(module=module), tall_jpeg(10_000, 10_000))
    assert done.stderr == b""
    height, width, channels, size, peak = map(int, done.stdout.split())
    assert (height, width, channels) == (1250, 1250, 3)
    assert size > 10**6
    assert peak < 300
