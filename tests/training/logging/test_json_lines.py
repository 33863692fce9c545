"""Files that grow by a line: what is read back, what is cut off, and what a full disk does."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.logging.outputs import file_limit
from vitrail.config import InputError
from vitrail.training.logging.json_lines import JSONLines, format_row


def write_steps(path: Path, *steps: int) -> bytes:
    path.write_text("".join(format_row(step, {"x": step / 3}) + "\n" for step in steps))
    return path.read_bytes()


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_read_back_exactly(value: float, count: int) -> None:
    row = json.loads(format_row(7, {"train/loss": value, "count": count}))
    assert row == {"step": 7, "train/loss": value, "count": count}
    assert math.copysign(1, row["train/loss"]) == math.copysign(1, value)


def test_what_is_no_number_is_still_json() -> None:
    values = {"a": math.nan, "b": math.inf, "c": -math.inf}
    assert format_row(1, values) == '{"step": 1, "a": "nan", "b": "inf", "c": "-inf"}'


@pytest.mark.parametrize("upto", range(8))
@pytest.mark.parametrize(
    "tail", [b"", b'{"step": 3', b'{"step": 1}', b"{}", b"\0\0\0\0", b"\0\0\n", b"[1]\n"]
)
def test_lines_after_a_step_and_torn_ones_are_cut(tmp_path: Path, upto: int, tail: bytes) -> None:
    path = tmp_path / "x.jsonl"
    steps = (1, 2, 2, 4, 6)
    kept = write_steps(path, *(step for step in steps if step <= upto))
    path.write_bytes(write_steps(path, *steps) + tail)
    lines = JSONLines(path, upto=upto)
    assert path.read_bytes() == kept
    lines.append('{"step": 9}')
    lines.close()
    assert path.read_bytes() == kept + b'{"step": 9}\n'


def test_a_strange_line_costs_no_others(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    whole = write_steps(path, 1) + b"# by hand\n" + write_steps(path, 2)
    path.write_bytes(whole + write_steps(path, 3))
    JSONLines(path, upto=2).close()
    assert path.read_bytes() == whole


def test_without_a_step_all_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("any\n")
    lines = JSONLines(path)
    lines.append("thing")
    assert path.read_text() == "any\nthing\n"  # before it is closed
    lines.close()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    for upto in (None, 3):
        with pytest.raises(InputError, match=r"metrics\.jsonl: cannot be written: Is a directory"):
            JSONLines(tmp_path / "metrics.jsonl", upto=upto)
    with pytest.raises(InputError, match="cannot be written: No such file"):
        JSONLines(tmp_path / "missing" / "metrics.jsonl")


def test_a_full_disk_loses_lines_but_tears_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.jsonl"
    lines = JSONLines(path)
    lines.append("a" * 50)
    with file_limit(100):
        lines.append("b" * 60)  # the first 49 would fit
        lines.append("c" * 70)
    lines.append("d")
    lines.sync()
    lines.close()
    assert path.read_text() == "a" * 50 + "\nd\n"
    assert caplog.messages == [f"{path}: lines are missing from here on: File too large"]


def test_a_failing_sync_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(5, "Input/output error")

    lines = JSONLines(tmp_path / "x")
    monkeypatch.setattr("os.fsync", fail)
    lines.sync()
    lines.sync()
    lines.close()
    assert [text.rpartition(": ")[2] for text in caplog.messages] == ["Input/output error"]
