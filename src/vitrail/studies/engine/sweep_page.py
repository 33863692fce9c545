"""Plots of a sweep's table, and the page that it leaves in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from vitrail.config import InputError, suggest
from vitrail.plotting.canvas import Plot
from vitrail.plotting.study_plots import draw_groups, draw_lines
from vitrail.report.html_page import ReportSection, make_page, result_card, table_card
from vitrail.result import ResultTable
from vitrail.studies.claims import as_number
from vitrail.studies.curves import curves, groups
from vitrail.studies.engine.sweep_result import FACTS, SweepResult

_PLOTS = 4  # scores that the page draws
_ROWS = 200  # cells that it lists
_SCORES = {"top1": "Top-1 accuracy", "top5": "Top-5 accuracy", "loss": "Validation loss"}
_BY = "\0by"  # a column for what a curve is of


def draw_sweep(
    result: SweepResult, *, x: str | None = None, score: str | None = None, by: str | None = None
) -> Plot:
    """Draw a score over a column, a line with its band over seeds for each of the others.

    By default `x` is the axis with the most numbers, and `by` all other axes; without a numeric
    axis each combination is a dot with its interval.
    """
    score = result.check_score(score)
    for name in (x, by):
        if name is not None and name not in result.columns:
            raise InputError(
                f"the table has no column {name!r}{suggest(name, result.columns)}; there are: "
                f"{', '.join(result.columns)}"
            )
    x = x or _numeric_axis(result)
    others = [by] if by else [axis for axis in result.axes if axis != x]
    rows = [{**row, _BY: _name(row, others)} for row in result.rows]
    values = [value for row in rows if (value := as_number(row.get(score))) is not None]
    if not values:
        raise InputError(f"no finished cell has a {score}, so there is nothing to draw")
    percent = all(0 <= value <= 1 for value in values)
    if x is None:
        return draw_groups(groups(rows, y=score, by=_BY), x=score, percent=percent)
    places = [place for row in rows if (place := as_number(row.get(x))) is not None]
    if not places:
        raise InputError(f"{x} has no numbers to draw {score} over")
    spread = min(places) > 0 and max(places) >= 8 * min(places)
    found = curves(rows, x=x, y=score, by=_BY)
    return draw_lines(found, x=x, y=score, percent=percent, log_x=spread, bands=True)


def _numeric_axis(result: SweepResult) -> str | None:
    """Choose the axis with the most values, all of them numbers."""
    counts = {}
    for axis in result.axes:
        values = {row[axis] for row in result.rows}
        if len(values) > 1 and all(as_number(value) is not None for value in values):
            counts[axis] = len(values)
    return max(counts, key=lambda axis: counts[axis]) if counts else None


def _name(row: Mapping[str, Any], axes: list[str]) -> str:
    """Name a curve by what it is of; a single text says that alone."""
    if len(axes) == 1 and isinstance(row.get(axes[0]), str):
        return str(row[axes[0]])
    return ", ".join(f"{axis.rpartition('.')[2]} {show_value(row.get(axis))}" for axis in axes)


def show_value(value: Any) -> str:
    """Write a value of a table."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else ""
    return "" if value is None else str(value)


def sweep_page(result: SweepResult, *, x: str | None = None, by: str | None = None) -> str:
    """Write the page: plots, groups over seeds, paired differences, all cells, and the plan."""
    first = result.score
    measured = [name for name in result.scores() if name != first]
    section = ReportSection("Scores", "Means over seeds with 95 % intervals.")
    for name in [first, *measured][:_PLOTS]:
        if any(as_number(row.get(name)) is not None for row in result.rows):
            plot = draw_sweep(result, x=x, score=name, by=by)
            plot.title = _SCORES.get(name, name)
            section.draw(plot, key=f"plot-{name}")
    sections = [section]
    if any(as_number(row.get(first)) is not None for row in result.rows):
        section.cards.append(result_card("Over seeds", result.group_table(first)))
        compared = result.difference_table(first)
        if compared.rows:
            note = "Cells that are alike but for one axis, seed by seed, against its first value."
            sections.append(
                ReportSection("Differences", note, [result_card("Paired differences", compared)])
            )
    sections.append(ReportSection("Cells", cards=[result_card("All cells", _cell_table(result))]))
    if plan := _read_plan(result):
        sections.append(ReportSection("Plan", cards=[table_card("What was run", plan)]))
    done = sum(row["state"] == "done" for row in result.rows)
    said = f"{done:,} of {len(result.rows):,} cells done, {result.failed:,} failed"
    title = f"Sweep {result.folder.resolve().name}" if result.folder.name else "Runs side by side"
    return make_page(title, said, sections, "Made by vitrail.")


def _cell_table(result: SweepResult) -> ResultTable:
    kept = [name for name in result.columns if name not in FACTS or name in ("steps", "flops")]
    shown = [name for name in kept if any(row.get(name) is not None for row in result.rows)]
    rows = [[show_value(row.get(name)) for name in shown] for row in result.rows[:_ROWS]]
    return ResultTable(shown, rows)


def _read_plan(result: SweepResult) -> dict[str, str]:
    path = result.folder / "sweep.json"
    if not path.exists():
        return {}
    plan = json.loads(path.read_text(encoding="utf-8"))
    rows = {name: str(value) for name, value in plan["base"].items()}
    rows |= {f"vary {axis}": json.dumps(values) for axis, values in plan["axes"].items()}
    rows |= {f"best {name}": json.dumps(values) for name, values in plan["best"].items()}
    rows["seeds"] = ", ".join(map(str, plan["seeds"]))
    if plan["measures"]:
        rows["measures"] = json.dumps(plan["measures"])
    return rows
