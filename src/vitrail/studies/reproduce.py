"""Run a study of the paper: its cells, what they say about the claims, and a page that shows it.

OUT/STUDY/SCALE/          the folder of a sweep, from which the same call goes on
OUT/STUDY/SCALE/table.csv one row per cell and seed, the same bytes however often resumed
OUT/STUDY/SCALE/result.json, report.html
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

from vitrail.config import InputError, suggest
from vitrail.console import log_line
from vitrail.files import check_writable, write_whole
from vitrail.result import write_json
from vitrail.studies.engine.jobs import RUNS
from vitrail.studies.engine.sweep import sweep
from vitrail.studies.measure_cases import measure_cases
from vitrail.studies.page import study_page
from vitrail.studies.study import SCALES, Measurements, Scale, Study
from vitrail.studies.study_list import NAMES, StudyList, load_study
from vitrail.studies.study_pages import keep_table, write_pages
from vitrail.studies.study_result import StudyResult, StudyResults, judge_table, table_to_csv
from vitrail.training.checkpoints.run_folder import RESULT as RUN_RESULT

TABLE, RESULT, PAGE = "table.csv", "result.json", "report.html"
UNTOLD = ("processor_seconds",)
"""Columns that are not in the table: another run would not repeat them."""


def reproduce(
    study: str | None = None,
    *,
    scale: Scale = "desk",
    data: str | None = None,
    weights: str | None = None,
    out: str | Path = "studies",
    pages: str | Path | None = None,
    parallel: int | None = None,
) -> StudyResult | StudyResults | StudyList:
    """Run a study of the paper, or `all`, from where an earlier call stopped; without one, list.

    `data` takes the place of the scale's own data, `weights` that of its weights. `parallel` runs
    are made at once, by default one for each core, and one alone at scale smoke. `pages` is a
    folder that gets the study's table, and Markdown pages of all tables in it with an index;
    without a study its pages are made again.
    """
    if scale not in get_args(Scale):
        there = ", ".join(SCALES)
        raise InputError(f"unknown scale {scale!r}{suggest(scale, SCALES)}; there are: {there}")
    if study is None:
        if data is not None or weights is not None:
            raise InputError("--data and --weights need a study; 'vitrail reproduce' lists them")
        return write_pages(Path(pages)) if pages else StudyList(tuple(map(load_study, NAMES)))
    if study == "all" and (data is not None or weights is not None):
        raise InputError("--data and --weights require a single study; give its name")
    wanted = [load_study(name) for name in (NAMES if study == "all" else (study,))]
    for each in wanted:  # what can't be run is refused before anything is
        each.plan(scale, data, weights)
    for folder in (out, pages):
        if folder is not None:
            check_writable(Path(folder), folder=True)
    found = []
    for number, each in enumerate(wanted, 1):
        if len(wanted) > 1:
            log_line(f"{number} of {len(wanted)}: {each.name}")
        found.append(_run_study(each, scale, data, weights, Path(out), parallel))
        if pages:
            keep_table(found[-1], Path(pages))
    if pages:
        write_pages(Path(pages))
    return StudyResults(tuple(found)) if study == "all" else found[0]


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
    write_whole(folder / PAGE, study_page(study, result))
    return result


def _processor_hours(folder: Path) -> float:
    """Add up the processor time of a sweep's trainings, trials included."""
    total = 0.0
    for path in sorted((folder / RUNS).glob(f"*/{RUN_RESULT}")):
        machine = json.loads(path.read_text(encoding="utf-8")).get("machine") or {}
        total += machine.get("processor_seconds") or 0.0
    return total / 3600
