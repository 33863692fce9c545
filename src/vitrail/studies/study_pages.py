"""Pages of studies in Markdown, made of small tables that are kept beside them.

DIR/STUDY.csv, DIR/runs.json          tables, and what they are of: scale, data, processor hours
DIR/STUDY.md, DIR/STUDY.svg, DIR/index.md    made of them, the same bytes each time
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vitrail.config import InputError
from vitrail.files import make_folder, write_whole
from vitrail.result import ResultTable
from vitrail.studies.claims import Verdict, seeds_of
from vitrail.studies.curves import group_table
from vitrail.studies.page import SIGNS, draw_result
from vitrail.studies.study import SCALES, Study
from vitrail.studies.study_list import NAMES, load_study
from vitrail.studies.study_result import (
    ORDER,
    StudyResult,
    StudyResults,
    judge_table,
    table_from_csv,
    table_to_csv,
)
from vitrail.text import show_duration

RUNS, INDEX = "runs.json", "index.md"
_VERB: dict[Verdict, str] = {"fails": "fail", "undecided": "undecided", "holds": "hold"}
_CAUTION = """\
These are small runs on small images. A verdict is about models and data of this size; it does not
refute the paper at its own. A claim holds or fails only if the whole 95 % interval of its effect
over seeds is on one side, otherwise it is undecided. So each verdict is wrong with a probability of
at most 5 %: of 40 claims, two may be."""
_READING = """\
Effects are differences between runs with the same seed. A claim holds or fails only if its whole
95 % interval does; several comparisons of one claim share the 5 % (Bonferroni)."""


def keep_table(result: StudyResult, folder: Path) -> None:
    """Keep a study's table, and what it is of; that of another scale is replaced."""
    make_folder(folder)
    write_whole(folder / f"{result.study}.csv", table_to_csv(result.rows))
    data = re.sub(r"^(\w+):[^,]*/[^,]*", r"\1:DIR", result.data)  # wherever it was
    data = re.sub(r"^/[^,]*?([^/,]+)/?(?=,|$)", r"\1", data)
    runs = _read_runs(folder) if (folder / RUNS).exists() else {}
    runs[result.study] = {"scale": result.scale, "data": data, "hours": round(result.hours, 4)}
    ordered = {name: runs[name] for name in NAMES if name in runs}
    write_whole(folder / RUNS, json.dumps(ordered, indent=1) + "\n")


def write_pages(folder: Path) -> StudyResults:
    """Write the page of each kept table, and the index."""
    found = []
    for name, facts in _read_runs(folder).items():
        study = load_study(name)
        page = folder / f"{name}.md"
        rows = table_from_csv((folder / f"{name}.csv").read_text(encoding="utf-8"))
        result = judge_table(study, facts["scale"], facts["data"], rows, facts["hours"], page)
        found.append(result)
        if plot := draw_result(study, result):
            write_whole(folder / f"{name}.svg", plot.svg())
        write_whole(page, "\n".join(_study_lines(study, result, plot.alt if plot else None)) + "\n")
    results = StudyResults(tuple(found))
    write_whole(folder / INDEX, "\n".join(_index_lines(results)) + "\n")
    return results


def _read_runs(folder: Path) -> dict[str, dict]:
    try:
        return json.loads((folder / RUNS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "'vitrail reproduce STUDY --pages DIR' begins one"
        raise InputError(f"{folder} has no tables of studies; {hint}") from None


def _study_lines(study: Study, result: StudyResult, figure: str | None) -> Iterator[str]:
    setting = study.settings[result.scale]
    yield f"# {study.title}"
    yield f"\n{study.where} of the paper. [All studies]({INDEX}).\n"
    yield f"**{study.question}**\n"
    rows = [
        (_mark(each.finding.verdict), each.claim, str(each.finding)) for each in result.failed_first
    ]
    yield from _table_lines(ResultTable(("verdict", "claim", "effect (interval)"), rows))
    yield f"\n{_READING}\n"
    yield f"## In the paper\n\n{study.paper}\n"
    yield from _table_lines(study.published)
    yield f"\n## Measured\n\n{' '.join(filter(None, (_head(result), setting.why, study.notes)))}\n"
    if figure:
        yield f"![{figure}]({study.name}.svg)\n"
    yield "Mean ± standard deviation over seeds, in percent where it is a fraction:\n"
    yield from _table_lines(group_table(result.rows, study.by, study.measures, study.numbers))
    if failed := [row for row in result.rows if row.get("state") != "done"]:
        yield f"\n{len(failed)} of {len(result.rows)} cells failed: {failed[0].get('error')}."
    yield "\n## Cost\n"
    times = [
        (scale, show_duration(3600 * each.hours), SCALES[scale])
        for scale, each in study.settings.items()
    ]
    yield f"The trainings of this page took {_cost(result)} of processor time. About:\n"
    yield from _table_lines(ResultTable(("scale", "time", "of"), times))
    data = f" --data {result.data}" if result.data != setting.data else ""
    yield f"\n<!-- not run: takes {show_duration(3600 * setting.hours)} -->"
    yield f"```sh\nvitrail reproduce {study.name} --scale {result.scale}{data}\n```"
    yield f"\nThe table: [{study.name}.csv]({study.name}.csv)."


def _mark(verdict: Verdict) -> str:
    return f"{SIGNS[verdict][0]} {verdict}"


def _index_lines(results: StudyResults) -> Iterator[str]:
    judged = [(each, claim) for each in results.studies for claim in each.claims]
    counts = Counter(claim.finding.verdict for _, claim in judged)
    yield "# The paper's claims, checked\n"
    said = ", ".join(f"{counts[verdict]} {_VERB[verdict]}" for verdict in _VERB)
    yield f"{len(judged)} claims, {len(results.studies)} of {len(NAMES)} studies: {said}."
    yield f"{_CAUTION}\n"
    judged.sort(key=lambda pair: ORDER.index(pair[1].finding.verdict))
    rows = [
        (
            _mark(claim.finding.verdict),
            claim.claim,
            claim.paper,
            str(claim.finding),
            f"[{each.study}]({each.study}.md)",
        )
        for each, claim in judged
    ]
    columns = ("verdict", "claim", "the paper", "measured (interval)", "study")
    yield from _table_lines(ResultTable(columns, rows))
    yield "\n## What was run\n"
    runs = [
        (f"[{each.study}]({each.study}.md)", load_study(each.study).question, each.scale,
         each.data, str(len(each.rows)), _cost(each))
        for each in results.studies
    ]  # fmt: skip
    columns = ("study", "question", "scale", "data", "cells", "processor time")
    yield from _table_lines(ResultTable(columns, runs))
    hours = sum(each.hours for each in results.studies)
    yield f"\nIn all {show_duration(3600 * hours)} of processor time in training."
    there = {each.study for each in results.studies}
    if left := [f"`{name}`" for name in NAMES if name not in there]:
        yield f"Not run yet: {', '.join(left)}."
    yield "`vitrail reproduce --pages docs/studies` makes these pages again from their tables."


def _head(result: StudyResult) -> str:
    seeds = len(seeds_of(result.rows))
    return f"Scale {result.scale}, {result.data or 'no data'}, {seeds} seeds."


def _cost(result: StudyResult) -> str:
    return show_duration(3600 * result.hours)


def _table_lines(table: ResultTable) -> Iterator[str]:
    for cells in (table.columns, ["---"] * len(table.columns), *table.rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
