"""Images in NumPy files (.npy), for other numbers of channels than photos have.

An array is uint8 or uint16, (height, width) or (height, width, channels).
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib import format as npy
from PIL import Image

from vitrail.data.decoding.faults import ImageError, explained
from vitrail.data.decoding.modes import known_range, scale

_HEADER = 2**14  # largest header in bytes; NumPy itself refuses more than 10,000


@dataclass(frozen=True)
class Array:
    """What a NumPy file's header says."""

    shape: tuple[int, ...]
    dtype: np.dtype
    order: Literal["C", "F"]
    """Whether the last axis varies fastest, or the first."""
    offset: int
    """Where the values start."""


def read_npy_header(data: bytes) -> Array:
    """Read a NumPy file's header, and check that the file holds an image of that size."""
    with explained("NumPy file"):
        stream = io.BytesIO(data[:_HEADER])
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        array = Array(shape, dtype, "F" if fortran else "C", stream.tell())
    known = dtype.newbyteorder("=") in (np.uint8, np.uint16)
    if not known or len(shape) not in (2, 3) or min(shape) < 1:
        text = f"a NumPy file of {dtype} {shape} is not an image; expected uint8 or uint16"
        raise ImageError(f"{text} (height, width, channels)", "unsupported format")
    if math.prod(shape) * dtype.itemsize > len(data) - array.offset:
        raise ImageError(f"truncated: a NumPy file too short for its shape {shape}", "truncated")
    return array


def read_npy(data: bytes) -> np.ndarray:
    """Read a NumPy file's values (height, width, channels)."""
    array = read_npy_header(data)
    values = np.frombuffer(data, array.dtype, math.prod(array.shape), array.offset)
    values = values.reshape(array.shape, order=array.order)
    return values[..., None] if values.ndim == 2 else values


def to_bytes(values: np.ndarray, levels: tuple[float, float] | None = None) -> np.ndarray:
    """Scale deep values to uint8, by `levels` of black and white if they are known.

    Otherwise 16 bits are scaled by 1/257, floats by the range that all of them show.
    """
    if levels is not None and values.dtype != np.uint8:
        values = scale(values, *levels)
    elif values.dtype.kind == "f":
        finite = values[np.isfinite(values)]
        ends = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        low, high = known_range(*ends, (1, 255))
        values = scale(values, low, high)
    elif values.dtype.itemsize == 2:
        values = np.rint(values / np.float32(257))
    return values.astype(np.uint8, order="C")


def fit_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Return pixels with the channels asked for: gray and color fit each other, others don't."""
    if pixels.shape[2] == channels:
        return pixels
    if pixels.shape[2] == 1 and channels == 3:
        return np.repeat(pixels, 3, axis=2)
    if pixels.shape[2] == 3 and channels == 1:
        return np.array(Image.fromarray(pixels).convert("L"))[..., None]
    text = f"the array has {pixels.shape[2]} channels, but {channels} are expected"
    raise ImageError(text, "wrong channels")
