"""Read an image's EXIF orientation and apply it."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

_TAG = 0x0112  # EXIF's Orientation
_LONG = 4  # the type of a number of 4 bytes
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')


def exif_orientation(block: bytes) -> int | None:
    """Read the orientation from an EXIF block; None if it has none or is broken.

    Pillow takes ten times as long, warns about other tags and raises for some.
    """
    while block.startswith(b"Exif\0\0"):
        block = block[6:]
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None:
        return None
    with suppress(struct.error):  # cut short
        (at,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", block, entry)
            if tag == _TAG:
                number = "I" if kind == _LONG else "H"
                (value,) = struct.unpack_from(order + number, block, entry + 8)
                return value if 1 <= value <= 8 else None
    return None


def xmp_orientation(block: bytes) -> int | None:
    """Read the orientation from an XMP block; None if it has none."""
    match = _XMP.search(block)
    return int(match[1]) if match else None


def noted_orientation(info: Mapping[Any, Any]) -> int:
    """Find the orientation in what Pillow read from a PNG, WebP or AVIF; 1, upright, by default."""
    exif = info.get("exif", b"")
    if profile := info.get("Raw profile type exif"):  # how ImageMagick writes it into a PNG
        with suppress(ValueError):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp", "").encode()
    return exif_orientation(exif) or xmp_orientation(xmp) or 1


def turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate or flip pixels (height, width, channels) upright, in new memory."""
    if orientation == 1:
        return pixels
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    turned = np.empty(pixels.shape, pixels.dtype)
    for channel in range(pixels.shape[2]):  # one by one, NumPy copies them 3 times as fast
        turned[..., channel] = pixels[..., channel]
    return turned
