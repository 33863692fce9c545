"""Claims as functions of a table: each holds, fails or stays undecided, with its effect.

A table has one row per cell and seed. A check is a function of the table and a level; those here
are put together from few blocks: `greater`, `alike`, `ordered`, `crosses`, `gains_more`,
`gap_closes`, and, for several at once, `all_of`. Runs of the same seed are compared in pairs, and
the interval is Student's t over seeds; where accuracies all differ by the same, nothing bounds it.
A claim holds if its whole interval is on its side, fails if the whole interval is on the other
side, and is undecided otherwise: a false one holds, or a true one fails, with a probability of at
most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate, student_t

Rows = Sequence[Mapping[str, Any]]
"""A table: what was varied, `seed`, and what was measured, by name."""
Where = Mapping[str, object]
"""Rows of a table by the values that they have in some columns."""
Verdict = Literal["holds", "fails", "undecided"]

LEAST, MOST = "(least)", "(most)"
"""As a value of `Where`: the smallest and the largest number that a table has in a column."""

LEVEL = 0.05
"""Probability of a wrong verdict."""

_EQUAL = 1e-12  # differences that rounding alone keeps apart

FRACTIONS = {"top1", "top5", "map", "macro_accuracy", "macro_f1", "micro_f1"}
"""Columns of a sweep's table that are in [0, 1], after `then.`, too."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a table says about a claim."""

    verdict: Verdict
    effect: float
    low: float
    """The interval of the effect, at the level of the check."""
    high: float
    n: int
    """Pairs of runs that the interval is of, the fewest of several; or points of a fit."""
    unit: str = "points"
    note: str = ""
    """Why it is undecided, or which of several comparisons decided."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; an interval without an end has None there."""
        ends = [end if math.isfinite(end) else None for end in (self.low, self.high)]
        effect = self.effect if math.isfinite(self.effect) else None
        head = {"verdict": self.verdict, "effect": effect, "interval": ends, "n": self.n}
        return {**head, "unit": self.unit, "note": self.note}

    def __str__(self) -> str:
        """Say effect, interval and n in one line."""
        if not math.isfinite(self.effect):
            return self.note
        span = "no interval"
        if math.isfinite(self.low) and math.isfinite(self.high):
            span = f"{_signed(self.low, self.unit)} to {_signed(self.high, self.unit)}"
        said = f"{_signed(self.effect, self.unit)} {self.unit} ({span}), n = {self.n}"
        return f"{said}; {self.note}" if self.note else said


Check = Callable[[Rows, float], Finding]
"""A function of a table and a level."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that a table can contradict."""

    text: str
    check: Check
    paper: str = ""
    """What the paper found about it, in a few words."""

    def judge(self, rows: Rows) -> Finding:
        """Say what a table says about it."""
        return self.check(rows, LEVEL)


def greater(measure: str, first: Where, second: Where, by: float = 0.0) -> Check:
    """Claim that a measure (a fraction) is more than `by` greater in the first rows."""

    def check(rows: Rows, level: float) -> Finding:
        apart, most = differences(rows, measure, first, second), _most(measure)
        return judge_sign(apart - by, level, offset=by, most=most)

    return check


def alike(measure: str, first: Where, second: Where, within: float) -> Check:
    """Claim that a measure differs by less than `within` (two one-sided tests).

    It fails only if the whole interval is outside.
    """

    def check(rows: Rows, level: float) -> Finding:
        apart = differences(rows, measure, first, second)
        found = judge_sign(apart, level, most=_most(measure))
        bound = 100 * within
        verdict: Verdict = "undecided"
        if -bound < found.low and found.high < bound:
            verdict = "holds"
        elif found.low > bound or found.high < -bound:
            verdict = "fails"
        return replace(found, verdict=verdict)

    return check


def ordered(measure: str, *steps: Where) -> Check:
    """Claim that a measure rises from each of several groups of rows to the next."""
    pairs = zip(steps[1:], steps, strict=False)
    return all_of(*(greater(measure, more, less) for more, less in pairs))


def crosses(measure: str, first: Where, second: Where, start: Where, end: Where) -> Check:
    """Claim that the first rows are behind the second at the start, and ahead at the end."""
    behind = greater(measure, {**second, **start}, {**first, **start})
    return all_of(behind, greater(measure, {**first, **end}, {**second, **end}))


def gains_more(measure: str, first: Where, second: Where, start: Where, end: Where) -> Check:
    """Claim that a measure rises more from start to end in the first rows than in the second."""

    def check(rows: Rows, level: float) -> Finding:
        cells = [{**of, **when} for of in (first, second) for when in (start, end)]
        low, high, other_low, other_high = (by_seed(rows, measure, cell) for cell in cells)
        seeds = sorted(low.keys() & high.keys() & other_low.keys() & other_high.keys())
        gains = [high[each] - low[each] - other_high[each] + other_low[each] for each in seeds]
        return judge_sign(np.array(gains), level, most=2 * _most(measure))

    return check


def gap_closes(measure: str, leader: Where, follower: Where, start: Where, end: Where) -> Check:
    """Claim that a leader is ahead at the start, and by less at the end."""
    ahead = greater(measure, {**leader, **start}, {**follower, **start})
    return all_of(ahead, gains_more(measure, follower, leader, start, end))


def all_of(*checks: Check) -> Check:
    """Claim several things at once: all hold, or one fails, each at its share of the level.

    The effect is that of the comparison that decided: of the one that failed, or else of the
    weakest one.
    """

    def check(rows: Rows, level: float) -> Finding:
        found = [each(rows, level / len(checks)) for each in checks]
        order = {"fails": 0, "undecided": 1, "holds": 2}
        worst = min(found, key=lambda each: (order[each.verdict], _margin(each)))
        place = found.index(worst) + 1
        note = "; ".join(filter(None, (f"comparison {place} of {len(found)}", worst.note)))
        return replace(worst, note=note, n=min(each.n for each in found))

    return checks[0] if len(checks) == 1 else check


def best_of(rows: Rows, choice: str, by: str, per: Sequence[str]) -> Rows:
    """Keep, for each value of the columns `per`, the choice with the best mean of a measure.

    Each seed's choice is made by the other seeds' runs: a lucky run would otherwise choose itself.
    """
    kept: list[Mapping[str, Any]] = []
    for seed in seeds_of(rows):
        mine = [row for row in rows if int(row["seed"]) == seed]
        means: dict[tuple[object, ...], dict[object, list[float]]] = {}
        for row in [row for row in rows if int(row["seed"]) != seed] or mine:
            if (score := as_number(row.get(by))) is not None:
                key = tuple(row[column] for column in per)
                means.setdefault(key, {}).setdefault(row[choice], []).append(score)
        best = {key: max(of, key=lambda each: np.mean(of[each])) for key, of in means.items()}
        kept += [row for row in mine if best.get(tuple(row[each] for each in per)) == row[choice]]
    return kept


def differences(rows: Rows, measure: str, first: Where, second: Where) -> np.ndarray:
    """Subtract the second rows' measure from the first rows', seed by seed."""
    one, other = by_seed(rows, measure, first), by_seed(rows, measure, second)
    return np.array([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


def by_seed(rows: Rows, measure: str, where: Where) -> dict[int, float]:
    """Give each seed's mean of a measure over the rows that have these values."""
    found: dict[int, list[float]] = {}
    for row in rows_where(rows, where):
        if (value := as_number(row.get(measure))) is not None:
            found.setdefault(int(row["seed"]), []).append(value)
    return {seed: float(np.mean(values)) for seed, values in found.items()}


def rows_where(rows: Rows, where: Where) -> Rows:
    """Keep the rows that have these values."""
    wanted = dict(where)
    for key, value in where.items():
        if value in (LEAST, MOST):
            there = [row[key] for row in rows if as_number(row.get(key)) is not None]
            wanted[key] = (min if value == LEAST else max)(there, default=None)
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def seeds_of(rows: Rows) -> list[int]:
    """List the seeds of a table."""
    return sorted({int(row["seed"]) for row in rows})


def judge_sign(
    values: np.ndarray, level: float, *, offset: float = 0.0, most: float = math.inf
) -> Finding:
    """Say whether the mean of some fractions is above 0, in points; `offset` was subtracted.

    The fractions are between -most and most.
    """
    found = student_t(values, 1 - level)
    alike = len(values) > 1 and math.isfinite(most) and float(np.ptp(values)) < _EQUAL
    if alike:  # by chance, as of few images: their spread says nothing
        found = found._replace(low=-math.inf, high=math.inf)
    if len(values) > 1:
        found = found.within(-most - offset, most - offset)
    found = Estimate(*(100 * each for each in found))
    shift = 100 * offset
    plural = "" if len(values) == 1 else "s"
    note = "" if len(values) > 1 else f"{len(values)} pair{plural} of runs; 2 are needed"
    if alike:
        note = f"{len(values)} pairs of runs differ by the same, so nothing tells their spread"
    return Finding(
        verdict=decide(found),
        effect=found.value + shift,
        low=found.low + shift,
        high=found.high + shift,
        n=len(values),
        note=note,
    )


def estimate_seeds(values: Sequence[float], column: str, level: float = LEVEL) -> Estimate:
    """Estimate the mean of a column over seeds, by Student's t; a fraction stays in [0, 1]."""
    found = student_t(np.array(values), 1 - level)
    least, most = (0.0, 1.0) if is_fraction(column) else (-math.inf, math.inf)
    return found.within(least, most) if len(values) > 1 else found


def is_fraction(column: str) -> bool:
    """Tell whether a column is of accuracies, F1 or average precisions."""
    name = column.rpartition(".")[2]
    return name in FRACTIONS or name.startswith("fewshot_")


def decide(found: Estimate) -> Verdict:
    """Decide whether something is above 0: by its whole interval, or not at all."""
    return "holds" if found.low > 0 else "fails" if found.high < 0 else "undecided"


def as_number(value: object) -> float | None:
    """Read a table's cell as a finite number; None if it is not one, such as that of a failure."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _most(measure: str) -> float:
    """Give how far apart two values of a column may be."""
    return 1.0 if is_fraction(measure) else math.inf


def _margin(found: Finding) -> float:
    """Say how far an effect is above 0 in half-widths of its interval."""
    half = (found.high - found.low) / 2
    return found.effect / half if math.isfinite(half) and half else -math.inf


def _signed(value: float, unit: str) -> str:
    return f"{value:.3g}" if unit.startswith("times") else f"{value:+.3g}"
