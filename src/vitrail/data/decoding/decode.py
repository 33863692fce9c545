"""Decode a file's bytes to pixels: upright, 8 bits, and with the requested channels.

An animation gives its first image, a file of several pages the one that is asked for. simplejpeg
decodes JPEGs where it is installed: it is faster than Pillow, releases the GIL, and gives the same
pixels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from vitrail.data.decoding.arrays import fit_channels, read_npy, to_bytes
from vitrail.data.decoding.bands import MULTISPECTRAL, decode_bands, read_bands
from vitrail.data.decoding.faults import LIMITS, ImageError, Limits, explained
from vitrail.data.decoding.header import Header, open_image, read_header
from vitrail.data.decoding.modes import BACKGROUND, DEEP, deep_values, to_array
from vitrail.data.decoding.orientation import turn
from vitrail.data.decoding.reading import PLAIN, Reading

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

__all__ = ["LIMITS", "Header", "ImageError", "Limits", "decode", "read_header", "read_values"]

_STACK = 20  # times the pixels of the largest image that all pages of a stack may have


def decode(
    data: bytes,
    *,
    channels: int = 3,
    limits: Limits = LIMITS,
    header: Header | None = None,
    shrink: float = 1.0,
    reading: Reading | None = None,
) -> np.ndarray:
    """Decode an image to uint8 (height, width, channels); ImageError if it can't be used.

    With the `header` that `read_header` gave for the same bytes, its checks are not repeated. With
    `shrink`, a JPEG may come smaller by a factor of 2, 4 or 8, at most by `shrink`, to save time
    and memory. `reading` says what is black and white in deep images, and which page counts.
    """
    header = header or read_header(data, limits)
    reading = reading or PLAIN
    if header.format == "NPY":
        return fit_channels(to_bytes(read_npy(data), reading.levels), channels)
    if header.needs_tifffile(channels):
        if reading.page != 1 and header.pages > 1:
            text = "pages of several bands each are not supported; save one page as a file"
            raise ImageError(text, "unsupported format")
        return decode_bands(data, channels, limits, reading.levels)
    if header.pages > 1 and reading.page != 1:
        return _decode_pages(data, channels, limits, header, reading)
    if header.deep and reading.levels is not None and header.mode not in DEEP:
        values = read_values(data, header, limits)
        if values is not None:
            return _to_pixels(values, channels, reading.levels)
    factor = _factor(header, shrink)
    pixels = _decode_fast(data, header, channels, factor)
    if pixels is None:
        with explained(header.format):
            pixels = to_array(_open(data, header, factor), channels, reading.levels)
    return turn(pixels, header.orientation)


def read_values(
    data: bytes, header: Header, limits: Limits = LIMITS, *, page: int = 1
) -> np.ndarray | None:
    """Read the values of an image of more than 8 bits, upright (height, width, channels).

    None if it has no more than 8 bits.
    """
    if not header.deep:
        return None
    if header.format == "NPY":
        return read_npy(data)
    if header.format == MULTISPECTRAL:
        return read_bands(data, limits)
    with explained(header.format):
        values = deep_values(lambda: _open_page(data, header, page))
    return None if values is None else turn(values, header.orientation)


def _decode_pages(
    data: bytes, channels: int, limits: Limits, header: Header, reading: Reading
) -> np.ndarray:
    """Decode one page of a TIFF, or all of the first one's size to their largest or mean value."""
    if isinstance(reading.page, int):
        if reading.page > header.pages:
            text = f"page={reading.page}, but the file has {header.pages:,} pages"
            raise ImageError(text, "unsupported format")
        numbers = [reading.page]
    else:
        numbers = list(range(1, header.pages + 1))
    if header.height * header.width * len(numbers) > _STACK * limits.pixels:
        text = f"{header.pages:,} pages of {header.width} x {header.height} pixels are too many"
        raise ImageError(f"{text}; save fewer", "too large")
    found: np.ndarray | None = None
    count = 0
    for number in numbers:
        values = read_values(data, header, limits, page=number)
        if values is None:
            with explained(header.format):
                image = _open_page(data, header, number)
                values = turn(to_array(image, channels), header.orientation)
        if found is None:
            found = values.astype(np.float64) if reading.page == "mean" else values
        elif values.shape != found.shape:  # such as a small copy of the first page
            continue
        elif reading.page == "mean":
            found += values
        else:
            found = np.maximum(found, values)
        count += 1
    assert found is not None
    if reading.page == "mean":
        found = found / count
        if not header.deep:
            found = np.rint(found).astype(np.uint8)
        elif reading.levels is None and header.mode not in ("I", "F"):
            found = np.rint(found).astype(np.uint16)
    return _to_pixels(found, channels, reading.levels)


def _to_pixels(values: np.ndarray, channels: int, levels: tuple[float, float] | None) -> np.ndarray:
    """Scale values to pixels with the channels asked for; transparent ones become white."""
    if values.shape[2] != 4 or channels == 4:
        return fit_channels(to_bytes(values, levels), channels)
    colors, opaque = to_bytes(values[..., :3], levels), to_bytes(values[..., 3:]) / np.float32(255)
    flat = np.rint(colors * opaque + BACKGROUND * (1 - opaque)).astype(np.uint8)
    return fit_channels(flat, channels)


def _open_page(data: bytes, header: Header, page: int) -> Image.Image:
    image = open_image(data, header.format)
    if page > 1:
        image.seek(page - 1)
    return image


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
