"""How results look on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from vitrail.text import displayable, to_json

if TYPE_CHECKING:
    from rich.table import Table


def new_table(first: str, *columns: str, justify: Literal["left", "right"] = "right") -> Table:
    """Make a table: a column of names, then columns of figures, aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify=justify, no_wrap=True)
    return table


def print_renderable(shown: Any) -> None:
    """Print what rich can show, such as a table or a result."""
    from rich.console import Console

    # A pipe has no width; a table cut to 80 columns would lose figures there.
    width = None if sys.stdout.isatty() else 160
    # Names of classes and files are what they are: [red] is not a color, :cat: not a cat.
    Console(highlight=False, markup=False, emoji=False, width=width).print(shown)


def print_json(value: Any) -> None:
    """Print plain data as one line of JSON."""
    print_line(to_json(value))


def print_line(text: str) -> None:
    """Print one line of a result."""
    sys.stdout.write(text + "\n")


def log_line(text: str) -> None:
    """Write one line about the work to stderr."""
    sys.stderr.write(f"{displayable(text)}\n")


@contextmanager
def show_progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal's stderr, and nothing elsewhere; call with how many are done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True, markup=False, emoji=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
