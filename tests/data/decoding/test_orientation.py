"""Images lie upright whatever their camera noted: EXIF orientations 1 to 8 in five formats."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.decoding.images import chunk, encode, exif, photo, png
from vitrail.data.decoding import decode as decoding
from vitrail.data.decoding.decode import decode, read_header
from vitrail.data.decoding.orientation import exif_orientation, turn, xmp_orientation

ORIENTATIONS = range(1, 9)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_turn_is_that_of_pillow(orientation: int) -> None:
    pixels = photo(5, 7)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    turned = turn(pixels, orientation)
    np.testing.assert_array_equal(turned, np.asarray(ImageOps.exif_transpose(image)))
    assert turned.flags.c_contiguous
    assert turned.flags.writeable


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_files_are_turned_upright_once(name: str, orientation: int) -> None:
    data = encode(photo(24, 40), name, exif=exif(orientation))
    image = Image.open(io.BytesIO(data))
    expected = np.asarray(ImageOps.exif_transpose(image), dtype=int)
    pixels, header = decode(data), read_header(data)
    assert pixels.shape == (header.height, header.width, 3) == expected.shape
    assert pixels.shape[:2] == ((24, 40) if orientation < 5 else (40, 24))
    assert abs(pixels - expected).mean() < 3


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_all_eight_look_the_same(
    orientation: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:
        monkeypatch.setattr(decoding, "simplejpeg", None)
    upright = photo(64, 96)
    inverse = {6: 8, 8: 6}.get(orientation, orientation)
    data = encode(turn(upright, inverse), "JPEG", quality=95, exif=exif(orientation))
    assert abs(decode(data).astype(int) - upright).mean() < 3


def test_a_turned_image_shrinks_as_shown() -> None:
    data = encode(photo(64, 128), "JPEG", exif=exif(6))
    assert decode(data, shrink=2).shape == (64, 32, 3)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "number"), [(3, "HH"), (4, "I")])
def test_exif_of_either_byte_order_and_width(order: str, kind: int, number: str) -> None:
    value = struct.pack(order + number, *([6, 0] if number == "HH" else [6]))
    entry = struct.pack(order + "HHI", 0x0112, kind, 1) + value
    block = struct.pack(order + "2sHIH", b"II" if order == "<" else b"MM", 42, 8, 1) + entry
    assert exif_orientation(block) == 6
    assert exif_orientation(b"Exif\0\0" + block) == 6
    for end in range(len(block) - 2):  # the last two bytes of a short's four are filling
        assert exif_orientation(block[:end]) in (None, 6)


@pytest.mark.parametrize("value", [0, 9, 255])
def test_an_orientation_that_does_not_exist_is_upright(value: int) -> None:
    data = encode(photo(8, 16), "JPEG", exif=exif(value))
    assert read_header(data).orientation == 1
    assert decode(data).shape == (8, 16, 3)


@pytest.mark.parametrize("block", [b"", b"II", b"Exif\0\0", b"MM\0*\xff\xff\xff\xff", b"II*\0" * 9])
def test_broken_exif_is_ignored(block: bytes) -> None:
    assert exif_orientation(block) is None
    data = encode(photo(8, 16), "JPEG", exif=b"Exif\0\0" + block)
    assert decode(data).shape == (8, 16, 3)


def test_xmp_counts_where_exif_says_nothing() -> None:
    packet = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert xmp_orientation(packet) == 6
    assert xmp_orientation(b"<tiff:Orientation>8</tiff:Orientation>") == 8
    for name in ("JPEG", "WEBP", "AVIF"):
        assert read_header(encode(photo(8, 16), name, xmp=packet)).orientation == 6
    both = encode(photo(8, 16), "JPEG", xmp=packet, exif=exif(3))
    assert read_header(both).orientation == 3


def test_a_png_may_note_it_after_the_pixels() -> None:
    whole = encode(photo(8, 16), "PNG")
    late = whole[:-12] + chunk(b"eXIf", exif(6).tobytes()) + whole[-12:]
    assert (read_header(late).height, read_header(late).width) == (16, 8)
    np.testing.assert_array_equal(decode(late), turn(photo(8, 16), 6))
    assert read_header(png(8, 16, chunk(b"IDAT", b"")) + b"junk").orientation == 1


def test_a_png_of_imagemagick() -> None:
    words = exif(8).tobytes().hex()
    text = f"Raw profile type exif\0\nexif\n{len(words) // 2:8}\n{words}\n"
    whole = encode(photo(8, 16), "PNG")
    assert read_header(whole[:33] + chunk(b"tEXt", text.encode()) + whole[33:]).orientation == 8
    broken = chunk(b"tEXt", text.replace(words[:2], "zz").encode())
    assert read_header(whole[:33] + broken + whole[33:]).orientation == 1
