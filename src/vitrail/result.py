"""Results of the public functions: plain data for programs, tables for people and notebooks.

A result is a frozen dataclass that inherits from `Result`. A field with `repr=False` is too large
to print (an array of features, a figure): it stays out of `to_dict` and of the tables.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.console import new_table, print_json, print_renderable
from vitrail.text import displayable, to_json

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class ResultTable:
    """A table of text: a column of names, then columns of figures."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    justify: Literal["left", "right"] = "right"
    """Where the columns after the first are aligned."""


class Result:
    """Mix-in of a frozen dataclass that a public function returns."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON: what `--json` prints."""
        return plain_fields(self)

    def summary(self) -> Iterable[ResultTable | str]:
        """Give what people read, from top to bottom: tables, and lines of text.

        Unless overridden, one table with the fields that are numbers or text.
        """
        values = {key: value for key, value in self.to_dict().items() if _is_scalar(value)}
        yield ResultTable(("", ""), [(key, _show(value)) for key, value in values.items()])

    def __rich__(self) -> Group:
        """Show the summary on a console (`rich.print`)."""
        from rich.console import Group
        from rich.text import Text

        parts = []
        for part in self.summary():
            if isinstance(part, str):
                parts.append(Text(displayable(part)))
                continue
            table = new_table(*part.columns, justify=part.justify)
            table.show_header = any(part.columns)
            for row in part.rows:
                # Text, not str: in a class's name [red] is not a color, :cat: not an emoji.
                table.add_row(*(Text(displayable(cell)) for cell in row))
            parts.append(table)
        return Group(*parts)

    def _repr_html_(self) -> str | None:
        """Show the summary in a notebook; lines of text stay aligned below each other."""
        parts = []
        for is_text, found in groupby(self.summary(), lambda part: isinstance(part, str)):
            if is_text:
                lines = "\n".join(html.escape(displayable(str(line))) for line in found)
                parts.append(f'<pre style="white-space: pre-wrap">{lines}</pre>')
            else:
                parts += [_write_html(part) for part in found if isinstance(part, ResultTable)]
        return "\n".join(parts)


def print_result(result: Result, *, json: bool = False) -> None:
    """Print a result on stdout: its tables, or one line of JSON."""
    if json:
        print_json(result.to_dict())
    else:
        print_renderable(result)


def print_rows(result: Result, key: str, *, json: bool = False) -> None:
    """Print a result that is a list under a key: its tables, or that list as JSON."""
    if json:
        print_json(result.to_dict()[key])
    else:
        print_renderable(result)


def plain_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields as plain data, without those that are not shown (`repr`)."""
    return {
        field.name: to_plain(getattr(value, field.name)) for field in fields(value) if field.repr
    }


def to_plain(value: Any) -> Any:
    """Return plain data, ready for JSON; NaN and infinite numbers, which JSON lacks, are None."""
    if value is None or isinstance(value, str | bool | int):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):  # a NamedTuple
        return to_plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    if hasattr(value, "tolist"):  # an array, a tensor or one number of either
        return to_plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not plain data; hide its field with repr=False")


def write_json(result: Result) -> str:
    """Write a result as a JSON file's text."""
    return to_json(result.to_dict(), indent=1) + "\n"


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _show(value: float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else value


def _write_html(table: ResultTable) -> str:
    """Write a table as HTML, its columns aligned as on the console."""

    def row(tag: str, cells: Sequence[str]) -> str:
        sides = ["left"] + [table.justify] * (len(cells) - 1)
        return "".join(
            f'<{tag} style="text-align:{side}">{html.escape(displayable(cell))}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )

    head = f"<thead><tr>{row('th', table.columns)}</tr></thead>" if any(table.columns) else ""
    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in table.rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"
