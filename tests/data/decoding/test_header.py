"""Headers: what a file is, how large it shows, and what is refused before it is decoded."""

import io
import struct
import sys

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests.data.decoding.images import chunk, encode, exif, photo, png, tall_jpeg
from vitrail.data.decoding import header as headers
from vitrail.data.decoding.decode import ImageError, Limits, decode, read_header
from vitrail.data.decoding.faults import Kind
from vitrail.data.decoding.formats import recognize


def refusal(data: bytes, limits: Limits | None = None) -> ImageError:
    with pytest.raises(ImageError) as caught:
        read_header(data, limits or Limits())
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return caught.value


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "PPM"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_headers_agree_with_pillow(name: str, mode: str) -> None:
    image = Image.fromarray(photo(20, 33)).convert(mode)
    data = encode(image, name)
    header = read_header(data)
    assert (header.format, header.height, header.width) == (name, 20, 33)
    assert recognize(data) == name
    assert decode(data, header=header).shape == (20, 33, 3)


def test_a_jpeg_header_agrees_with_simplejpeg() -> None:
    image = Image.fromarray(photo(20, 33))
    for mode, kind in {"RGB": "YCbCr", "L": "Gray", "CMYK": "CMYK"}.items():
        for progressive in (False, True):
            data = encode(image.convert(mode), "JPEG", progressive=progressive, exif=exif(1))
            height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
            header = read_header(data)
            assert (header.height, header.width) == (height, width)
            assert header.mode == mode
            assert colors.startswith(kind) or mode == "CMYK"


def test_junk_between_markers_is_skipped() -> None:
    data = encode(photo(20, 33), "JPEG")
    at = data.index(b"\xff\xdb")
    for junk in (b"\0\1\2", b"\xff\xff\xff", b"\xff\0", b"\xff\xd0", b"\xff\xe5\0\0"):
        header = read_header(data[:at] + junk + data[at:])
        assert (header.height, header.width) == (20, 33)


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"", "not an image", "empty"),
        (b"<!DOCTYPE html><html>404", "not an image", "web page"),
        (b"\n<HTML><body>404", "not an image", "web page"),
        (b"Not found", "not an image", "text"),
        (b"\0\x05\x16\x07\0\2\0\0Mac OS X" + bytes(50), "not an image", "macOS"),
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500),
            "not an image",
            "JPEG, PNG",
        ),  # Thumbs.db
        (b"\0\0\0\1Bud1" + bytes(500), "not an image", "JPEG, PNG"),  # .DS_Store
        (b"PK\x03\x04" + bytes(50), "not an image", "archive"),
        (b"\0\0\0\x18ftypmp42" + bytes(50), "not an image", "video"),
        (b"<svg xmlns='x'/>", "unsupported format", "SVG"),
        (b"<?xml version='1.0'?>\n<!-- x -->\n<svg/>", "unsupported format", "SVG"),
        (b"%PDF-1.7", "unsupported format", "PDF"),
        (b"8BPS\0\1", "unsupported format", "Photoshop"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "unsupported format", "JPEG 2000"),
        (b"\xff\x0a\xfa", "unsupported format", "JPEG XL"),
        (bytes(128) + b"DICM", "unsupported format", "DICOM"),
        (b"P3\n2 2\n255\n", "unsupported format", "PPM as text"),
        (b"\0\0\1\0\1\0\x10\x10", "unsupported format", "ICO"),
    ],
)
def test_other_files_are_named(data: bytes, kind: Kind, says: str) -> None:
    error = refusal(data)
    assert error.kind == kind
    assert says in str(error)
    if kind == "unsupported format":
        assert "convert it to JPEG or PNG" in str(error)


def test_an_avif_may_call_itself_heif() -> None:
    assert recognize(b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf") == "AVIF"


def bmp(height: int, width: int) -> bytes:
    sizes = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 57, 0, 0, 54) + sizes + bytes(3)


def sized_webp(side: int) -> bytes:
    data = bytearray(encode(photo(8, 8), "WEBP", lossless=True))
    (bits,) = struct.unpack_from("<I", data, 21)
    struct.pack_into("<I", data, 21, bits >> 28 << 28 | (side - 1) << 14 | (side - 1))
    return bytes(data)


def sized_gif(side: int, frame: int) -> bytes:
    """Make a GIF whose screen and whose first frame have these sides."""
    data = bytearray(encode(Image.new("P", (4, 4)), "GIF"))
    at = data.index(b",\0\0\0\0\4\0\4\0")
    data[6:10], data[at + 5 : at + 9] = (
        struct.pack("<HH", side, side),
        struct.pack("<HH", frame, frame),
    )
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        png(13500, 13500, chunk(b"IDAT", b"")),
        bmp(12300, 12300),
        sized_gif(65535, 65535),
        sized_gif(4, 65535),
        sized_webp(13000),
        b"P6 60000 60000 255\n",
        tall_jpeg(65520, 1536)[:2000],
    ],
    ids=["png", "bmp", "gif", "gif frame", "webp", "ppm", "jpeg"],
)
def test_bombs_are_refused_by_their_header(data: bytes) -> None:
    assert refusal(data).kind == "too large"


def test_limits_are_the_callers() -> None:
    data = encode(photo(20, 30), "PNG")
    assert read_header(data, Limits(pixels=600, bytes=len(data))).width == 30
    error = refusal(data, Limits(pixels=599))
    assert error.kind == "too large"
    assert (
        str(error)
        == "30 x 20 pixels are over the limit of 0.000599 megapixels; make the image smaller"
    )
    assert refusal(data, Limits(bytes=len(data) - 1)).kind == "too large"
    turned = encode(photo(20, 30), "JPEG", exif=exif(6))
    assert refusal(turned, Limits(pixels=599)).kind == "too large"


def with_scans(extra: int) -> bytes:
    """Repeat one scan of a progressive JPEG of 64 x 64 pixels."""
    data = encode(photo(64, 64), "JPEG", progressive=True)
    scans = [at for at in range(len(data)) if data.startswith(b"\xff\xda", at)]
    start, end = data.rindex(b"\xff\xc4", 0, scans[1]), data.rindex(b"\xff\xc4", 0, scans[2])
    return data[:end] + data[start:end] * extra + data[end:]


def test_too_many_scans_are_refused() -> None:
    limits = Limits(pixels=64 * 64)
    assert read_header(with_scans(0), limits).height == 64
    assert read_header(with_scans(10), limits).height == 64
    assert refusal(with_scans(11), limits).kind == "too slow"
    assert read_header(with_scans(11)).height == 64  # a small image may have many


def test_scans_of_a_plain_jpeg_count_when_it_has_several() -> None:
    data = bytearray(encode(photo(64, 64), "JPEG"))
    scan = data.index(b"\xff\xda")
    data[scan + 4] = 1  # the first scan has one channel only, so more must follow
    assert refusal(bytes(data) + b"\xff\xda" * 30, Limits(pixels=64 * 64)).kind == "too slow"


def test_endless_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(photo(8, 8), "JPEG")
    at = data.index(b"\xff\xdb")
    for part in (b"\xff\xe1\0\2", b"\0"):
        assert refusal(data[:at] + part * 100_000 + data[at:]).kind == "too slow"
    monkeypatch.setattr(headers, "_METADATA", 1000)
    block = b"\xff\xe5" + struct.pack(">H", 1000) + bytes(998)
    assert refusal(data[:2] + block + data[2:]).kind == "too large"
    monkeypatch.setattr(headers, "_READS", 100)
    whole = encode(photo(8, 8), "PNG")
    read_header(whole)
    assert refusal(whole[:33] + chunk(b"teST", b"") * 100 + whole[33:]).kind == "too slow"
    gif = encode(Image.new("P", (4, 4)), "GIF")
    at = gif.index(b",\0\0\0\0\4\0\4\0")
    assert refusal(gif[:at] + b"!\xfe\1a\0" * 100 + gif[at:]).kind == "too slow"
    with pytest.raises(ImageError, match="too slow"):  # Pillow's own loop over odd pixels
        decode(b"P5 20 20 99\n" + bytes(400))


def test_a_jpeg_of_no_height_or_strange_depth() -> None:
    data = bytearray(encode(photo(8, 8), "JPEG"))
    frame = data.index(b"\xff\xc0")
    for at, value, kind in ((4, 12, "unsupported format"), (9, 2, "unsupported format")):
        changed = bytearray(data)
        changed[frame + at] = value
        assert refusal(bytes(changed)).kind == kind
    data[frame + 5 : frame + 7] = b"\0\0"
    assert refusal(bytes(data)).kind == "damaged"


def test_every_cut_of_a_jpeg_header_is_refused() -> None:
    data = encode(photo(8, 8), "JPEG", exif=exif(6))
    scan = data.index(b"\xff\xda")
    for end in range(3, scan + 4):
        assert refusal(data[:end]).kind == "truncated"


def test_a_image_at_the_limit_is_read() -> None:
    header = read_header(tall_jpeg(10_000, 10_000))
    assert (header.height, header.width) == (10_000, 10_000)


def test_phones_photos_are_read_where_their_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif")
    pixels = np.repeat(np.arange(64, dtype=np.uint8)[:, None, None] * 4, 48, 1).repeat(3, 2)
    file = io.BytesIO()
    heif.from_pillow(Image.fromarray(pixels)).save(file, quality=95)
    found = decode(file.getvalue())
    assert np.abs(found.astype(int) - pixels).max() < 12  # it is lossy
    with pytest.raises(ImageError, match="damaged"):
        read_header(file.getvalue()[:40] + bytes(50))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"pip install 'vitrail\[heic\]'") as caught:
        read_header(file.getvalue())
    assert caught.value.kind == "missing package"
