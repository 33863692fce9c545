"""The page of a study: question, the paper's numbers, ours, verdicts in color, cost."""

from __future__ import annotations

from vitrail.plotting.canvas import Plot
from vitrail.report.html_page import ReportSection, escape, make_page, result_card, table_card
from vitrail.studies.claims import Verdict
from vitrail.studies.curves import group_table
from vitrail.studies.study import SCALES, Study
from vitrail.studies.study_result import StudyResult
from vitrail.text import show_duration

SIGNS: dict[Verdict, tuple[str, str]] = {
    "holds": ("✓", "good"),
    "fails": ("✕", "bad"),
    "undecided": ("?", "note"),
}
"""The sign of a verdict, and the class of its color."""


def study_page(study: Study, result: StudyResult) -> str:
    """Write a study's page."""
    summary = f"{study.where}; scale {result.scale}" + (f", {result.data}" if result.data else "")
    sections = [
        ReportSection("Question", study.question, [_verdict_card(result)]),
        ReportSection("The paper", study.paper, [result_card("In the paper", study.published)]),
        _our_section(study, result),
        ReportSection("Cost", cards=[_cost_card(study, result)]),
    ]
    footer = "Verdicts are by 95 % intervals over seeds: a claim that is not decided is undecided."
    return make_page(study.title, summary, sections, footer)


def draw_result(study: Study, result: StudyResult) -> Plot | None:
    """Draw a study's figure, if any of its cells has something to show."""
    done = [row for row in result.rows if row.get("state") == "done"]
    if not done:
        return None
    plot = study.draw(done)
    plot.title = study.title
    return plot


def _our_section(study: Study, result: StudyResult) -> ReportSection:
    setting = study.settings[result.scale]
    section = ReportSection("Measured", " ".join(filter(None, (setting.why, study.notes))))
    if plot := draw_result(study, result):
        section.draw(plot)
    table = group_table(result.rows, study.by, study.measures, study.numbers)
    section.cards.append(result_card("Mean ± standard deviation over seeds", table))
    failed = [row for row in result.rows if row.get("state") != "done"]
    if failed:
        section.cards.append(table_card("Failed cells", {"first": failed[0].get("error")}))
    return section


def _verdict_card(result: StudyResult) -> str:
    lines = "\n".join(
        f'<tr><th scope="row"><b class="{SIGNS[each.finding.verdict][1]}">'
        f"{SIGNS[each.finding.verdict][0]} {each.finding.verdict}</b></th>"
        f"<td>{escape(each.claim)}<br>"
        f'<span class="note">{escape(each.finding)}{_said(each.paper)}</span>'
        "</td></tr>"
        for each in result.failed_first
    )
    return f'<div class="card wide">\n<h3>Claims</h3>\n<table>\n{lines}\n</table>\n</div>'


def _said(paper: str) -> str:
    return "" if paper == "-" else f". The paper: {escape(paper)}"


def _cost_card(study: Study, result: StudyResult) -> str:
    data = f" --data {result.data}" if result.data else ""
    rows = {
        "processor time": show_duration(3600 * result.hours),
        "run it": f"vitrail reproduce {study.name} --scale {result.scale}{data}",
    }
    for scale, setting in study.settings.items():
        rows[f"at scale {scale}"] = f"{show_duration(3600 * setting.hours)} of {SCALES[scale]}"
    return table_card("Cost", rows)
