"""One HTML page that needs nothing else: its text is escaped, its images are inside."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from vitrail.plotting.canvas import Plot
from vitrail.text import printable


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, a line of text, and cards, which are figures or HTML."""

    title: str
    cards: Sequence[Plot | str]
    note: str = ""


def make_page(title: str, summary: str, sections: Sequence[Section], footer: str) -> str:
    """Write the page."""
    room = files("vitrail.report")
    page = Template((room / "page.html").read_text(encoding="utf-8"))
    links = (f'<a href="#part-{n}">{escape(part.title)}</a>' for n, part in enumerate(sections))
    return page.substitute(
        title=escape(title),
        style=(room / "page.css").read_text(encoding="utf-8").strip(),
        summary=escape(summary),
        links=" ".join(links),
        body="\n".join(_write(number, section) for number, section in enumerate(sections)),
        footer=escape(footer),
    )


def _write(number: int, section: Section) -> str:
    note = f'<p class="note">{escape(section.note)}</p>\n' if section.note else ""
    cards = "\n".join(
        figure_card(card) if isinstance(card, Plot) else card for card in section.cards
    )
    return (
        f'<section id="part-{number}">\n<h2>{escape(section.title)}</h2>\n{note}'
        f'<div class="cards">\n{cards}\n</div>\n</section>'
    )


def figure_card(plot: Plot) -> str:
    """Write a figure with its title and caption."""
    return (
        f'<figure class="card" id="figure-{plot.key}">\n<h3>{escape(plot.title)}</h3>\n'
        f"{plot.img()}\n<figcaption>{escape(plot.caption)}</figcaption>\n</figure>"
    )


def table_card(title: str, rows: Mapping[str, object]) -> str:
    """Write names and values."""
    lines = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f'<div class="card">\n<h3>{escape(title)}</h3>\n<table>\n{lines}\n</table>\n</div>'


def answer_card(title: str, answers: Iterable[tuple[str, float, bool]], note: str = "") -> str:
    """Write likely classes, with a bar for each probability; the true one stands out."""
    lines = "\n".join(
        f"<tr><td class={'true' if true else 'other'}>{escape(name)}"
        f'<span class="bar" style="width:{100 * part:.1f}%"></span></td>'
        f'<td class="number">{part:.1%}</td></tr>'
        for name, part, true in answers
    )
    said = f'\n<p class="note">{escape(note)}</p>' if note else ""
    return f'<div class="card">\n<h3>{escape(title)}</h3>\n<table>\n{lines}\n</table>{said}\n</div>'


def escape(value: object) -> str:
    """Write anything as text: names of files and classes may hold HTML, or what is no letter."""
    return html.escape(printable(str(value)))
