"""What a sweep found: one tidy row per cell, and its groups over the seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.evaluation.metrics.intervals import student_t
from vitrail.files import make_folder, write_whole
from vitrail.result import Result, ResultTable, to_plain
from vitrail.studies.claims import estimate_seeds, is_fraction
from vitrail.studies.engine.jobs import CellJobs, Records
from vitrail.studies.engine.stage_words import THEN
from vitrail.text import to_json

if TYPE_CHECKING:
    from pandas import DataFrame

FACTS = ("model", "parameters", "steps", "images_seen", "flops")
METRICS = ("top1", "top5", "loss", "map", "macro_f1", "micro_f1")
_STATE = ("state", "error")


@dataclass(frozen=True)
class Group:
    """What the cells that differ only in their seed have in common."""

    values: Mapping[str, Any]
    """What they have of each axis."""
    score: str
    mean: float
    std: float | None
    """Sample standard deviation (over n - 1); None for a single cell."""
    low: float | None
    """The 95 % interval of the mean (Student's t)."""
    high: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """A value of an axis against another, in pairs of cells that are alike but for it."""

    axis: str
    value: Any
    against: Any
    score: str
    mean: float
    low: float | None
    """The 95 % interval of the mean difference (Student's t over the pairs)."""
    high: float | None
    n: int
    """Pairs."""


@dataclass(frozen=True, kw_only=True)
class SweepResult(Result):
    """The table of a sweep."""

    folder: Path
    axes: tuple[str, ...]
    score: str
    """The column that groups and plots go by unless another is named."""
    rows: tuple[dict[str, Any], ...]
    """One for each cell: what it has of each axis, seed, state, facts, scores."""

    @property
    def table(self) -> DataFrame:
        """The rows as a pandas table."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise InputError("the table needs pandas: pip install 'vitrail[studies]'") from None
        return DataFrame(list(self.rows), columns=list(self.columns))

    @property
    def columns(self) -> tuple[str, ...]:
        """Name the columns, from the axes to the errors."""
        named = dict.fromkeys(name for row in self.rows for name in row)
        return (*(name for name in named if name not in _STATE), *_STATE)

    @property
    def failed(self) -> int:
        """Count the cells that failed."""
        return sum(row["state"] == "failed" for row in self.rows)

    def scores(self) -> list[str]:
        """Name the columns that are measured."""
        metrics = {*METRICS, *(f"{THEN}{name}" for name in METRICS)}
        fixed = {*self.axes, *FACTS, *_STATE, "seed", "cell"}
        fixed |= {f"{THEN}{name}" for name in FACTS} | {f"run.{name}" for name in FACTS}
        found = [name for name in self.columns if name in metrics and name not in self.axes]
        return found + [
            name
            for name in self.columns
            if name not in fixed | metrics
            and any(isinstance(row.get(name), float) for row in self.rows)
            and not all("." in name and name in row for row in self.rows)
        ]

    def grouped(self, score: str | None = None) -> list[Group]:
        """Summarize the finished cells over their seeds, by what they have of each axis."""
        score = self.check_score(score)
        found: dict[tuple[Any, ...], list[float]] = {}
        for row in self.rows:
            key = tuple(row[axis] for axis in self.axes)
            values = found.setdefault(key, [])
            if row.get(score) is not None:
                values.append(row[score])
        return [
            _group(dict(zip(self.axes, key, strict=True)), score, values)
            for key, values in found.items()
            if values
        ]

    def differences(
        self, axis: str, against: Any = None, score: str | None = None
    ) -> list[Difference]:
        """Compare each value of an axis with one of them, by default its first.

        Cells are paired that have the same seed and the same of all other axes.
        """
        score = self.check_score(score)
        if axis not in self.axes:
            raise InputError(f"{axis!r} is not an axis{suggest(axis, self.axes)}")
        others = [name for name in (*self.axes, "seed") if name != axis]
        by_value: dict[Any, dict[tuple[Any, ...], float]] = {}
        for row in self.rows:
            place = by_value.setdefault(row[axis], {})
            if row.get(score) is not None:
                place[tuple(row[name] for name in others)] = row[score]
        base = next(iter(by_value)) if against is None else against
        if base not in by_value:
            raise InputError(f"{axis} has no value {base!r}; it has {list(by_value)}")
        found = []
        for value, cells in by_value.items():
            pairs = [cells[key] - by_value[base][key] for key in cells if key in by_value[base]]
            if value != base and pairs:
                mean, low, high = student_t(np.array(pairs))
                if is_fraction(score):
                    low, high = max(low, -1.0), min(high, 1.0)
                shown = (low, high) if len(pairs) > 1 else (None, None)
                found.append(Difference(axis, value, base, score, mean, *shown, len(pairs)))
        return found

    def check_score(self, score: str | None) -> str:
        """Return the column that is asked for, by default the table's own; refuse what is none."""
        score = score or self.score
        if score not in self.columns:
            known = self.scores()
            hint = suggest(score, known) or f"; there are: {', '.join(known)}"
            raise InputError(f"the table has no column {score!r}{hint}")
        return score

    def to_csv(self) -> str:
        """Write the table as CSV; the same sweep writes the same bytes, however often resumed."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def write_table(self, path: str | Path) -> Path:
        """Write the table as a .csv, .parquet or .json file."""
        path = Path(path)
        writers = {".csv": self.to_csv, ".parquet": self._to_parquet, ".json": self._to_json}
        if path.suffix not in writers:
            raise InputError(f"{path}: expected a file that ends in {', '.join(writers)}")
        make_folder(path.parent)
        write_whole(path, writers[path.suffix]())
        return path

    def _to_json(self) -> str:
        return to_json(to_plain(self.rows), indent=1) + "\n"

    def _to_parquet(self) -> bytes:
        try:
            from pyarrow import BufferOutputStream, Table
            from pyarrow.parquet import write_table
        except ImportError:
            raise InputError("Parquet needs pyarrow: pip install 'vitrail[studies]'") from None
        columns = {}
        for name in self.columns:
            values = [row.get(name) for row in self.rows]
            kinds = {type(value) for value in values if value is not None}
            alike = len(kinds) == 1 or kinds == {int, float}
            columns[name] = (
                values if alike else [None if each is None else str(each) for each in values]
            )
        write_table(Table.from_pydict(columns), sink := BufferOutputStream())
        return sink.getvalue().to_pybytes()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the rows, and the groups of the score."""
        groups = self.grouped() if self.score in self.columns else []
        return {
            "folder": str(self.folder),
            "cells": len(self.rows),
            "failed": self.failed,
            "score": self.score,
            "rows": to_plain(self.rows),
            "groups": [to_plain(group) for group in groups],
        }

    def group_table(self, score: str | None = None) -> ResultTable:
        """Write the groups over seeds: mean, std, interval, n."""
        rows = []
        for group in self.grouped(score):
            shown = [_show(value) for value in group.values.values()]
            std = "" if group.std is None else f"{group.std:.2g}"
            between = _interval(group.low, group.high)
            rows.append([*shown, f"{group.mean:.4g}", std, between, str(group.n)])
        return ResultTable([*self.axes, score or self.score, "std", "95 % interval", "n"], rows)

    def difference_table(self, score: str | None = None) -> ResultTable:
        """Write each axis's values against its first: mean difference in pairs, interval, n."""
        rows = [
            [axis, f"{_show(each.value)} - {_show(each.against)}", f"{each.mean:+.4g}",
             _interval(each.low, each.high), str(each.n)]
            for axis in self.axes
            for each in self.differences(axis, score=score)
        ]  # fmt: skip
        return ResultTable(["axis", "values", "difference", "95 % interval", "pairs"], rows)

    def summary(self) -> Iterator[ResultTable | str]:
        """Give the groups and paired differences, then the cells that failed."""
        if any(row.get(self.score) is not None for row in self.rows):
            yield self.group_table()
            compared = self.difference_table()
            if compared.rows and max(int(row[-1]) for row in compared.rows) > 1:
                yield compared
        for row in self.rows:
            if row["state"] != "done":
                said = ", ".join(f"{axis}={row[axis]}" for axis in (*self.axes, "seed"))
                yield f"{said}: {row['state']}{': ' if row['error'] else ''}{row['error'] or ''}"
        done = sum(row["state"] == "done" for row in self.rows)
        yield f"{self.folder}: {done:,} of {len(self.rows):,} cells done"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None else f"{low:.4g} to {high:.4g}"


def _group(values: Mapping[str, Any], score: str, found: Sequence[float]) -> Group:
    mean, low, high = estimate_seeds(found, score)
    if len(found) < 2:
        return Group(values, score, mean, None, None, None, 1)
    return Group(values, score, mean, stdev(found), low, high, len(found))


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def make_result(folder: Path, cells: Sequence[CellJobs], records: Records) -> SweepResult:
    """Gather the rows of all cells from their runs' records."""
    axes = tuple(choice.axis for choice in cells[0].cell.choices)
    rows = [_make_row(each, records) for each in cells]
    for row in rows:
        for name in [name for name in row if all(other.get(name) is None for other in rows)]:
            if name not in (*_STATE, *axes):
                del row[name]
    return SweepResult(folder=folder, axes=axes, score=choose_score(rows), rows=tuple(rows))


def choose_score(rows: Sequence[Mapping[str, Any]]) -> str:
    """Choose the column that groups and plots go by: the accuracy of the last run."""
    columns = {name for row in rows for name, value in row.items() if value is not None}
    names = (f"{THEN}top1", f"{THEN}map", "top1", "map")
    return next((name for name in names if name in columns), "loss")


def _make_row(jobs: CellJobs, records: Records) -> dict[str, Any]:
    row: dict[str, Any] = {each.axis: each.label for each in jobs.cell.choices}
    row["seed"] = jobs.cell.seed
    state, error = "done", None
    for name, prefix in ((jobs.first, ""), (jobs.then, THEN)):
        if name is None:
            continue
        record = records.read(name) or {"state": "waiting"}
        if record["state"] == "done":
            row |= _columns(record, prefix, row)
        elif state != "failed":
            state, error = record["state"], record.get("error")
    return {**row, "state": state, "error": error}


def _columns(record: Mapping[str, Any], prefix: str, taken: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {f"{prefix}{name}": value for name, value in record["chosen"].items()}
    run = {name: record["run"].get(name) for name in (*FACTS, *METRICS)}
    measured = record["run"].get("fewshot") or {}
    seen = {f"fewshot_{shots}": accuracy for shots, accuracy in measured.items()}
    every = {**run, **seen, **record["measured"]}
    named = {f"{prefix}{name}": value for name, value in every.items()}
    return {
        **chosen,
        **{f"run.{name}" if name in taken else name: value for name, value in named.items()},
    }
