"""Images as NumPy files: read without pickle, checked before use, fitted to the channels."""

import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.decoding.decode import ImageError, Limits, decode, read_header


def npy(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 12),
    st.sampled_from(["u1", "<u2", ">u2"]),
    st.booleans(),
)
@settings(max_examples=40)
def test_any_channels_and_layout(
    height: int, width: int, channels: int, kind: str, fortran: bool
) -> None:
    high = np.iinfo(np.dtype(kind)).max
    array = np.random.default_rng(0).integers(0, high + 1, (height, width, channels)).astype(kind)
    data = npy(np.asfortranarray(array) if fortran else array)
    pixels, header = decode(data, channels=channels), read_header(data)
    np.testing.assert_array_equal(pixels, np.rint(array / (high // 255)))
    assert pixels.shape == (header.height, header.width, channels)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable


def test_grey_and_color_fit_each_other() -> None:
    gray = np.arange(12, dtype=np.uint8).reshape(3, 4)
    np.testing.assert_array_equal(decode(npy(gray)), np.dstack([gray] * 3))
    np.testing.assert_array_equal(decode(npy(gray), channels=1), gray[..., None])
    color = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(color).convert("L"))
    np.testing.assert_array_equal(decode(npy(color), channels=1)[..., 0], expected)


@pytest.mark.parametrize(("has", "asked"), [(4, 3), (2, 3), (3, 4), (5, 1)])
def test_other_channels_are_refused(has: int, asked: int) -> None:
    with pytest.raises(ImageError, match=f"has {has} channels, but {asked}") as caught:
        decode(npy(np.zeros((2, 2, has), np.uint8)), channels=asked)
    assert caught.value.kind == "wrong channels"


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 2), np.float32),
        np.zeros((2, 2), np.int8),
        np.zeros(4, np.uint8),
        np.zeros((1, 2, 2, 3), np.uint8),
        np.zeros((0, 2, 3), np.uint8),
        np.zeros((2, 2), [("r", np.uint8)]),
    ],
)
def test_an_array_that_is_no_image(array: np.ndarray) -> None:
    with pytest.raises(ImageError, match="expected uint8 or uint16") as caught:
        decode(npy(array))
    assert caught.value.kind == "unsupported format"


class Canary:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("an image ran code",)


def test_nothing_is_unpickled() -> None:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "|O", "fortran_order": False, "shape": (1, 1)}
    )
    with pytest.raises(ImageError, match="object"):
        decode(stream.getvalue() + pickle.dumps([Canary()]))


def test_a_header_promises_no_memory() -> None:
    stream = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (9000, 9000, 3)}
    np.lib.format.write_array_header_1_0(stream, header)
    with pytest.raises(ImageError, match="too short for its shape") as caught:
        decode(stream.getvalue() + bytes(100))
    assert caught.value.kind == "truncated"
    with pytest.raises(ImageError, match="over the limit") as caught:
        decode(npy(np.zeros((20, 20), np.uint8)), limits=Limits(pixels=399))
    assert caught.value.kind == "too large"


@given(st.binary(max_size=300))
@settings(max_examples=60)
def test_any_header_is_refused_with_one_line(junk: bytes) -> None:
    with pytest.raises(ImageError) as caught:
        decode(b"\x93NUMPY\x01\0" + junk)
    assert "\n" not in str(caught.value)
