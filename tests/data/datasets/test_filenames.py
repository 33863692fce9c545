"""names.py: any name on one printable line and back, and many names in one piece of memory."""

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.datasets.filenames import Names
from vitrail.text import neighbors, original, printable, quoted, show

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain.jpg", "plain.jpg"),
        ("with space é 👨‍👩‍👧.jpg", "with space é 👨‍👩‍👧.jpg"),
        ("two\nlines\tand\rmore", r"two\nlines\tand\rmore"),
        ("\x1b[2J", r"\x1b[2J"),
        (os.fsdecode(b"caf\xe9.jpg"), r"caf\xe9.jpg"),
        ("\x85\u2028\u202egpj.exe", r"\u0085\u2028\u202egpj.exe"),
        (r"back\nslash", r"back\\nslash"),
        ("\ud800", r"\ud800"),
    ],
)
def test_printable(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert original(shown) == name


@given(ANY_TEXT)
def test_printable_is_one_line_of_utf8_and_reversible(name: str) -> None:
    shown = printable(name)
    shown.encode()
    assert "\t" not in shown
    assert len(shown.splitlines()) <= 1
    assert original(shown) == name


@given(st.lists(st.binary(max_size=12)))
def test_names_are_a_sequence_of_bytes(names: list[bytes]) -> None:
    kept = pickle.loads(pickle.dumps(Names(names)))
    assert len(kept) == len(names)
    assert [kept[index] for index in range(len(kept))] == names


def test_quoted_shows_the_first_few() -> None:
    assert quoted(["a\n"]) == r"'a\n'"
    assert quoted(list("abc")) == "'a', 'b', 'c'"
    assert quoted([*"abcd"] * 500) == "'a', 'b', 'c' and 1,997 more"
    assert quoted(list("abc"), most=1) == "'a' and 2 more"


def test_neighbors(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert neighbors(tmp_path / "photo") == "; did you mean 'photos'?"
    assert neighbors(tmp_path / "xyz") == ""
    assert neighbors(tmp_path / "nowhere" / "photo") == ""
    assert show(Path("a") / "b\n") == r"a/b\n"
