"""Multispectral TIFFs: of other bands, or of deeper ones, than Pillow reads, with tifffile.

It is written for files that one trusts, so all that a file claims is checked before pixels are
read, and the server does without it.
"""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from vitrail.data.decoding.arrays import fit_channels, to_bytes
from vitrail.data.decoding.faults import ImageError, Limits, explained
from vitrail.data.decoding.orientation import turn

if TYPE_CHECKING:
    from tifffile import TiffPage

MULTISPECTRAL = "multispectral TIFF"
"""The format's name in an image's header."""

_PHOTOMETRIC, _SAMPLES, _ORIENTATION = 262, 277, 274  # TIFF's tags
_LEVELS = (1, 2)  # photometric interpretations: gray with black as 0, and RGB
# Most bytes that one unpacks to: stored, LZW, and deflate by its two numbers.
_DENSEST = {1: 1, 5: 2560, 8: 1032, 32946: 1032}
_DTYPES = ("uint8", "uint16", "float16", "float32", "float64")
_MOST_PAGES = 10_000
_SEGMENTS = 200_000  # strips or tiles; tifffile spends about 20 us on each

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # else it writes to the terminal


def is_big(data: bytes) -> bool:
    """Tell BigTIFF, with offsets of 8 bytes, from TIFF."""
    return data[2:4] in (b"+\0", b"\0+")


def count_bands(tags: Mapping[int, Any]) -> int:
    """Count the bands of a TIFF; 0 if they are not levels, as those of a palette or CMYK."""
    return int(tags.get(_SAMPLES, 1)) if tags.get(_PHOTOMETRIC) in _LEVELS else 0


def count_bands_of_file(data: bytes) -> int:
    """Count the bands of a file that Pillow does not open, in its first page."""
    tags = ImageFileDirectory_v2(data[: 16 if is_big(data) else 8])
    stream = io.BytesIO(data)
    stream.seek(tags.next)
    tags.load(stream)
    return count_bands(tags)


def read_bands_header(data: bytes, limits: Limits) -> tuple[int, int, str]:
    """Read height and width, as displayed, and dtype; ImageError for what can't be decoded."""
    with _first_page(data, limits) as page:
        height, width = page.imagelength, page.imagewidth
        if _orientation(page) >= 5:
            height, width = width, height
        return height, width, str(page.dtype)


def decode_bands(
    data: bytes, channels: int, limits: Limits, levels: tuple[float, float] | None = None
) -> np.ndarray:
    """Decode a TIFF's first page to uint8 (height, width, channels), its bands in their order."""
    return fit_channels(to_bytes(read_bands(data, limits), levels), channels)


def read_bands(data: bytes, limits: Limits) -> np.ndarray:
    """Read the values of a TIFF's first page, upright (height, width, bands)."""
    with _first_page(data, limits) as page:
        values = np.zeros(page.shaped, page.dtype)  # (planes, 1, height, width, bands of a plane)
        segments = zip(page.dataoffsets, page.databytecounts, strict=True)
        for index, (start, size) in enumerate(segments):
            part, (plane, _, top, left, _), _ = page.decode(data[start : start + size], index)
            assert part is not None
            place = values[plane, 0, top : top + part.shape[1], left : left + part.shape[2]]
            place[:] = part[0, : place.shape[0], : place.shape[1]]
        return turn(np.concatenate(values[:, 0], axis=2), _orientation(page))


@contextmanager
def _first_page(data: bytes, limits: Limits) -> Iterator[TiffPage]:
    """Open a TIFF and check its first page; others are never looked at."""
    try:
        import imagecodecs  # noqa: F401  # with which tifffile bounds what it unpacks
        import tifffile
    except ImportError:
        text = "a TIFF of several bands needs another package: pip install 'vitrail[data]'"
        raise ImageError(text, "missing package") from None
    with explained("TIFF"):
        stream = io.BytesIO(data)  # no microscope's file, of which more than a page would be read
        with tifffile.TiffFile(stream, is_lsm=False, is_ndpi=False, is_scanimage=False) as file:
            page = file.pages.first
            _check(page, len(data), limits)
            yield page


def _check(page: TiffPage, length: int, limits: Limits) -> None:
    """Raise ImageError for a page that can't be decoded, or claims more than its file holds."""
    limits.check_pixels(page.imagelength, page.imagewidth)
    plain = page.imagedepth == page.tiledepth == 1 and page.photometric in _LEVELS
    if not plain or str(page.dtype) not in _DTYPES or page.compression not in _DENSEST:
        kind = f"{page.samplesperpixel} bands of {page.dtype}, compression {page.compression:d}"
        text = f"a TIFF of {kind}, is not supported; save {', '.join(_DTYPES)} with deflate or LZW"
        raise ImageError(text, "unsupported format")
    assert page.dtype is not None
    need = max(prod(page.shape), prod(page.chunks)) * page.dtype.itemsize
    if need > limits.bytes:
        size, limit = need / 2**20, limits.bytes / 2**20
        text = f"bands of {size:.4g} MiB are over the limit of {limit:.4g}; make the image smaller"
        raise ImageError(text, "too large")
    count = prod(page.chunked)
    if count > _SEGMENTS:
        raise ImageError(f"too slow: a TIFF of {count} strips; save it with fewer", "too slow")
    held = sum(page.databytecounts)
    ends = map(sum, zip(page.dataoffsets, page.databytecounts, strict=True))
    enough = held * _DENSEST[page.compression] >= prod(page.shape) * page.dtype.itemsize
    if len(page.databytecounts) != count or not enough or max(ends) > length:
        raise ImageError("truncated: a TIFF too short for its bands; copy it again", "truncated")


def _orientation(page: TiffPage) -> int:
    found = page.tags.valueof(_ORIENTATION)
    return found if found in range(1, 9) else 1


def count_pages(data: bytes) -> int:
    """Count the pages of a TIFF by the chain of its directories, at most `_MOST_PAGES`."""
    order = "<" if data[:2] == b"II" else ">"
    big = is_big(data)
    entries, size, last, at = ("Q", 20, "Q", 8) if big else ("H", 12, "I", 4)
    seen: set[int] = set()
    while len(seen) < _MOST_PAGES:
        try:
            (at,) = struct.unpack_from(order + last, data, at)
            if not at or at in seen:
                break
            (count,) = struct.unpack_from(order + entries, data, at)
        except struct.error:  # the chain leads out of the file
            break
        seen.add(at)
        at += struct.calcsize(entries) + count * size
    return max(1, len(seen))
