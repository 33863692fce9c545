"""One self-contained HTML page: text is escaped, figures are inside."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template
from typing import Any

from vitrail.plotting.canvas import WIDTH, Plot
from vitrail.result import ResultTable
from vitrail.text import displayable


@dataclass
class ReportSection:
    """A section of a report: cards, which are figures or HTML, and the same in numbers."""

    title: str
    note: str = ""
    cards: list[Plot | str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def draw(self, plot: Plot, key: str | None = None, **data: Any) -> None:
        """Add a figure, and what it shows in numbers."""
        plot.key = key or plot.name
        self.cards.append(plot)
        self.data |= data

    @property
    def plots(self) -> list[Plot]:
        """List the figures."""
        return [card for card in self.cards if isinstance(card, Plot)]


def make_page(title: str, summary: str, sections: Sequence[ReportSection], footer: str) -> str:
    """Write the page."""
    room = files("vitrail.report")
    page = Template((room / "report_page.html").read_text(encoding="utf-8"))
    links = (f'<a href="#section-{n}">{escape(each.title)}</a>' for n, each in enumerate(sections))
    return page.substitute(
        title=escape(title),
        style=(room / "report_page.css").read_text(encoding="utf-8").strip(),
        summary=escape(summary),
        links=" ".join(links),
        body="\n".join(_write(number, section) for number, section in enumerate(sections)),
        footer=escape(footer),
    )


def _write(number: int, section: ReportSection) -> str:
    note = f'<p class="note">{escape(section.note)}</p>\n' if section.note else ""
    cards = "\n".join(
        figure_card(card) if isinstance(card, Plot) else card for card in section.cards
    )
    return (
        f'<section id="section-{number}">\n<h2>{escape(section.title)}</h2>\n{note}'
        f'<div class="cards">\n{cards}\n</div>\n</section>'
    )


def figure_card(plot: Plot) -> str:
    """Write a figure with its title and caption; a wide figure has a row of its own."""
    wide = " wide" if plot.get_figwidth() > 1.2 * WIDTH else ""
    return (
        f'<figure class="card{wide}" id="figure-{plot.key}">\n<h3>{escape(plot.title)}</h3>\n'
        f"{plot.img()}\n<figcaption>{escape(plot.caption)}</figcaption>\n</figure>"
    )


def table_card(title: str, rows: Mapping[str, object]) -> str:
    """Write names and values; long values, such as a model's name, break after a comma."""
    lines = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        f"<td>{escape(value).replace(',', ',<wbr>')}</td></tr>"
        for name, value in rows.items()
    )
    return f'<div class="card">\n<h3>{escape(title)}</h3>\n<table>\n{lines}\n</table>\n</div>'


def result_card(title: str, table: ResultTable) -> str:
    """Write a table of a result, with its column heads."""

    def row(tag: str, cells: Iterable[str]) -> str:
        return "".join(f'<{tag} style="width:auto">{escape(cell)}</{tag}>' for cell in cells)

    body = "".join(f"<tr>{row('td', cells)}</tr>\n" for cells in table.rows)
    head = f"<tr>{row('th', table.columns)}</tr>"
    return (
        f'<div class="card" style="overflow-x:auto">\n<h3>{escape(title)}</h3>\n'
        f"<table>\n<thead>{head}</thead>\n<tbody>{body}</tbody>\n</table>\n</div>"
    )


def prediction_card(title: str, scores: Iterable[tuple[str, float, bool]], note: str = "") -> str:
    """Write the predicted classes with a bar for each score; the true class stands out."""
    lines = "\n".join(
        f"<tr><td class={'true' if true else 'other'}>{escape(name)}"
        f'<span class="bar" style="width:{100 * score:.1f}%"></span></td>'
        f'<td class="number">{score:.1%}</td></tr>'
        for name, score, true in scores
    )
    said = f'\n<p class="note">{escape(note)}</p>' if note else ""
    return f'<div class="card">\n<h3>{escape(title)}</h3>\n<table>\n{lines}\n</table>{said}\n</div>'


def escape(value: object) -> str:
    """Write anything as text: names of files and classes may hold HTML or unprintable bytes."""
    return html.escape(displayable(str(value)))
