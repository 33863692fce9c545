"""Run a study of the paper: its cells, what they say about the claims, and a page that shows it.

OUT/STUDY/SCALE/          the folder of a sweep, from which the same call goes on
OUT/STUDY/SCALE/table.csv one row per cell and seed, the same bytes however often resumed
OUT/STUDY/SCALE/result.json, report.html
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from vitrail.config import InputError, suggest
from vitrail.console import log_line
from vitrail.files import write_whole
from vitrail.result import Result, ResultTable, to_plain, write_json
from vitrail.studies.claims import Finding
from vitrail.studies.engine.jobs import RUNS
from vitrail.studies.engine.sweep import sweep
from vitrail.studies.measure_cases import measure_cases
from vitrail.studies.study import SCALES, Measurements, Scale, Study
from vitrail.text import show_duration
from vitrail.training.checkpoints.run_folder import RESULT as RUN_RESULT

NAMES = (
    *("figure3", "figure4", "figure5", "table7", "table8", "figure8", "figure9", "resolution"),
    *("selfsupervision", "inspection", "figure12", "figure13", "d6", "transfer"),
)
"""The studies, in the paper's order; each is a module of `paper/`."""
TABLE, RESULT, PAGE = "table.csv", "result.json", "report.html"
UNTOLD = ("processor_seconds",)
"""Columns that are not in the table: another run would not repeat them."""


@dataclass(frozen=True)
class Judged:
    """A claim, and what a study's table says about it."""

    claim: str
    finding: Finding


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the claims with their verdicts, and the rows."""
        claims = [{"claim": each.claim, **each.finding.to_dict()} for each in self.claims]
        names = ("study", "scale", "data", "hours")
        head = {name: to_plain(getattr(self, name)) for name in names}
        return {**head, "claims": claims, "rows": to_plain(self.rows), "report": str(self.report)}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per claim, then what failed, and where to look."""
        yield f"{self.title} ({self.scale}{f', {self.data}' if self.data else ''})"
        yield ResultTable(
            ("verdict", "claim", "effect"),
            [(each.finding.verdict, each.claim, str(each.finding)) for each in self.claims],
            justify="left",
        )
        failed = [row for row in self.rows if row.get("state") != "done"]
        if failed:
            yield f"{len(failed)} of {len(self.rows)} cells failed: {failed[0].get('error')}"
        yield f"{show_duration(3600 * self.hours)} of processor time; {self.report} shows it"


@dataclass(frozen=True)
class StudyResults(Result):
    """What all studies found."""

    studies: tuple[StudyResult, ...]

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per claim of every study."""
        yield ResultTable(
            ("study", "verdict", "claim", "effect"),
            [
                (each.study, judged.finding.verdict, judged.claim, str(judged.finding))
                for each in self.studies
                for judged in each.claims
            ],
            justify="left",
        )
        hours = sum(each.hours for each in self.studies)
        yield f"{show_duration(3600 * hours)} of processor time"


@dataclass(frozen=True)
class StudyList(Result):
    """The studies that there are."""

    studies: tuple[Study, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: one row per study, hours by scale."""
        return {
            "studies": [
                {
                    "study": each.name,
                    "where": each.where,
                    "question": each.question,
                    "hours": {scale: one.hours for scale, one in each.settings.items()},
                }
                for each in self.studies
            ]
        }

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per study: its question, and what each scale costs."""
        rows = []
        for each in self.studies:
            times = [
                show_duration(3600 * each.settings[scale].hours) if scale in each.settings else ""
                for scale in SCALES
            ]
            rows.append((each.name, each.where, *times, each.question))
        yield ResultTable(("study", "in the paper", *SCALES, "question"), rows, justify="left")
        told = "; ".join(f"{scale}: {of}" for scale, of in SCALES.items())
        yield f"Times are of {told}; those of gpu and paper are rough guesses."
        yield "vitrail reproduce figure9 --scale smoke runs one; vitrail reproduce all runs all."


def load_study(name: str) -> Study:
    """Return a study by its name."""
    if name not in NAMES:
        hint = suggest(name, NAMES) or f"; there are: {', '.join(NAMES)}"
        raise InputError(f"unknown study {name!r}{hint} ('vitrail reproduce' lists them)")
    module = {"transfer": "finetuned_weights"}.get(name, name)
    return import_module(f"vitrail.studies.paper.{module}").STUDY


def reproduce(
    study: str | None = None,
    *,
    scale: Scale = "desk",
    data: str | None = None,
    weights: str | None = None,
    out: str | Path = "studies",
    parallel: int | None = None,
) -> StudyResult | StudyResults | StudyList:
    """Run a study of the paper, or `all`, from where an earlier call stopped; without one, list.

    `data` takes the place of the scale's own data, `weights` that of its weights. `parallel` runs
    are made at once, by default one for each core, and one alone at scale smoke.
    """
    if study is None:
        return StudyList(tuple(map(load_study, NAMES)))
    if scale not in get_args(Scale):
        there = ", ".join(SCALES)
        raise InputError(f"unknown scale {scale!r}{suggest(scale, SCALES)}; there are: {there}")
    if study != "all":
        return _run_study(load_study(study), scale, data, weights, Path(out), parallel)
    if data is not None or weights is not None:
        raise InputError("--data and --weights are of one study; run it by its name")
    found = []
    for number, name in enumerate(NAMES, 1):
        log_line(f"{number} of {len(NAMES)}: {name}")
        found.append(_run_study(load_study(name), scale, None, None, Path(out), parallel))
    return StudyResults(tuple(found))


def _run_study(
    study: Study,
    scale: Scale,
    data: str | None,
    weights: str | None,
    out: Path,
    parallel: int | None,
) -> StudyResult:
    plan, setting = study.plan(scale, data, weights), study.settings[scale]
    folder = out / study.name / scale
    if scale != "smoke":
        log_line(f"about {show_duration(3600 * setting.hours)} on {SCALES[scale]}; {folder}")
    if isinstance(plan, Measurements):
        rows = measure_cases(plan, folder)
        hours = sum(row["processor_seconds"] for row in rows) / 3600
        timed = plan.timed
    else:
        slots = 1 if parallel is None and scale == "smoke" else parallel
        rows = list(sweep(plan, out=folder, parallel=slots, report=False).rows)
        hours, timed = _processor_hours(folder), ()
    table = [{key: value for key, value in row.items() if key not in UNTOLD} for row in rows]
    write_whole(folder / TABLE, table_to_csv(table, without=timed))
    result = judge_table(study, scale, data or setting.data, table, hours, folder / PAGE)
    write_whole(folder / RESULT, write_json(result))
    from vitrail.studies.page import study_page

    write_whole(folder / PAGE, study_page(study, result))
    return result


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
        claims=tuple(Judged(claim.text, claim.judge(rows)) for claim in study.claims),
        rows=tuple(rows),
        report=report,
        title=f"{study.title}, {study.where}",
    )


def table_to_csv(rows: list[dict[str, Any]], without: tuple[str, ...] = ()) -> str:
    """Write rows as CSV; columns are in the order in which they first come."""
    columns = dict.fromkeys(name for row in rows for name in row)
    kept = [name for name in columns if name not in without]
    text = io.StringIO()
    writer = csv.DictWriter(text, kept, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _processor_hours(folder: Path) -> float:
    """Add up the processor time of a sweep's trainings, trials included."""
    total = 0.0
    for path in sorted((folder / RUNS).glob(f"*/{RUN_RESULT}")):
        machine = json.loads(path.read_text(encoding="utf-8")).get("machine") or {}
        total += machine.get("processor_seconds") or 0.0
    return total / 3600
