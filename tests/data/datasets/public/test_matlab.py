"""Lists of numbers in MATLAB files, against the ones scipy writes; and damaged files."""

import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from tests.shelf import refusal
from vitrail.config import InputError
from vitrail.data.datasets.public import matlab
from vitrail.data.datasets.public.matlab import read_mat


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_lists_of_all_types(tmp_path: Path, kind: str, compressed: bool) -> None:
    arrays = {
        "labels": np.array([[5, 77, 3, 102, 1]], kind),
        "one": np.array([[7]], kind),
        "column": np.arange(40, dtype=kind)[:, None],
        "a_rather_long_name": np.arange(2, 99, dtype=kind),
    }
    savemat(tmp_path / "a.mat", arrays, do_compression=compressed)
    found = read_mat(tmp_path / "a.mat")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == np.int64
        np.testing.assert_array_equal(found[name], array.ravel())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("text", "'x' has no numbers"),
        ({"a": 1}, "an array has other parts"),
        (np.array([1 + 2j]), "an array has other parts"),
        (np.array([0.5]), "'x' has numbers that are not whole"),
        (np.array([np.nan, 1e300]), "'x' has numbers that are not whole"),
        (np.array([[1, "a"]], object), "other parts"),
    ],
)
def test_refuses_other_values(tmp_path: Path, value: Any, told: str) -> None:
    savemat(tmp_path / "a.mat", {"x": value})
    text = refusal(read_mat, tmp_path / "a.mat")
    assert text.startswith(f"{tmp_path / 'a.mat'}: ")
    assert told in text


def test_refuses_what_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.mat"
    savemat(file, {"x": np.zeros(200_000)}, do_compression=True)
    assert file.stat().st_size < 10_000
    assert "or has over 1,000,000 bytes" in refusal(read_mat, file)
    monkeypatch.setattr(matlab, "_LIMIT", 100)
    assert "over 100 bytes" in refusal(read_mat, file)


def test_refuses_other_files(tmp_path: Path) -> None:
    assert "No such file" in refusal(read_mat, tmp_path / "a.mat")
    for content in (b"", b"MATLAB 5.0 MAT-file", bytes(200)):
        (tmp_path / "a.mat").write_bytes(content)
        assert "not a MATLAB file of version 5" in refusal(read_mat, tmp_path / "a.mat")


def matrix(order: str, shape: tuple[int, ...], values: bytes) -> bytes:
    """Write a file with one array of class double, which MATLAB keeps in bytes where it can."""

    def element(kind: int, body: bytes) -> bytes:
        return struct.pack(f"{order}II", kind, len(body)) + body + bytes(-len(body) % 8)

    sides = struct.pack(f"{order}{len(shape)}i", *shape)
    name = struct.pack(f"{order}I", 1 << 16 | 1) + b"x\0\0\0"  # a short element
    parts = element(6, struct.pack(f"{order}II", 6, 0)) + element(5, sides) + name
    head = b" " * 124 + struct.pack(f"{order}HH", 0x0100, 0x4D49)
    return head + element(14, parts + element(2, values))


@pytest.mark.parametrize("order", ["<", ">"])
def test_doubles_kept_in_bytes(tmp_path: Path, order: str) -> None:
    (tmp_path / "a.mat").write_bytes(matrix(order, (1, 5), bytes((1, 77, 255, 0, 9))))
    assert read_mat(tmp_path / "a.mat")["x"].tolist() == [1, 77, 255, 0, 9]


def test_dimensions_do_not_overflow(tmp_path: Path) -> None:
    """2^16 x 2^16 x 2^16 x 2^16 is 0 in 64 bits, which is how many numbers there are."""
    (tmp_path / "a.mat").write_bytes(matrix("<", (2**16,) * 4, b""))
    text = refusal(read_mat, tmp_path / "a.mat")
    assert "'x' has 0 numbers, and says it has 18446744073709551616" in text


@settings(max_examples=150)
@given(data=st.data(), compressed=st.booleans())
def test_damaged_bytes_never_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, compressed: bool
) -> None:
    file = tmp_path_factory.mktemp("mat") / "a.mat"
    savemat(file, {"labels": np.arange(30), "x": np.array([[1, 2]], np.uint8)})
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(124, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(128, len(content)))]
    if compressed:
        packed = zlib.compress(content[128:])
        content = content[:128] + struct.pack("<II", 15, len(packed)) + packed
    file.write_bytes(content)
    with suppress(InputError):
        assert all(array.ndim == 1 for array in read_mat(file).values())
