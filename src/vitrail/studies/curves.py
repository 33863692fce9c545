"""From a table to what is drawn and shown of it: means over seeds with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.result import ResultTable
from vitrail.studies.claims import Rows, as_number, estimate_seeds

Points = list[tuple[float, float, float, float]]
"""x, mean, and the ends of its interval over seeds."""


def curves(rows: Rows, *, x: str, y: str, by: str | None) -> dict[str, Points]:
    """Average a column over seeds for each x, one curve for each value of `by`."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        place, value = as_number(row.get(x)), as_number(row.get(y))
        if place is not None and value is not None:
            found.setdefault(str(row[by]) if by else "", {}).setdefault(place, []).append(value)
    return {name: [_point(at, of[at], y) for at in sorted(of)] for name, of in found.items()}


def groups(rows: Rows, *, y: str, by: str) -> dict[str, tuple[float, float, float]]:
    """Average a column over seeds for each value of `by`: mean and the ends of its interval."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (value := as_number(row.get(y))) is not None:
            found.setdefault(str(row[by]), []).append(value)
    return {name: _point(0.0, values, y)[1:] for name, values in found.items()}


def _point(at: float, values: list[float], column: str) -> tuple[float, float, float, float]:
    mean, low, high = estimate_seeds(values, column)
    return (at, mean, low, high) if len(values) > 1 else (at, mean, mean, mean)


def group_table(
    rows: Rows, by: Sequence[str], measures: Mapping[str, str], numbers: Sequence[str] = ()
) -> ResultTable:
    """Write a table of means and standard deviations over seeds; `numbers` are no fractions."""
    found: dict[tuple[object, ...], list[Mapping[str, object]]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name in by), []).append(row)
    shown = [name for name in measures if any(as_number(row.get(name)) is not None for row in rows)]
    lines = []
    for key, cells in found.items():
        columns = [[as_number(row.get(name)) for row in cells] for name in shown]
        values = [[each for each in column if each is not None] for column in columns]
        count = max(map(len, values), default=0)
        figures = [
            _mean(column, fraction=name not in numbers)
            for name, column in zip(shown, values, strict=True)
        ]
        lines.append([*map(_name, key), *figures, f"{count}"])
    heads = [name.removeprefix("model.").removeprefix("data.") for name in by]
    return ResultTable([*heads, *(measures[name] for name in shown), "n"], lines)


def _mean(values: Sequence[float], *, fraction: bool) -> str:
    """Write a mean with its standard deviation: fractions in percent, other numbers as they are."""
    if not values:
        return "-"
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
    if fraction:
        return f"{100 * mean:.1f}" + (f" ± {100 * std:.1f}" if std is not None else "")
    return f"{mean:,.0f}" if 1000 <= mean < 1e7 else f"{mean:.3g}"


def _name(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
