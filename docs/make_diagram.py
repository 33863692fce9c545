"""Draw the flowcharts of Markdown pages as SVG: sites draw Mermaid by a script from the network.

Boxes stand on the longest path that leads to them, the first ones at the bottom. Colors are those
of the text around them, so light and dark need nothing more.
"""

from __future__ import annotations

import re
from html import escape
from itertools import groupby

_NODE = r'(\w+)(?:\["(.+?)"\])?'
_WIDE, _LINE, _GAP, _RISE = 7.4, 18, 22, 46
"""Pixels of a letter, a line of text, the space between boxes, and between rows."""


def draw_flowcharts(text: str) -> str:
    """Replace each Mermaid block of a page by its drawing."""
    return re.sub(
        r"```mermaid\nflowchart BT\n(.*?)```", lambda found: draw(found[1]), text, flags=re.S
    )


def draw(chart: str) -> str:
    """Draw a chart of lines `a["name"] --> b["name"]`."""
    labels, edges = dict[str, list[str]](), list[tuple[str, str]]()
    for line in chart.strip().splitlines():
        found = re.fullmatch(rf"\s*{_NODE} --> {_NODE}", line)
        assert found is not None, f"not an arrow between two boxes: {line}"
        first, first_label, second, second_label = found.groups()
        edges.append((first, second))
        for name, label in ((first, first_label), (second, second_label)):
            if label or name not in labels:
                labels[name] = (label or name).split("<br>")
    places = _place(labels, edges)
    return _write(labels, edges, places)


def _place(
    labels: dict[str, list[str]], edges: list[tuple[str, str]]
) -> dict[str, tuple[float, float, float, float]]:
    """Give each box its left, top, width and height; the lowest row is that of the roots."""
    rank = dict.fromkeys(labels, 0)
    for _ in labels:
        for first, second in edges:
            rank[second] = max(rank[second], rank[first] + 1)
    size = {
        name: (max(map(len, lines)) * _WIDE + 20, len(lines) * _LINE + 12)
        for name, lines in labels.items()
    }
    rows = [list(row) for _, row in groupby(sorted(labels, key=rank.__getitem__), rank.__getitem__)]
    whole = max(sum(size[name][0] + _GAP for name in row) for row in rows)
    places, bottom = dict[str, tuple[float, float, float, float]](), 0.0
    for row in rows:
        row.sort(key=lambda name: _middle([places[a] for a, b in edges if b == name]))
        left = (whole - sum(size[name][0] + _GAP for name in row) + _GAP) / 2
        for name in row:
            places[name] = left, bottom - size[name][1], *size[name]
            left += size[name][0] + _GAP
        bottom -= max(size[name][1] for name in row) + _RISE
    return places


def _middle(boxes: list[tuple[float, float, float, float]]) -> float:
    return sum(left + width / 2 for left, _, width, _ in boxes) / max(1, len(boxes))


def _write(
    labels: dict[str, list[str]],
    edges: list[tuple[str, str]],
    places: dict[str, tuple[float, float, float, float]],
) -> str:
    top = min(place[1] for place in places.values()) - 2
    whole = max(left + width for left, _, width, _ in places.values()) + 2
    parts = [
        f'<div class="scrolled"><svg class="flowchart" role="img" '
        f'viewBox="-2 {top:.0f} {whole + 2:.0f} {2 - top:.0f}" '
        f'aria-label="{escape(_say(labels, edges))}" xmlns="http://www.w3.org/2000/svg">'
    ]
    for first, second in edges:
        left, y1, width, _ = places[first]
        x1, x2 = left + width / 2, places[second][0] + places[second][2] / 2
        y2 = places[second][1] + places[second][3]
        bend = (y1 - y2) / 2
        curve = f"C{x1:.0f},{y1 - bend:.0f} {x2:.0f},{y2 + bend:.0f} {x2:.0f},{y2:.0f}"
        parts.append(f'<path d="M{x1:.0f},{y1:.0f} {curve}"/>')
    for name, lines in labels.items():
        left, up, width, height = places[name]
        parts.append(
            f'<rect x="{left:.0f}" y="{up:.0f}" width="{width:.0f}" height="{height:.0f}" rx="5"/>'
        )
        for number, line in enumerate(lines):
            kind = ' class="more"' if number else ""
            y = up + 6 + _LINE * (number + 0.75)
            parts.append(
                f'<text{kind} x="{left + width / 2:.0f}" y="{y:.0f}">{escape(line)}</text>'
            )
    return "".join([*parts, "</svg></div>"])


def _say(labels: dict[str, list[str]], edges: list[tuple[str, str]]) -> str:
    """Say the arrows in words, for who can't see them."""
    return "; ".join(f"{labels[a][0]} is used by {labels[b][0]}" for a, b in edges)
