"""Corrupt and odd images of every kind that folders hold, made here: a stranger's clone has them.

The corpus beside the project (tests/material.py) has real ones of the same kinds; both have a
MANIFEST.tsv that says what is odd about each file and what is expected of a reader.
"""

import csv
import io
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from tests.data.decoding.images import chunk, encode, exif, photo, png

SKIP, USE = "skip+report", "use"
EITHER = "may be used or skipped; never a crash"
COLUMNS = ["file", "category", "what_is_odd", "expected", "format", "mode", "size_upright"]
FORMATS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif"}

Odd = tuple[str, str, str, bytes]
"""A file's name, what is odd, what is expected, and its bytes."""


def make_odd_images(folder: Path) -> Path:
    """Write the images and their MANIFEST.tsv into a folder, the same each time."""
    rows = []
    kinds = (corrupt, fuzz, bomb, turned, mode, size, wrong_type, odd_valid, animated, generated)
    for kind in kinds:
        category = {"turned": "exif"}.get(kind.__name__, kind.__name__).replace("_", "-")
        for name, what, expected, data in kind():
            path = folder / category / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            row = dict.fromkeys(COLUMNS, "") | {"file": f"{category}/{name}", "category": category}
            row |= {"what_is_odd": what, "expected": expected}
            if category in ("exif", "mode", "size"):
                with Image.open(io.BytesIO(data)) as image:
                    width, height = image.size
                    row |= {"format": image.format, "mode": image.mode}
                    if image.getexif().get(0x0112, 1) > 4:
                        width, height = height, width
                row["size_upright"] = f"{width}x{height}"
            rows.append(row)
    with (folder / "MANIFEST.tsv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def corrupt() -> Iterator[Odd]:
    """Make files that a reader must refuse: cut, or damaged where it matters."""
    for name, suffix in FORMATS.items():
        whole = encode(photo(96, 128), name)
        for part in (0.05, 0.3, 0.5, 0.8):
            yield f"cut-{part}.{suffix}", f"{name} cut", SKIP, whole[: int(len(whole) * part)]
        yield f"head.{suffix}", f"{name} without its first bytes", SKIP, whole[8:]
    pixels = zlib.compress(bytes((3 * 8 + 1) * 8))
    broken = bytearray(pixels)
    broken[len(broken) // 2 :] = b"\xff" * (len(broken) - len(broken) // 2)
    yield (
        "zlib.png",
        "PNG with a damaged zlib stream",
        SKIP,
        png(8, 8, chunk(b"IDAT", bytes(broken))),
    )
    yield "no-pixels.png", "PNG without pixels", SKIP, png(8, 8)
    yield (
        "method.png",
        "PNG of an unknown color type",
        SKIP,
        png(8, 8, chunk(b"IDAT", pixels), kind=b"\x08\x05"),
    )
    riff = b"RIFF" + struct.pack("<I", 18) + b"WEBPVP8L" + struct.pack("<I", 5)
    yield "claims.webp", "26-byte WebP that claims much", SKIP, riff + b"/\x41\x2c\x6f\x00"


def fuzz() -> Iterator[Odd]:
    """Make files with random bytes behind their headers; whatever comes of it, nothing breaks."""
    flips = random.Random(0)
    for name, suffix in FORMATS.items():
        whole = encode(photo(64, 80), name)
        for number in range(28):
            data = bytearray(whole)
            for _ in range(20):
                data[flips.randrange(16, len(data))] = flips.randrange(256)
            yield f"{number}.{suffix}", f"{name} with 20 bytes changed", EITHER, bytes(data)


def bomb() -> Iterator[Odd]:
    """Make small files that would take much memory."""
    yield "huge.png", "PNG of 3.6 gigapixels", "refuse+report", png(60_000, 60_000)
    gif = bytearray(encode(photo(4, 4), "GIF"))
    gif[6:10] = struct.pack("<HH", 65_535, 65_535)
    yield "huge.gif", "GIF of 4.3 gigapixels", "refuse+report", bytes(gif)
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80_000_000), 9))
    pixels = chunk(b"IDAT", zlib.compress(bytes((3 * 8 + 1) * 8)))
    yield "text.png", "PNG with a zlib bomb in a text", EITHER, png(8, 8, text, pixels)


def turned() -> Iterator[Odd]:
    """Make every EXIF orientation, in every format that has one."""
    for name in ("JPEG", "PNG", "WEBP"):
        for number in range(1, 9):
            data = encode(photo(40, 64), name, exif=exif(number))
            yield f"{number}.{FORMATS[name]}", f"{name}, orientation {number}", "use upright", data


def mode() -> Iterator[Odd]:
    """Make every color type and bit depth."""
    image = Image.fromarray(photo(32, 48))
    for kind, formats in {
        "1": "PNG TIFF BMP",
        "L": "JPEG PNG TIFF BMP WEBP",
        "LA": "PNG TIFF",
        "P": "PNG GIF TIFF BMP",
        "RGBA": "PNG TIFF WEBP",
        "CMYK": "JPEG TIFF",
    }.items():
        for name in formats.split():
            pixels = image.convert(kind)
            data = encode(pixels, name)
            yield f"{kind.lower()}.{FORMATS[name]}", f"{kind} {name}", USE, data
    deep = Image.fromarray(np.linspace(0, 65_535, 64 * 64).astype(np.uint16).reshape(64, 64))
    for name, suffix in (("PNG", "png"), ("TIFF", "tif"), ("PPM", "pgm")):
        yield f"basn0g16.{suffix}", f"16-bit gray {name}", "use, scaled", encode(deep, name)
    palette = image.quantize(16)
    yield (
        "transparent.png",
        "palette with transparency",
        USE,
        encode(palette, "PNG", transparency=0),
    )
    jpeg = {"progressive": {"progressive": True}, "gray": {}, "444": {"subsampling": "4:4:4"}}
    for name, options in jpeg.items():
        yield f"{name}.jpg", f"{name} JPEG", USE, encode(image, "JPEG", **options)


def size() -> Iterator[Odd]:
    """Make the smallest images, and thin ones."""
    for name, suffix in FORMATS.items():
        for height, width in ((1, 1), (1, 13), (13, 1), (31, 13)):
            data = encode(photo(height, width), name)
            yield f"{height}x{width}.{suffix}", f"{name} of {height} x {width}", USE, data


def wrong_type() -> Iterator[Odd]:
    """Make files that are something else."""
    office = io.BytesIO()
    with zipfile.ZipFile(office, "w") as archive:
        archive.writestr("word/document.xml", "<w:document/>")
    for name, what, data in (
        ("notes.jpg", "plain text", b"Not an image, whatever its name says.\n"),
        ("drawing.png", "SVG", b"<svg xmlns='http://www.w3.org/2000/svg'><rect/></svg>"),
        ("paper.jpg", "PDF", b"%PDF-1.7\n1 0 obj << >> endobj\ntrailer << /Prev 0 >>\n%%EOF"),
        ("letter.jpg", "a Word document", office.getvalue()),
        ("phone.jpg", "HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)),
        ("noise.jpg", "random bytes", random.Random(1).randbytes(4096)),
    ):
        yield name, what, SKIP, data


def odd_valid() -> Iterator[Odd]:
    """Make files that look wrong and can be read."""
    jpeg, image = encode(photo(32, 48), "JPEG"), encode(photo(32, 48), "PNG")
    yield "tail.jpg", "JPEG with junk behind its end", USE, jpeg + b"junk" * 100
    yield "tail.png", "PNG with junk behind its end", USE, image + b"junk" * 100
    junk = b"\xff\xe1" + struct.pack(">H", 2 + 6 + 20) + b"Exif\0\0" + b"\xff" * 20
    yield "exif.jpg", "JPEG with invalid EXIF", USE, jpeg[:2] + junk + jpeg[2:]
    blocks = (b"\xff\xed" + struct.pack(">H", 12) + b"Photoshop\0") * 5
    yield "blocks.jpg", "JPEG with several APP13 blocks", USE, jpeg[:2] + blocks + jpeg[2:]
    notes = PngImagePlugin.PngInfo()
    notes.add_text("comment", "x" * 100_000)
    yield "text.png", "PNG with a long text", USE, encode(photo(32, 48), "PNG", pnginfo=notes)


def animated() -> Iterator[Odd]:
    """Make files with several frames or pages, of which the first counts."""
    frames = [Image.fromarray(photo(24, 32) // (number + 1)) for number in range(3)]
    for name in ("GIF", "PNG", "WEBP", "TIFF"):
        data = encode(frames[0], name, save_all=True, append_images=frames[1:])
        yield f"three.{FORMATS[name]}", f"{name} of three frames", "use first frame", data


def generated() -> Iterator[Odd]:
    """Make what downloads, copies and operating systems leave behind."""
    jpeg = encode(photo(300, 400), "JPEG")
    page = b"<!DOCTYPE html><html><body><h1>404 Not Found</h1></body></html>"
    yield "zero_bytes.jpg", "0 bytes", SKIP, b""
    yield "html_renamed.jpg", "a web page saved as .jpg", SKIP, page
    yield "half_copied.jpg", "only the first half was copied", SKIP, jpeg[: len(jpeg) // 2]
    yield "png.jpg", "a PNG with the name .jpg", USE, encode(photo(32, 48), "PNG")
    yield "wide.png", "extreme aspect ratio", USE, encode(photo(1, 2000), "PNG")
    yield "tall.jpg", "extreme aspect ratio", USE, encode(photo(2000, 2), "JPEG")
    double = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(58)
    yield "._name.jpg", "AppleDouble file", SKIP, double
