"""TIFFs that Pillow does not read: their bands in order, scaled as other images, or refused."""

import io
import struct
import sys
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.commands import run
from tests.data.decoding.images import run_fresh
from tests.predictors import PREPROCESS, make
from vitrail.data.checks.dataset_check import check_data
from vitrail.data.checks.quick_check import quick_check
from vitrail.data.datasets.open import open_dataset
from vitrail.data.datasets.unreadable_list import read_unreadable_list
from vitrail.data.decoding.decode import ImageError, Limits, decode, read_header
from vitrail.deploy.serving.worker import ServedModel, run_batch
from vitrail.predictor import Predictor

LAYOUTS = [
    {},
    {"compression": "zlib"},
    {"compression": "zlib", "predictor": True},
    {"compression": "lzw", "rowsperstrip": 3},
    {"tile": (16, 16)},
    {"tile": (16, 16), "compression": "zlib", "predictor": True},
    {"bigtiff": True},
    {"byteorder": ">"},
]
PHOTO = np.random.default_rng(3).integers(0, 256, (21, 34, 5), dtype=np.uint8)


def tiff(array: np.ndarray, planar: bool = False, **options: Any) -> bytes:
    """Encode (height, width, bands) as one page."""
    stream = io.BytesIO()
    if planar:
        array = np.moveaxis(array, 2, 0)
    planes = "separate" if planar else "contig"
    settings = {"photometric": "minisblack", "planarconfig": planes, "metadata": None} | options
    tifffile.imwrite(stream, array, **settings)
    return stream.getvalue()


def refusal(data: bytes, channels: int = 5, limits: Limits | None = None) -> ImageError:
    with pytest.raises(ImageError) as caught:
        decode(data, channels=channels, limits=limits or Limits())
    assert "\n" not in str(caught.value)
    return caught.value


def patched(data: bytes, tag: int, value: int) -> bytes:
    """Change the number that a little-endian file's first page has under a tag."""
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        number, kind = struct.unpack_from("<HH", data, entry)
        if number == tag:
            value_bytes = struct.pack("<H" if kind == 3 else "<I", value)
            return data[: entry + 8] + value_bytes + data[entry + 8 + len(value_bytes) :]
    raise AssertionError(tag)


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("bands", [2, 5, 13])
def test_bands_in_their_order(bands: int, planar: bool, options: dict[str, Any]) -> None:
    array = np.random.default_rng(bands).integers(0, 256, (21, 34, bands), dtype=np.uint8)
    data = tiff(array, planar, **options)
    header = read_header(data)
    assert (header.height, header.width, header.bands) == (21, 34, bands)
    pixels = decode(data, channels=bands, header=header)
    np.testing.assert_array_equal(pixels, array)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("bands", [3, 4, 5])
def test_16_bits_are_scaled_as_arrays_are(bands: int, options: dict[str, Any]) -> None:
    array = np.random.default_rng(0).integers(0, 65536, (9, 40, bands), dtype=np.uint16)
    stream = io.BytesIO()
    np.save(stream, array)
    expected = decode(stream.getvalue(), channels=bands)
    np.testing.assert_array_equal(expected, np.rint(array / 257))
    for planar in (False, True):
        np.testing.assert_array_equal(
            decode(tiff(array, planar, **options), channels=bands), expected
        )


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_planes_of_color_are_color(kind: str, options: dict[str, Any]) -> None:
    """Of 16 bits Pillow mixes up the bytes, and of compressed ones it sees the first plane."""
    array = np.random.default_rng(0).integers(0, np.iinfo(kind).max, (9, 40, 3)).astype(kind)
    pixels = decode(tiff(array, True, **options, photometric="rgb"))
    np.testing.assert_array_equal(pixels, np.rint(array / (257 if kind == "uint16" else 1)))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("low", "high", "black", "white"),
    [(0, 0.5, 0, 1), (0, 200, 0, 255), (-3, 5, -3, 5), (0, 900, 0, 900)],
)
def test_floats_are_scaled_as_gray_ones_are(
    kind: str, low: float, high: float, black: float, white: float
) -> None:
    array = np.random.default_rng(0).uniform(low, high, (20, 30, 5)).astype(kind)
    array[0, 0], array[0, 1] = low, high
    expected = np.rint((array.astype(np.float64) - black) * 255 / (white - black))
    pixels = decode(tiff(array, compression="zlib", predictor=kind != "float16"), channels=5)
    assert np.abs(pixels - expected).max() <= 1  # float32 rounds halves otherwise
    assert (pixels == expected).mean() > 0.99
    gray = io.BytesIO()
    Image.fromarray(array[..., 0].astype(np.float32)).save(gray, "TIFF")
    if kind != "float64":
        np.testing.assert_array_equal(pixels[..., 0], decode(gray.getvalue(), channels=1)[..., 0])


def test_floats_that_are_no_numbers_are_black_and_white() -> None:
    array = np.full((2, 2, 5), 0.25, np.float32)
    array[0, 0] = np.nan, np.inf, -np.inf, 1, 0
    assert decode(tiff(array), channels=5)[0, 0].tolist() == [0, 255, 0, 255, 0]
    assert not decode(tiff(np.full((2, 2, 5), np.nan, np.float32)), channels=5).any()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int) -> None:
    tag = (274, "H", 1, orientation, True)
    data = tiff(PHOTO, extratags=[tag])
    pixels, header = decode(data, channels=5), read_header(data)
    assert pixels.shape[:2] == (header.height, header.width)
    gray = io.BytesIO()
    Image.fromarray(PHOTO[..., 3]).save(gray, "TIFF", tiffinfo={274: orientation})
    np.testing.assert_array_equal(pixels[..., 3], decode(gray.getvalue(), channels=1)[..., 0])


def test_only_the_first_page() -> None:
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as file:
        for level in (PHOTO, PHOTO[::2] // 2, PHOTO[..., :2]):
            file.write(level, photometric="minisblack", planarconfig="contig", metadata=None)
    data = stream.getvalue()
    np.testing.assert_array_equal(decode(data, channels=5), PHOTO)
    at = data.index(PHOTO.tobytes()) + PHOTO.nbytes
    np.testing.assert_array_equal(decode(data[:at] + bytes(len(data) - at), channels=5), PHOTO)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_pillow_reads_stays_as_it_is(kind: str, channels: int) -> None:
    """Of planar bands it gives the first, as gray; of RGB with more, color."""
    planar = tiff(PHOTO.astype(kind), True, compression="zlib")
    first = io.BytesIO()
    Image.fromarray(PHOTO[..., 0].astype(kind)).save(first, "TIFF")
    expected = decode(first.getvalue(), channels=channels)
    np.testing.assert_array_equal(decode(planar, channels=channels), expected)
    more = tiff(PHOTO, photometric="rgb", extrasamples=["unspecified"] * 2)
    expected = Image.fromarray(PHOTO[..., :3])
    color = np.atleast_3d(np.asarray(expected.convert("L") if channels == 1 else expected))
    np.testing.assert_array_equal(decode(more, channels=channels), color)
    np.testing.assert_array_equal(decode(more, channels=5), PHOTO)


def test_color_and_near_infrared() -> None:
    """Four bands of bytes: Pillow reads the first three, or the four with alpha."""
    four = PHOTO[..., :4]
    data = tiff(four, photometric="rgb", extrasamples=["unspecified"])
    np.testing.assert_array_equal(decode(data, channels=4), four)
    np.testing.assert_array_equal(decode(data, channels=3), four[..., :3])
    alpha = tiff(four, photometric="rgb", extrasamples=["unassalpha"])
    assert not read_header(alpha).needs_tifffile(4)
    np.testing.assert_array_equal(decode(alpha, channels=4), four)


@pytest.mark.parametrize(("has", "asked"), [(5, 3), (5, 1), (5, 6), (6, 5)])
def test_other_channels_are_refused(has: int, asked: int) -> None:
    error = refusal(tiff(np.zeros((9, 9, has), np.uint8)), asked)
    assert error.kind == "wrong channels"
    assert f"has {has} channels, but {asked}" in str(error)


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("planar", [False, True])
def test_a_file_cut_anywhere(planar: bool, options: dict[str, Any]) -> None:
    array = PHOTO.astype(np.uint16) * 257
    data = tiff(array, planar, **options)
    for keep in range(9, len(data), 61):
        assert refusal(data[:keep]).kind in ("truncated", "damaged")


@pytest.mark.parametrize("options", LAYOUTS[:6], ids=str)
def test_any_damage_is_an_image_error(options: dict[str, Any]) -> None:
    data = tiff(PHOTO.astype(np.uint16) * 257, **options)
    rng = np.random.default_rng(0)
    start = struct.unpack_from("<I", data, 4)[0]
    for _ in range(150):
        bad = bytearray(data)
        places = rng.integers(4, min(start + 250, len(data)), 3)
        for place in places:
            bad[place] = rng.integers(0, 256)
        with suppress(ImageError):  # and no other error; some damage doesn't show
            assert decode(bytes(bad), channels=5).dtype == np.uint8


def test_damaged_strips() -> None:
    data = bytearray(tiff(PHOTO, compression="zlib"))
    header = read_header(bytes(data))
    with tifffile.TiffFile(io.BytesIO(bytes(data))) as file:
        start, size = file.pages.first.dataoffsets[0], file.pages.first.databytecounts[0]
    data[start + 4 : start + size // 2] = bytes(size // 2 - 4)
    assert (header.height, header.width) == (21, 34)
    assert refusal(bytes(data)).kind == "damaged"


def test_a_header_promises_no_memory() -> None:
    small = tiff(PHOTO, compression="zlib")
    wide = patched(patched(small, 256, 9000), 257, 9000)
    for data, limits, kind in [
        (wide, None, "too large"),  # 405 MB of bands
        (wide, Limits(bytes=2**40), "truncated"),  # more than deflate can pack
        (patched(tiff(PHOTO), 257, 9000), None, "truncated"),
        (patched(patched(small, 256, 60000), 257, 60000), None, "too large"),
        (patched(tiff(PHOTO, tile=(16, 16)), 322, 2**30), None, "too large"),
        (patched(small, 277, 60000), None, "truncated"),
        (tiff(PHOTO), Limits(pixels=21 * 34 - 1), "too large"),
    ]:
        assert refusal(data, limits=limits).kind == kind
    script = """
        import sys
        from vitrail.data.decoding.decode import ImageError, Limits, decode
        data = sys.stdin.buffer.read()
        import imagecodecs, tifffile
        start = peak_megabytes()
        for limits in (Limits(), Limits(bytes=2**40)):
            try:
                decode(data, channels=5, limits=limits)
            except ImageError:
                pass
        print(peak_megabytes() - start)
    """
    assert int(run_fresh(script, wide).stdout) < 30


def test_a_strip_that_unpacks_to_more_than_it_may() -> None:
    data = tiff(np.zeros((2000, 2000, 5), np.uint8), compression="zlib", rowsperstrip=2000)
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        start = file.pages.first.dataoffsets[0]
    bomb = zlib.compress(bytes(400_000_000), 9)
    small = patched(patched(patched(data, 257, 200), 278, 200), 279, len(bomb))
    script = """
        import sys
        from vitrail.data.decoding.decode import ImageError, decode
        try:
            decode(sys.stdin.buffer.read(), channels=5)
        except ImageError:
            pass
        print(peak_megabytes())
    """
    assert int(run_fresh(script, small[:start] + bomb).stdout) < 200


@pytest.mark.parametrize("kind", ["int16", "uint32", "int8", "complex64"])
def test_other_numbers_are_refused(kind: str) -> None:
    error = refusal(tiff(PHOTO.astype(kind)))
    assert error.kind == "unsupported format"
    assert f"5 bands of {kind}" in str(error)


def test_other_kinds_are_refused() -> None:
    assert refusal(tiff(PHOTO, compression="zstd")).kind == "unsupported format"
    assert refusal(tiff(PHOTO, compression="lzma")).kind == "unsupported format"
    gray = refusal(tiff(PHOTO[..., 0], bigtiff=True, planarconfig=None), 1)
    assert "BigTIFF is not supported" in str(gray)
    deep = refusal(tiff(PHOTO, photometric="separated"))
    assert deep.kind in ("unsupported format", "wrong channels")


# ---------------------------------------------------------------- commands


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder of two classes of 5 bands, planar and interleaved, of 8 and 16 bits."""
    for split in ("train", "val"):
        for number, name in enumerate(("field", "forest")):
            (tmp_path / "tiles" / split / name).mkdir(parents=True)
            for seed in range(4):
                rng = np.random.default_rng(100 * number + seed + 10 * (split == "val"))
                array = rng.integers(0, 65536, (40, 48, 5), dtype=np.uint16)
                file = tmp_path / "tiles" / split / name / f"{seed}.tif"
                file.write_bytes(tiff(array, seed % 2 == 0, compression="zlib"))
    return tmp_path / "tiles"


MODEL = "ViT/8@16,depth=1,width=16,heads=2,mlp=32,channels=5"


def test_train_and_predict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "run"
    code, _, err = run(
        capsys,
        *("train", str(folder), "--model", MODEL, "--steps", "2", "--batch", "4"),
        *("--out", str(out), "--device", "cpu"),
    )
    assert code == 0, err
    image = folder / "val/field/0.tif"
    code, printed, err = run(capsys, "predict", str(out), str(image), "--json")
    assert code == 0, err
    assert "field" in printed
    predictor = Predictor.load(str(out), device="cpu")
    array = np.rint(np.moveaxis(tifffile.imread(image), 0, 2) / 257).astype(np.uint8)
    assert predictor.predict(str(image)).top == predictor.predict(array).top


def test_check(folder: Path) -> None:
    found = check_data(str(folder), workers=1)
    assert found.bad == []
    assert found.sizes["height"] == [40, 40, 40]
    assert sum(found.modes.values()) == 16
    assert len(found.mean) == 5


@pytest.mark.parametrize("package", ["tifffile", "imagecodecs"])
def test_a_missing_package_is_named(
    package: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [tiff(PHOTO), tiff(PHOTO, True, compression="zlib"), tiff(PHOTO, True)]
    (folder.parent / "shadow").mkdir()
    (folder.parent / f"shadow/{package}.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(folder.parent / "shadow")  # for processes too
    monkeypatch.delitem(sys.modules, package)
    hint = "a TIFF of several bands needs another package: pip install 'vitrail[data]'"
    for data in files:
        error = refusal(data)
        assert (str(error), error.kind) == (hint, "missing package")
    assert decode(files[1], channels=1).shape == (21, 34, 1)  # Pillow reads the first band
    look = quick_check(open_dataset(folder), open_dataset(folder, split="val"))
    assert look is not None
    assert look.notes()[0].startswith("16 files can't be read and are skipped: ")
    assert look.notes()[0].endswith(f"; {hint}")
    found = check_data(str(folder), workers=1, fix=True)
    assert {(bad["kind"], bad["reason"]) for bad in found.bad} == {("missing package", hint)}
    assert read_unreadable_list(folder) == {}  # they are good once it is installed
    out = folder.parent / "run"
    code, _, err = run(
        capsys,
        *("train", str(folder), "--model", MODEL, "--steps", "2", "--batch", "4"),
        *("--out", str(out), "--device", "cpu", "--loader.workers", "0"),
    )
    assert code == 2
    assert err.rstrip().endswith(hint)


@pytest.mark.parametrize("channels", [3, 4, 5])
def test_the_server_takes_no_more_formats(channels: int) -> None:
    plain = replace(PREPROCESS, mean=(0.5,) * channels, std=(0.5,) * channels)
    loaded = make(f"ViT/8@32,depth=1,width=16,heads=2,mlp=32,classes=2,channels={channels}", plain)
    served = ServedModel(Predictor(loaded, device="cpu"), None)
    array = np.concatenate([PHOTO] * 2, axis=2)[..., :channels]
    npy = io.BytesIO()
    np.save(npy, array)
    files = [
        tiff(array.astype(np.uint16)),
        tiff(array, bigtiff=True),
        tiff(array, True, compression="zlib"),
        npy.getvalue(),
    ]
    if channels == 4:
        files[2] = tiff(array, photometric="rgb", extrasamples=["unspecified"])
    if channels == 3:
        files[2] = tiff(PHOTO)
    head = {"operation": "predict", "options": [{"top": 1}] * len(files)}
    found = run_batch(served, head, files, Limits())
    assert [good for good, _ in found] == [False, False, False, True]
    assert {data["kind"] for good, data in found if not good} == {"unsupported format"}
    for file in files[:3]:
        if channels > 3:
            assert decode(file, channels=channels).shape == array.shape  # as a user's own
