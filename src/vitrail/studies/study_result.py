"""What a study found: a verdict on each of its claims, and its table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.result import Result, ResultTable, to_plain
from vitrail.studies.claims import Finding, Rows, Verdict
from vitrail.studies.study import Scale, Study
from vitrail.text import show_duration

ORDER: tuple[Verdict, ...] = ("fails", "undecided", "holds")
"""What failed is said first."""


@dataclass(frozen=True)
class Judged:
    """A claim, and what a study's table says about it."""

    claim: str
    paper: str
    """What the paper found about it."""
    finding: Finding

    def __str__(self) -> str:
        """Say verdict, claim and effect in one line."""
        return f"{self.finding.verdict:<9}  {self.claim}: {self.finding}"


@dataclass(frozen=True, kw_only=True)
class StudyResult(Result):
    """What a study found."""

    study: str
    scale: Scale
    data: str
    hours: float
    """Processor hours of all its cells."""
    claims: tuple[Judged, ...]
    rows: tuple[Mapping[str, Any], ...]
    report: Path
    title: str = ""

    @property
    def failed_first(self) -> list[Judged]:
        """The claims in the order in which they are told."""
        return sorted(self.claims, key=lambda each: ORDER.index(each.finding.verdict))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the claims with their verdicts, and the rows."""
        claims = [
            {"claim": each.claim, "paper": each.paper, **each.finding.to_dict()}
            for each in self.claims
        ]
        names = ("study", "scale", "data", "hours")
        head = {name: to_plain(getattr(self, name)) for name in names}
        return {**head, "claims": claims, "rows": to_plain(self.rows), "report": str(self.report)}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one line per claim, then what failed, and where to look."""
        yield f"{self.title} ({self.scale}{f', {self.data}' if self.data else ''})"
        yield from map(str, self.failed_first)
        failed = [row for row in self.rows if row.get("state") != "done"]
        if failed:
            yield f"{len(failed)} of {len(self.rows)} cells failed: {failed[0].get('error')}"
        yield f"{show_duration(3600 * self.hours)} of processor time; {self.report} shows it"


@dataclass(frozen=True)
class StudyResults(Result):
    """What all studies found."""

    studies: tuple[StudyResult, ...]

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one line per claim of every study."""
        for each in self.studies:
            yield each.title
            yield from (f"  {judged}" for judged in each.failed_first)
        hours = sum(each.hours for each in self.studies)
        yield f"{show_duration(3600 * hours)} of processor time"


def judge_table(
    study: Study,
    scale: Scale,
    data: str,
    rows: list[dict[str, Any]],
    hours: float,
    report: Path,
) -> StudyResult:
    """Say what a table says about a study's claims."""
    return StudyResult(
        study=study.name,
        scale=scale,
        data=data,
        hours=hours,
        claims=tuple(Judged(one.text, one.paper, one.judge(rows)) for one in study.claims),
        rows=tuple(rows),
        report=report,
        title=f"{study.title}, {study.where}",
    )


def table_to_csv(rows: Rows, without: tuple[str, ...] = ()) -> str:
    """Write rows as CSV; columns are in the order in which they first come."""
    columns = dict.fromkeys(name for row in rows for name in row)
    kept = [name for name in columns if name not in without]
    text = io.StringIO()
    writer = csv.DictWriter(text, kept, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_from_csv(text: str) -> list[dict[str, Any]]:
    """Read what `table_to_csv` wrote: numbers, text, and None where nothing is."""
    rows = csv.DictReader(io.StringIO(text))
    return [{name: _read_cell(value) for name, value in row.items()} for row in rows]


def _read_cell(text: str) -> int | float | str | None:
    if not text:
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
