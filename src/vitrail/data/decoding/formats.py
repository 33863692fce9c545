"""Recognize a file's format by its first bytes, never by its name."""

from __future__ import annotations

import re

from vitrail.data.decoding.faults import ImageError, Kind

_KNOWN = re.compile(
    rb"(?P<JPEG>\xff\xd8\xff)|(?P<PNG>\x89PNG\r\n\x1a\n)|(?P<GIF>GIF8[79]a)|(?P<BMP>BM)"
    rb"|(?P<WEBP>RIFF....WEBP)|(?P<TIFF>II[*+]\0|MM\0[*+])|(?P<PPM>P[4-6f]\s)|(?P<NPY>\x93NUMPY)"
    rb"|(?P<AVIF>....ftyp(?:....){0,8}?avi[fs])|(?P<HEIC>....ftyp(?:he[iv]|m[is]f1))",
    re.DOTALL,
)

_REFUSED: tuple[tuple[Kind, str, bytes], ...] = (
    ("not an image", "an empty file", rb"\Z"),
    ("unsupported format", "JPEG 2000", rb"\0\0\0\x0cjP|\xff\x4f\xff\x51"),
    ("unsupported format", "JPEG XL", rb"\0\0\0\x0cJXL|\xff\x0a"),
    ("unsupported format", "SVG", rb"(\s|<\?xml.*?>|<!--.*?-->|<!DOCTYPE svg.*?>)*<svg"),
    ("unsupported format", "PDF", rb"%PDF"),
    ("unsupported format", "PostScript", rb"%!PS|\xc5\xd0\xd3\xc6"),
    ("unsupported format", "Photoshop", rb"8BPS"),
    ("unsupported format", "DICOM", rb".{128}DICM"),
    ("unsupported format", "OpenEXR", rb"v/1\x01"),
    ("unsupported format", "Radiance HDR", rb"#\?RADIANCE"),
    ("unsupported format", "FITS", rb"SIMPLE  ="),
    ("unsupported format", "PPM as text", rb"P[1-3]\s"),  # comments take Pillow O(n^2)
    ("unsupported format", "ICO", rb"\0\0[\1\2]\0"),
    ("not an image", "a web page", rb"(?i)\s*<(!doctype html|html|head|body)"),
    ("not an image", "a macOS side file", rb"\0\x05\x16\x07"),
    ("not an image", "an archive", rb"PK\x03\x04|\x1f\x8b"),
    ("not an image", "a video", rb"....ftyp|\x1aE\xdf\xa3|RIFF....AVI "),
    ("not an image", "text", rb"[\t\n\r -~]+\Z"),
)
"""Other files found among images: the kind of error, the name, and how such a file starts."""


def recognize(data: bytes) -> str:
    """Return the format of an image: Pillow's name, or NPY; ImageError for any other file."""
    known = _KNOWN.match(data)
    if known and known.lastgroup:
        return known.lastgroup
    for kind, name, pattern in _REFUSED:
        if re.match(pattern, data[:1024], re.DOTALL):
            if kind == "unsupported format":
                raise ImageError(f"{name} is not supported; convert it to JPEG or PNG", kind)
            raise ImageError(f"not an image but {name}", kind)
    formats = ", ".join(_KNOWN.groupindex)
    raise ImageError(f"not an image, or not in one of the formats {formats}", "not an image")
