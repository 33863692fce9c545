"""One self-contained HTML page: text is escaped, figures are inside."""

from __future__ import annotations

import base64
import hashlib
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
    group: str = ""
    """What the page's list of sections calls it; sections of one group are listed once."""
    key: str = ""
    """Where links lead to it; by default it is numbered."""
    narrow: bool = False
    """Whether three of its cards fit side by side."""

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
    """Write the page; it has a script only where a card needs one."""
    room = files("vitrail.report")
    page = Template((room / "report_page.html").read_text(encoding="utf-8"))
    body = "\n".join(_write(number, section) for number, section in enumerate(sections))
    script = policy = ""
    if EXPLORER in body:
        script = (room / "attention_explorer.js").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        script, policy = f"<script>{script}</script>", f"; script-src 'sha256-{digest}'"
    return page.substitute(
        title=escape(title),
        policy=policy,
        style=page_style(),
        summary=escape(summary),
        links=" ".join(_list_sections(sections)),
        body=body,
        footer=escape(footer),
        script=script,
    )


EXPLORER = '<div class="explorer"'
"""How a card begins that attention_explorer.js brings to life."""


def page_style() -> str:
    """Join what all pages share and what reports add."""
    sheets = files("vitrail.plotting") / "base.css", files("vitrail.report") / "report_page.css"
    return "\n".join(sheet.read_text(encoding="utf-8").strip() for sheet in sheets)


def _list_sections(sections: Sequence[ReportSection]) -> Iterable[str]:
    listed = set[str]()
    for number, section in enumerate(sections):
        if (name := section.group or section.title) not in listed:
            listed.add(name)
            yield f'<a href="#{_place(number, section)}">{escape(name)}</a>'


def _place(number: int, section: ReportSection) -> str:
    return section.key or f"section-{number}"


def _write(number: int, section: ReportSection) -> str:
    note = f'<p class="note">{escape(section.note)}</p>\n' if section.note else ""
    cards = "\n".join(
        figure_card(card) if isinstance(card, Plot) else card for card in section.cards
    )
    kind = "cards narrow" if section.narrow else "cards"
    return (
        f'<section id="{_place(number, section)}">\n<h2>{escape(section.title)}</h2>\n{note}'
        f'<div class="{kind}">\n{cards}\n</div>\n</section>'
    )


def figure_card(plot: Plot) -> str:
    """Write a figure with its title and caption; a wide figure has a row of its own."""
    wide = " wide" if plot.get_figwidth() > 1.2 * WIDTH else ""
    more = f"\n<p>{escape(plot.how)}</p>" if plot.how else ""
    return (
        f'<figure class="card{wide}" id="figure-{plot.key}">\n<h3>{escape(plot.title)}</h3>\n'
        f'{plot.img()}\n<figcaption><p class="see">{escape(plot.see)}</p>{more}</figcaption>\n'
        "</figure>"
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
        return "".join(f"<{tag}>{escape(cell)}</{tag.split()[0]}>" for cell in cells)

    body = "".join(f"<tr>{row('td', cells)}</tr>\n" for cells in table.rows)
    head = f"<tr>{row('th scope=col', table.columns)}</tr>"
    return (
        f'<div class="card scrolled" tabindex="0" role="region" aria-label="{escape(title)}">\n'
        f"<h3>{escape(title)}</h3>\n"
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


def format_image_count(count: int) -> str:
    """Write a number of images."""
    return "1 image" if count == 1 else f"{count:,} images"
