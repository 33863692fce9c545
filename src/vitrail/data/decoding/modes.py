"""Convert images of all of Pillow's modes to uint8 RGB or gray."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from vitrail.data.decoding.faults import ImageError

BACKGROUND = 255
"""White, on which transparent images are composited."""

DEEP = {"I;16", "I;16L", "I;16B", "I;16N", "I", "F"}
_BITS = 258  # TIFF's tag BitsPerSample
_BAND = 2**20  # pixels copied at a time; Pillow's own conversion holds a large image three times


def to_array(
    image: Image.Image, channels: int, levels: tuple[float, float] | None = None
) -> np.ndarray:
    """Convert an image to uint8 (height, width, channels).

    Gray of more than 8 bits is scaled, by `levels` of black and white if they are known: else 16
    bits by 1/257, 12 bits by 255/4095. If the file does not define white, the values do: integers
    up to 65535 count as 16 bits, floats up to 1 or up to 255 as that range, and others are
    stretched from the smallest to the largest. Color becomes gray by Pillow's rule, 0.299 R +
    0.587 G + 0.114 B. Four channels are RGBA, if the image has alpha.
    """
    image.load()  # before its mode is looked at, which this may change
    if image.mode in DEEP:
        image = _shallow(image, levels)
    if channels == 4 and image.has_transparency_data:
        return _pixels(_convert(image, "RGBA"))
    if channels not in (1, 3):
        bands = len(image.getbands())
        text = f"an image of {bands} channels ({image.mode}), but {channels} are expected"
        raise ImageError(f"{text}; keep such images as .npy files", "wrong channels")
    if image.has_transparency_data:
        image = _flatten(image)
    image = _convert(image, "L" if channels == 1 or image.mode in ("1", "L") else "RGB")
    pixels = _pixels(image)
    return pixels if pixels.shape[2] == channels else np.dstack([pixels[..., 0]] * 3)


def _convert(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)  # which would copy


def _flatten(image: Image.Image) -> Image.Image:
    """Composite an image with transparent pixels on the background."""
    image = _convert(image, "RGBA")
    canvas = Image.new("RGB", image.size, (BACKGROUND,) * 3)
    canvas.paste(image, mask=image)
    return canvas


def _bands(image: Image.Image) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield an image as arrays of some rows each."""
    width, height = image.size
    step = max(1, _BAND // width)
    for top in range(0, height, step):
        bottom = min(top + step, height)
        yield slice(top, bottom), np.asarray(image.crop((0, top, width, bottom)))


def _pixels(image: Image.Image) -> np.ndarray:
    """Copy the pixels of an image: (height, width, channels)."""
    pixels = np.empty((image.height, image.width, len(image.getbands())), np.uint8)
    for rows, band in _bands(image):
        pixels[rows] = band.reshape(len(band), image.width, -1)
    return pixels


def _shallow(image: Image.Image, levels: tuple[float, float] | None) -> Image.Image:
    """Scale gray of more than 8 bits to bytes."""
    if levels is None:
        warn_scaled()
    low, high = levels or _range(image)
    clear = image.info.get("transparency")
    pixels = np.empty((image.height, image.width), np.uint8)
    for rows, band in _bands(image):
        pixels[rows] = scale(band, low, high)
        if clear is not None:
            pixels[rows][band == clear] = BACKGROUND
    return Image.fromarray(pixels)


def scale(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Scale values to uint8, `low` to 0 and `high` to 255; NaN becomes black."""
    with np.errstate(all="ignore"):
        scaled = np.subtract(values, low, dtype=np.float32)
        scaled *= 255 / ((high - low) or 1)
    np.nan_to_num(scaled, copy=False)
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def deep_values(make: Callable[[], Image.Image]) -> np.ndarray | None:
    """Read the values of an image of more than 8 bits (height, width, channels); None of others.

    `make` opens it anew. Pillow keeps only the high byte of deep colors; read as if it were of the
    other byte order, it is the low one.
    """
    image = make()
    if image.mode in DEEP:
        return np.asarray(image)[..., None]
    first, other = _raw_mode(image), make()
    if first is None or not isinstance(other, ImageFile.ImageFile):
        return None
    native = {"N": "L" if sys.byteorder == "little" else "B"}
    order = {"L": "B", "B": "L"}[native.get(first[-1], first[-1])]
    other.tile = [
        tile._replace(args=_with_mode(tile.args, first[:-1] + order)) for tile in other.tile
    ]
    high, low = _pixels(image), _pixels(other)
    return high.astype(np.uint16) << 8 | low


def has_deep_colors(image: Image.Image) -> bool:
    """Tell whether an image has colors of 16 bits, of which Pillow keeps 8."""
    return _raw_mode(image) is not None


def _raw_mode(image: Image.Image) -> str | None:
    """Return how Pillow unpacks deep colors, such as `RGB;16B`; None for anything else."""
    if not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return None
    args = image.tile[0].args
    mode = args[0] if isinstance(args, tuple) and args else args
    return mode if isinstance(mode, str) and re.fullmatch(r"RGB[AX]?;16[BLN]", mode) else None


def _with_mode(args: Any, mode: str) -> Any:
    return (mode, *args[1:]) if isinstance(args, tuple) else mode


def _range(image: Image.Image) -> tuple[float, float]:
    """Return the values of black and white in an image of more than 8 bits."""
    if image.mode not in ("I", "F"):
        bits = getattr(image, "tag_v2", {}).get(_BITS, (16,))[0]
        return 0, 2**bits - 1
    finite = (band[np.isfinite(band)] for _, band in _bands(image))
    ends = [(float(values.min()), float(values.max())) for values in finite if values.size]
    low, high = min((end[0] for end in ends), default=0), max((end[1] for end in ends), default=0)
    return known_range(low, high, (65535,) if image.mode == "I" else (1, 255))


def known_range(low: float, high: float, tops: tuple[int, ...]) -> tuple[float, float]:
    """Return the values of black and white by those that occur: 0 and a usual top, or they."""
    for top in tops:
        if low >= 0 and high <= top:
            return 0, top
    return low, high


@cache
def warn_scaled() -> None:
    """Warn once that gray levels are lost."""
    text = "16-bit images are scaled by 1/257; other deep ones to 8 bits as well"
    logging.getLogger("vitrail").warning(text)
