"""Read an image's header: its format, size and orientation.

Nothing is decoded here, and nothing is allocated because a file claims to need it. Four checks
bound the cost of decoding: the size of the file, the pixels in its header, the scans of a JPEG, and
the reads of Pillow's parsers, which are Python. An image at all limits takes a core about 10 s.
"""

from __future__ import annotations

import io
import logging
import struct
import warnings
from dataclasses import dataclass

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from vitrail.data.decoding.arrays import read_npy_header
from vitrail.data.decoding.bands import (
    MULTISPECTRAL,
    count_bands,
    count_bands_of_file,
    count_pages,
    is_big,
    read_bands_header,
)
from vitrail.data.decoding.faults import LIMITS, ImageError, Limits, explained
from vitrail.data.decoding.formats import recognize
from vitrail.data.decoding.modes import DEEP, has_deep_colors
from vitrail.data.decoding.orientation import exif_orientation, noted_orientation, xmp_orientation

# Pillow warns of broken metadata and of images above its own limit of pixels. Many threads read
# images, and Python can silence a warning for all threads only: so for good.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.\w+ImagePlugin")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors go to the terminal

_READERS: dict[str, type[ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
    "PPM": PpmImagePlugin.PpmImageFile,
}
"""The supported formats; Pillow's many others are rare, and each is a risk with hostile files."""

_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG's markers that state the size
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_SCAN, _APP1 = 0xDA, 0xE1
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}

# What Pillow says of a TIFF that is whole, but of a kind that it doesn't read.
_UNKNOWN = (
    "unknown pixel mode",
    "unknown data organization",
    "Invalid value for samples per pixel",
    "string index out of range",  # more planes than the mode has
)
_BITS, _PLANAR = 258, 284  # TIFF's tags BitsPerSample and PlanarConfiguration

_PARTS = 100_000  # of a header, with each byte of junk between them
_METADATA = 16 * 2**20  # bytes before a JPEG's first scan: Pillow joins EXIF blocks in O(n^2)
_SCANS = 20  # of a JPEG with as many pixels as are allowed; a smaller one may have more
_SHORTEST = 10  # bytes of a scan
_READS = 2_000_000  # of Pillow, which spends up to 2 us on each


@dataclass(frozen=True)
class Header:
    """What is known of an image before it is decoded."""

    format: str
    height: int
    """As displayed, after applying the orientation."""
    width: int
    mode: str
    """Pillow's mode; for a NumPy file or a multispectral TIFF, the dtype."""
    orientation: int = 1
    """The EXIF orientation, 1 to 8, that the decoded pixels still need."""
    bands: int = 0
    """Channels of a NumPy file or TIFF; of a TIFF, Pillow may see fewer."""
    deep: bool = False
    """Whether it has more than 8 bits per channel."""
    pages: int = 1
    """Pages of a TIFF."""

    @property
    def channels(self) -> int:
        """Channels to decode an image with to see all of it: its own, if no photo has as many."""
        own = self.format in ("NPY", MULTISPECTRAL) or self.bands > 4
        return self.bands if own else 3

    def needs_tifffile(self, channels: int) -> bool:
        """Tell whether Pillow can't decode this TIFF to so many channels, but tifffile can."""
        if self.format == "TIFF":
            seen = (channels, self.mode) in ((3, "RGB"), (4, "RGBA"))
            return self.bands == channels > 1 and not seen
        return self.format == MULTISPECTRAL


class _Reader(io.BytesIO):
    """A file in memory with a limit on the number of reads."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > _READS:
            raise ImageError("too slow: the file has too many small parts", "too slow")
        return super().read(size)


def open_image(data: bytes, name: str) -> ImageFile.ImageFile:
    """Open a file of a known format with Pillow, which only reads its header.

    Image.open would warn of many pixels, and take a JPEG with a second image for another format.
    """
    reader = _heic_reader() if name == "HEIC" else _READERS[name]
    return reader(_Reader(data))


def _heic_reader() -> type[ImageFile.ImageFile]:
    """Return Pillow's reader of phones' photos, which comes with a package of its own."""
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        text = "HEIC, as phones save photos, needs another package: pip install 'vitrail[heic]'"
        raise ImageError(text, "missing package") from None
    return HeifImageFile


def read_header(data: bytes, limits: Limits = LIMITS) -> Header:
    """Read an image's header; ImageError if it can't be used or would cost too much."""
    if len(data) > limits.bytes:
        size, limit = len(data) / 2**20, limits.bytes / 2**20
        text = f"a file of {size:.4g} MiB is over the limit of {limit:.4g}; make it smaller"
        raise ImageError(text, "too large")
    name = recognize(data)
    if name == "JPEG":
        return _read_jpeg(data, limits)
    if name == "TIFF":
        header = _read_tiff(data, limits)
    else:
        header = _read_npy(data) if name == "NPY" else _read_other(data, name)
    limits.check_pixels(header.height, header.width)
    return header


def _read_npy(data: bytes) -> Header:
    array = read_npy_header(data)
    height, width, *bands = array.shape
    return Header(
        "NPY",
        height,
        width,
        str(array.dtype),
        bands=bands[0] if bands else 1,
        deep=array.dtype.itemsize > 1,
    )


def _read_tiff(data: bytes, limits: Limits) -> Header:
    """Read a TIFF's header: by Pillow, and by tifffile if Pillow could not decode the file."""
    with explained("TIFF"):
        if not is_big(data):
            try:
                image = TiffImagePlugin.TiffImageFile(_Reader(data))  # which it rotates itself
                bands, seen = count_bands(image.tag_v2), len(image.getbands())
                planar = image.tag_v2.get(_PLANAR) == 2
                # Of planes it mixes up deep colors' bytes, and fails at stored ones it can't see.
                deep = bands > 0 and seen > 1 and max(image.tag_v2.get(_BITS, (8,))) > 8
                lost = bands > seen and image.info["compression"] == "raw"
                if not planar or not (deep or lost):
                    return Header(
                        "TIFF",
                        image.height,
                        image.width,
                        image.mode,
                        bands=bands,
                        deep=image.mode in DEEP or max(image.tag_v2.get(_BITS, (8,))) > 8,
                        pages=count_pages(data),
                    )
            except SyntaxError as error:
                if str(error) not in _UNKNOWN:
                    raise
        bands = count_bands_of_file(data) if limits.tifffile else 0
    if bands < 2:
        name = "BigTIFF" if is_big(data) else "this kind of TIFF"
        text = f"{name} is not supported; convert it to JPEG or PNG"
        raise ImageError(text, "unsupported format")
    height, width, dtype = read_bands_header(data, limits)
    deep, pages = dtype != "uint8", count_pages(data)
    return Header(MULTISPECTRAL, height, width, dtype, bands=bands, deep=deep, pages=pages)


def _read_other(data: bytes, name: str) -> Header:
    orientation = 1
    with explained(name):
        image = open_image(data, name)
        if name in ("PNG", "WEBP", "AVIF"):
            late = _png_orientation(data) if name == "PNG" else None
            orientation = late or noted_orientation(image.info)
    width, height = image.size if orientation < 5 else image.size[::-1]
    deep = image.mode in DEEP or has_deep_colors(image)
    return Header(name, height, width, image.mode, orientation, deep=deep)


def _png_orientation(data: bytes) -> int | None:
    """Find a PNG's EXIF chunk, which Pillow does not see if it follows the pixels."""
    at = 8
    for _ in range(_PARTS):
        if at + 8 > len(data):
            break
        length, name = struct.unpack_from(">I4s", data, at)
        if name == b"eXIf":
            return exif_orientation(data[at + 8 : at + 8 + length])
        at += 12 + length
    return None


@dataclass
class _Jpeg:
    """What the markers of a JPEG contain."""

    bits: int = 0
    height: int = 0
    width: int = 0
    channels: int = 0
    progressive: bool = False
    exif: int | None = None
    xmp: int | None = None
    scan: int = 0
    """Where the first scan starts."""


def _walk(data: bytes) -> _Jpeg:
    """Read a JPEG's markers up to the first scan, skipping junk between them as decoders do.

    Pillow takes 5 times as long, and simplejpeg does not read EXIF.
    """
    found, at = _Jpeg(), 2
    for _ in range(_PARTS):
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xFF):
            at += 1
            continue
        if marker == _SCAN:
            found.scan = at
            return found
        if 0xD0 <= marker <= 0xD9:  # markers without content
            at += 2
            continue
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if marker in _FRAMES:
            frame = struct.unpack_from(">BHHB", data, at + 4)
            found.bits, found.height, found.width, found.channels = frame
            found.progressive = marker in _PROGRESSIVE
        elif marker == _APP1 and data.startswith(b"Exif\0\0", at + 4):
            found.exif = found.exif or exif_orientation(data[at + 4 : end])
        elif marker == _APP1 and not found.exif:
            found.xmp = found.xmp or xmp_orientation(data[at + 4 : end])
        at = end
    raise ImageError("too slow: a JPEG with too many parts before its image", "too slow")


def _read_jpeg(data: bytes, limits: Limits) -> Header:
    try:
        found = _walk(data)
        interleaved = data[found.scan + 4] == found.channels
    except (IndexError, struct.error):
        raise ImageError("truncated: a JPEG that ends within its header", "truncated") from None
    height, width, channels = found.height, found.width, found.channels
    limits.check_pixels(height, width)
    if found.bits != 8 or channels not in _MODES:
        text = f"a JPEG of {found.bits} bits and {channels} channels is not supported"
        raise ImageError(f"{text}; convert it to PNG", "unsupported format")
    if found.progressive or not interleaved:
        _check_scans(data, found.scan, height * width, _SCANS * limits.pixels)
    if found.scan > _METADATA:
        text = f"a JPEG with {found.scan / 2**20:.4g} MiB before its image; save it without"
        raise ImageError(text, "too large")
    orientation = found.exif or found.xmp or 1
    if orientation >= 5:
        height, width = width, height
    return Header("JPEG", height, width, _MODES[channels], orientation)


def _check_scans(data: bytes, start: int, pixels: int, most: int) -> None:
    """Raise ImageError for a JPEG whose scans have more than `most` pixels in total."""
    if pixels * (len(data) - start) <= most * _SHORTEST:  # too short for so many scans
        return
    scans = data.count(bytes([0xFF, _SCAN]), start)
    if pixels * scans > most:
        raise ImageError(f"too slow: a JPEG of {scans} scans; save it with fewer", "too slow")
