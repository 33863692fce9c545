"""bad.py: the list of bad images is written whole, read back, and kept to."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.config import InputError
from vitrail.data.dataset import ArrayDataset, select
from vitrail.data.datasets.folder import open_folder
from vitrail.data.datasets.unreadable_list import (
    UNREADABLE_LIST,
    FilteredDataset,
    leave_out_unreadable,
    read_unreadable_list,
    write_unreadable_list,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)


@settings(max_examples=25)  # each waits for the disk
@given(st.dictionaries(ANY_TEXT.filter(bool), ANY_TEXT))
def test_any_name_and_reason_come_back(rows: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_unreadable_list(Path(folder), rows)
        assert read_unreadable_list(Path(folder)) == rows
        assert os.listdir(folder) == ([UNREADABLE_LIST] if rows else [])


def test_the_list_is_plain_tab_separated_text(tmp_path: Path) -> None:
    path = write_unreadable_list(tmp_path, {"b/2\n.jpg": "truncated", "a/1.jpg": "not a\timage"})
    assert path is not None
    assert path == tmp_path / UNREADABLE_LIST
    rows = [
        b"path\treason",
        rb"a/1.jpg" + b"\t" + rb"not a\timage",
        rb"b/2\n.jpg" + b"\ttruncated",
    ]
    assert path.read_bytes() == b"\n".join([*rows, b""])


def test_a_list_that_people_edited(tmp_path: Path) -> None:
    text = "\ufeffpath\treason\r\ncats/1.jpg\tblurred\r\n\r\ncats/2.jpg\r\ncats/3.jpg\ta\tb"
    (tmp_path / UNREADABLE_LIST).write_bytes(text.encode())
    assert read_unreadable_list(tmp_path) == {
        "cats/1.jpg": "blurred", "cats/2.jpg": "", "cats/3.jpg": "a\tb"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"cats/1.jpg\tblurred\n", "expected a first line of 'path', a tab and 'reason'"),
        (b"", "expected a first line of 'path', a tab and 'reason'"),
        (b"path\treason\ncaf\xe9.jpg\tx\n", "not UTF-8 text; remove it, or check again"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / UNREADABLE_LIST).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_unreadable_list(tmp_path)
    assert str(caught.value) == f"{tmp_path / UNREADABLE_LIST}: {problem}"


def test_a_failed_write_leaves_the_old_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_unreadable_list(tmp_path, {"a": "old"})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InputError, match=r"vitrail-unreadable.tsv: cannot be written: No space left on devic"
    ):
        write_unreadable_list(tmp_path, {"b": "new"})
    assert read_unreadable_list(tmp_path) == {"a": "old"}
    assert os.listdir(tmp_path) == [UNREADABLE_LIST]


def test_no_rows_remove_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_unreadable_list(tmp_path, {"a": "old"})
    assert write_unreadable_list(tmp_path, {}) is None
    assert os.listdir(tmp_path) == []

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)  # which it does for what is not there, too
    assert write_unreadable_list(tmp_path, {}) is None


def test_bad_images_are_left_out(tmp_path: Path) -> None:
    for name in ("a/1", "a/2\n", "b/1", "b/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    whole = open_folder(tmp_path, "all")
    assert leave_out_unreadable(whole) is whole
    write_unreadable_list(tmp_path, {r"a/2\n": "cut off", "b/1": "cut off", "gone": "was bad"})
    left = leave_out_unreadable(whole)
    assert isinstance(left, FilteredDataset)
    assert [left.where(index) for index in range(len(left))] == ["a/1", "b/2"]
    assert [left.read(index) for index in range(len(left))] == [b"a/1", b"b/2"]
    assert left.labels.tolist() == [0, 1]
    assert left.skipped == 2
    assert (left.name, left.root, left.classes) == (whole.name, tmp_path, ("a", "b"))
    part = select(whole, np.array([3, 0]))
    assert leave_out_unreadable(part) is part, "none of these is on the list"


def test_a_set_without_a_folder_has_no_list() -> None:
    pixels = ArrayDataset("p", ["a"], np.zeros(2, np.int64), np.zeros((2, 1, 1, 3), np.uint8))
    assert leave_out_unreadable(pixels) is pixels
