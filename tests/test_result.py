"""Results: plain data, console tables and HTML, whatever the fields hold."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console

from vitrail.result import Result, ResultTable, print_result, to_plain
from vitrail.text import to_json


class Estimate(NamedTuple):
    value: float
    low: float


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Row:
    name: str
    top1: Estimate


@dataclass(frozen=True)
class Found(Result):
    images: int
    top1: float
    classes: tuple[Row, ...] = ()
    folder: Path | None = None
    values: np.ndarray = field(default_factory=lambda: np.zeros(1_000_000), repr=False)


@dataclass(frozen=True)
class Listed(Result):
    name: str

    def summary(self) -> Iterator[ResultTable | str]:
        yield ResultTable(("class", "top-1"), [(self.name, "90 %")])
        yield "on 12 images"


def show(result: Result) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(result)
    return out.getvalue()


def test_plain_data_of_every_kind_of_field() -> None:
    found = Found(3, 0.5, (Row("cat", Estimate(0.25, float("nan"))),), Path("runs/a"))
    assert found.to_dict() == {
        "images": 3,
        "top1": 0.5,
        "classes": [{"name": "cat", "top1": {"value": 0.25, "low": None}}],
        "folder": "runs/a",
    }
    assert to_plain({5: (np.float32(0.5), np.arange(2)), "c": Color.RED}) == {
        "5": [0.5, [0, 1]],
        "c": "red",
    }
    with pytest.raises(TypeError, match="object is not plain data"):
        to_plain(object())


def test_console_shows_scalars_unless_told_otherwise() -> None:
    lines = [line.split() for line in show(Found(12_345, 0.5, folder=Path("runs/a"))).splitlines()]
    assert [line for line in lines if line] == [
        ["images", "12,345"],
        ["top1", "0.5"],
        ["folder", "runs/a"],
    ]


def test_names_are_shown_as_they_are_and_cannot_move_the_cursor() -> None:
    shown = show(Listed("[red]:cat:\x1b[2J\udcff"))
    assert r"[red]:cat:\x1b[2J\xff" in shown
    assert "on 12 images" in shown


def test_a_notebook_gets_a_table_of_escaped_text() -> None:
    html = Listed("<b>cat</b>")._repr_html_()
    assert html == (
        '<table><thead><tr><th style="text-align:left">class</th>'
        '<th style="text-align:right">top-1</th></tr></thead><tbody><tr>'
        '<td style="text-align:left">&lt;b&gt;cat&lt;/b&gt;</td>'
        '<td style="text-align:right">90 %</td></tr></tbody></table>\n'
        '<pre style="white-space: pre-wrap">on 12 images</pre>'
    )


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Found(3, 0.5), json=True)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"images": 3, "top1": 0.5, "classes": [], "folder": None}
    print_result(Listed("cat"))
    assert "cat" in capsys.readouterr().out


def test_json_of_names_that_are_not_utf8_is_read_by_everybody() -> None:
    names = {"d\udce9": ["d\udce9", "caf\u00e9", "\U0001f408", "a\\b"], "n": 0.5}
    text = to_json(names)
    text.encode()
    assert json.loads(text) == {"d\\xe9": ["d\\xe9", "caf\u00e9", "\U0001f408", "a\\b"], "n": 0.5}
    assert to_json({"cat": ["\U0001f408"]}) == json.dumps({"cat": ["\U0001f408"]})
    with pytest.raises(ValueError, match="JSON"):
        to_json([float("nan")])
