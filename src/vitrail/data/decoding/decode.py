"""From a file's bytes to pixels: upright, 8 bits, and with the channels that were asked for.

Of an animation or a file of several pages, the first image. A JPEG goes through simplejpeg where
that is installed: it is faster than Pillow, holds no lock, and gives the same pixels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from vitrail.data.decoding.arrays import decode_npy
from vitrail.data.decoding.faults import LIMITS, ImageError, Kind, Limits, explained
from vitrail.data.decoding.header import Header, open_image, read_header
from vitrail.data.decoding.modes import BACKGROUND, to_array
from vitrail.data.decoding.orientation import turn

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

__all__ = [
    "BACKGROUND",
    "LIMITS",
    "Header",
    "ImageError",
    "Kind",
    "Limits",
    "decode",
    "read_header",
]


def decode(
    data: bytes,
    *,
    channels: int = 3,
    limits: Limits = LIMITS,
    header: Header | None = None,
    shrink: float = 1.0,
) -> np.ndarray:
    """Decode an image to uint8 (height, width, channels); ImageError where it can't be used.

    With `header`, which `read_header` gave for the same bytes, its checks aren't made again. A JPEG
    may come smaller by 2, 4 or 8 times, and at most by `shrink`: that saves a part of the time and
    most of the memory.
    """
    header = header or read_header(data, limits)
    if header.format == "NPY":
        return decode_npy(data, channels)
    factor = _factor(header, shrink)
    pixels = _decode_fast(data, header, channels, factor)
    if pixels is None:
        with explained(header.format):
            pixels = to_array(_open(data, header, factor), channels)
    return turn(pixels, header.orientation)


def _factor(header: Header, shrink: float) -> int:
    """Choose by how much a JPEG comes smaller: only the factors at which that saves time."""
    assert shrink >= 1
    side = min(header.height, header.width)
    if header.format == "JPEG":
        for factor in (8, 4, 2):
            if factor <= shrink and 8 * factor <= side:
                return factor
    return 1


def _decode_fast(data: bytes, header: Header, channels: int, factor: int) -> np.ndarray | None:
    """Decode a JPEG with simplejpeg; None where Pillow has to, or has to say what is wrong."""
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
    except Exception:  # of several types, and also for what Pillow is right to overlook
        return None


def _open(data: bytes, header: Header, factor: int) -> Image.Image:
    image = open_image(data, header.format)
    if factor > 1:
        image.draft(None, (image.width // factor, image.height // factor))
    return image
