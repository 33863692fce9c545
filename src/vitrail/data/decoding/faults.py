"""Errors of images that can't be used, and the limits of what an image may cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from vitrail.config import InputError

Kind = Literal[
    "not an image",
    "unsupported format",
    "truncated",
    "damaged",
    "too large",
    "too slow",
    "wrong channels",
    "missing package",
    "unreadable",
]
"""Kinds of errors, for counting; `unreadable` is a file that is gone or forbidden."""


class ImageError(InputError):
    """An image that can't be used; the caller adds the image's name."""

    def __init__(self, text: str, kind: Kind = "damaged") -> None:
        super().__init__(text)
        self.kind: Kind = kind


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that are checked before an image is decoded."""

    pixels: int = 100_000_000
    """Height times width; decoding takes 3 to 16 bytes of memory per pixel, most for WebP."""
    bytes: int = 256 * 2**20
    """The encoded file, and an array or the bands that it is unpacked to."""
    tifffile: bool = True
    """Whether to read the TIFFs that Pillow does not read."""

    def check_pixels(self, height: int, width: int) -> None:
        """Raise ImageError for an image with more pixels than the limit, or none."""
        if min(height, width) < 1:
            raise ImageError(f"damaged: an image of {width} x {height} pixels has no content")
        if height * width > self.pixels:
            limit = f"the limit of {self.pixels / 1e6:g} megapixels"
            text = f"{width} x {height} pixels are over {limit}; make the image smaller"
            raise ImageError(text, "too large")


LIMITS = Limits()
"""The limits for a user's own images."""


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn any error of reading a file of the named format into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except Image.DecompressionBombError:  # for a size that Pillow's header doesn't show
        raise ImageError(f"this {name} has more pixels than Pillow takes", "too large") from None
    except MemoryError:
        raise ImageError(f"this {name} needs more memory than there is", "too large") from None
    except Exception as error:  # decoders raise at least ten types, whatever they document
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        cut = ("truncated", "not enough image data", "premature end")
        if isinstance(error, EOFError) or any(word in reason.lower() for word in cut):
            text = f"truncated: this {name} ends before its image does; copy it again"
            raise ImageError(text, "truncated") from None
        raise ImageError(f"damaged {name}: {reason}", "damaged") from None
