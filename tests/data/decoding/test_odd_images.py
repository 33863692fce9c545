"""The corpus of 289 odd images: each is used, or refused with a reason, as its list expects.

It lies beside the repository; where it is absent, these tests are skipped.
"""

import csv
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from tests.data.decoding.images import run_fresh
from vitrail.data.decoding.decode import ImageError, decode, read_header

# The module silences these for its process; pytest makes them errors again for each test.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

SCRIPT = """
    import json, sys
    from pathlib import Path
    from vitrail.data.decoding.decode import ImageError, decode, read_header

    for name in sys.stdin.read().splitlines():
        data = Path(name).read_bytes()
        try:
            header = read_header(data)
            shape = decode(data, header=header).shape
            row = {"shape": shape, "size": [header.height, header.width]}
        except ImageError as error:
            row = {"kind": error.kind, "text": str(error)}
        print(json.dumps(row))
    print(peak_megabytes())
"""


def rows(odd_images: Path) -> list[dict[str, str]]:
    with (odd_images / "MANIFEST.tsv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_each_is_used_or_refused_as_expected(odd_images: Path) -> None:
    """All in one new process, in which warnings are errors: what leaks would refuse an image."""
    names = "\n".join(str(odd_images / row["file"]) for row in rows(odd_images))
    done = run_fresh(SCRIPT, names.encode())
    *results, peak = done.stdout.splitlines()
    assert int(peak) < 1000  # MB
    assert b"Warning" not in done.stderr
    assert (
        b"samples per pixel" not in done.stderr
    )  # which Pillow would log; libtiff's own lines stay
    assert len(results) == len(rows(odd_images)) > 280
    wrong = []
    for row, line in zip(rows(odd_images), results, strict=True):
        result, expected = json.loads(line), row["expected"]
        used = "shape" in result
        if used:
            assert result["shape"] == [*result["size"], 3], row["file"]
        else:
            assert result["kind"], row["file"]
            assert 0 < len(result["text"]) < 200, row["file"]
            assert "\n" not in result["text"], row["file"]
        either = "may be used" in expected or "either" in expected or "or use" in expected
        either |= "HEI" in expected and find_spec("pillow_heif") is not None
        if not either and used != expected.startswith("use"):
            wrong.append((row["file"], expected, result))
    assert wrong == []


def test_sizes_are_as_shown(odd_images: Path) -> None:
    for row in rows(odd_images):
        if row["expected"].startswith("use") and row["size_upright"]:
            header = read_header((odd_images / row["file"]).read_bytes())
            assert f"{header.width}x{header.height}" == row["size_upright"], row["file"]


def test_the_landscapes_look_the_same(odd_images: Path) -> None:
    paths = sorted(odd_images.glob("exif/exif-orientation/Landscape_*.jpg"))
    if not paths:
        pytest.skip("only the corpus beside the project has the landscapes")
    assert len(paths) >= 5
    first, *others = [decode(path.read_bytes()) for path in paths]
    for other in others:  # compared by means, for each was compressed by itself
        means = [each.reshape(120, 10, 180, 10, 3).mean((1, 3)) for each in (first, other)]
        assert abs(means[0] - means[1]).mean() < 3


def test_deep_grey_keeps_its_levels(odd_images: Path) -> None:
    paths = list(odd_images.rglob("bas?0g16.png"))
    assert paths
    for path in paths:
        assert len(np.unique(decode(path.read_bytes()))) >= 250, path


def test_cmyk_is_near_a_second_decoder(odd_images: Path) -> None:
    paths = [
        row["file"] for row in rows(odd_images) if row["mode"] == "CMYK" and row["format"] == "JPEG"
    ]
    assert paths
    for path in paths:
        data = (odd_images / path).read_bytes()
        second = simplejpeg.decode_jpeg(data, "RGB", strict=False).astype(int)
        assert abs(decode(data) - second).max() <= 12, path


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("generated/zero_bytes.jpg", "not an image", "empty"),
        ("generated/html_renamed.jpg", "not an image", "web page"),
        ("generated/half_copied.jpg", "truncated", "copy it again"),
        ("bomb/pillow/decompression_bomb.gif", "too large", "pixels"),
        ("bomb/ljt-bugs/github_764/FuzzTimeout.jpg", "too slow", "too many parts"),
    ],
)
def test_reasons_are_those_a_person_gives(
    name: str, kind: str, says: str, odd_images: Path
) -> None:
    if not (odd_images / name).exists():
        pytest.skip(f"only the corpus beside the project has {name}")
    with pytest.raises(ImageError) as caught:
        decode((odd_images / name).read_bytes())
    assert caught.value.kind == kind
    assert says in str(caught.value)
