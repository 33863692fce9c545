"""Decode a file's bytes to pixels: upright, 8 bits, and with the requested channels.

An animation or a file of several pages gives its first image. simplejpeg decodes JPEGs where it is
installed: it is faster than Pillow, releases the GIL, and gives the same pixels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from vitrail.data.decoding.arrays import decode_npy
from vitrail.data.decoding.bands import decode_bands
from vitrail.data.decoding.faults import LIMITS, ImageError, Limits, explained
from vitrail.data.decoding.header import Header, open_image, read_header
from vitrail.data.decoding.modes import to_array
from vitrail.data.decoding.orientation import turn

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

__all__ = ["LIMITS", "Header", "ImageError", "Limits", "decode", "read_header"]


def decode(
    data: bytes,
    *,
    channels: int = 3,
    limits: Limits = LIMITS,
    header: Header | None = None,
    shrink: float = 1.0,
) -> np.ndarray:
    """Decode an image to uint8 (height, width, channels); ImageError if it can't be used.

    With the `header` that `read_header` gave for the same bytes, its checks are not repeated. With
    `shrink`, a JPEG may come smaller by a factor of 2, 4 or 8, at most by `shrink`, to save time
    and memory.
    """
    header = header or read_header(data, limits)
    if header.format == "NPY":
        return decode_npy(data, channels)
    if header.needs_tifffile(channels):
        return decode_bands(data, channels, limits)
    factor = _factor(header, shrink)
    pixels = _decode_fast(data, header, channels, factor)
    if pixels is None:
        with explained(header.format):
            pixels = to_array(_open(data, header, factor), channels)
    return turn(pixels, header.orientation)


def _factor(header: Header, shrink: float) -> int:
    """Choose by how much a JPEG is shrunk: only factors that save time."""
    assert shrink >= 1
    side = min(header.height, header.width)
    if header.format == "JPEG":
        for factor in (8, 4, 2):
            if factor <= shrink and 8 * factor <= side:
                return factor
    return 1


def _decode_fast(data: bytes, header: Header, channels: int, factor: int) -> np.ndarray | None:
    """Decode a JPEG with simplejpeg; None if Pillow has to, or has to say what is wrong."""
    gray = channels == 1 and header.mode == "L"
    common = header.mode in ("L", "RGB") and (channels == 3 or gray)
    if simplejpeg is None or header.format != "JPEG" or not common:
        return None
    height, width = header.height, header.width
    if header.orientation >= 5:
        height, width = width, height
    try:
        return simplejpeg.decode_jpeg(
            data,
            "GRAY" if gray else "RGB",
            min_height=-(-height // factor) if factor > 1 else 0,
            min_width=-(-width // factor) if factor > 1 else 0,
        )
    except Exception:  # of several types, also for faults that Pillow rightly ignores
        return None


def _open(data: bytes, header: Header, factor: int) -> Image.Image:
    image = open_image(data, header.format)
    if factor > 1:
        image.draft(None, (image.width // factor, image.height // factor))
    return image
