"""What all drawings share: the figure and how it is written, its ink, its axes.

A figure has no background and an ink that reads on white and on black; as SVG its ink turns light
where the viewer prefers dark. Drawn twice, the bytes are the same.
"""

from __future__ import annotations

import base64
import html
import io
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from vitrail.files import write_whole
from vitrail.plotting.captions import CAPTIONS
from vitrail.text import displayable

INK, LIGHT_INK = "#6e7781", "#c9d1d9"
"""Text and lines: 4.6 : 1 on white and 4.2 : 1 on black; and what they become in the dark."""
COLORS = ("#2584d8", "#e0701a", "#23966d", "#c251a5", "#8a7bd8")
"""Models and classes, apart for the color-blind and on either background."""
MAP = "inferno"
WIDTH = 4.6
"""Inches across, with text of 10 points: still legible at a phone's width."""
_LINE = 36  # letters that fit side by side below an axis

styled = rc_context(  # as a decorator of whatever draws or writes
    {
        "svg.hashsalt": "vitrail",
        "svg.fonttype": "path",  # the same everywhere, whatever fonts there are
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.titlesize": 10,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "savefig.dpi": 120,
        "image.composite_image": False,
    }
)


class Plot(Figure):
    """A matplotlib figure that has a name, a caption and words for who can't see it."""

    def __init__(self, name: str, alt: str, height: float, width: float = WIDTH) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        self.name, self.alt = name, alt
        self.title, self.see, self.how = CAPTIONS[name]
        self.key = name
        """What its files are called; of several with one name, each has its own."""
        self._svg = ""

    @property
    def caption(self) -> str:
        """What to see in it, and how it was made."""
        return f"{self.see} {self.how}".strip()

    @styled
    def svg(self) -> str:
        """Write the figure as SVG, whose ink follows the viewer's light or dark."""
        if not self._svg:
            nothing: dict[str, None] = {"Date": None, "Creator": None, "Format": None, "Type": None}
            text = self._save("svg", nothing).decode().replace(INK, "currentColor")
            dark = f"@media(prefers-color-scheme:dark){{svg{{color:{LIGHT_INK}}}}}"
            style = f'<style type="text/css">svg{{color:{INK}}}{dark}'
            self._svg = text.replace('<style type="text/css">', style, 1)
        return self._svg

    @styled
    def png(self) -> bytes:
        """Write the figure as PNG."""
        return self._save("png", {"Software": None})

    def _save(self, format: str, metadata: dict[str, None]) -> bytes:
        file = io.BytesIO()
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            # A letter that the font lacks becomes a box, without a word: class names have any.
            if self.get_layout_engine() is not None:  # once, as each time it moves a little
                self.draw_without_rendering()
                self.set_layout_engine("none")
            self.savefig(file, format=format, metadata=metadata)
        return file.getvalue()

    def img(self) -> str:
        """Write the figure as an HTML image that needs no file."""
        data = base64.b64encode(re.sub(r"\s*\n\s*", " ", self.svg()).encode()).decode()
        width, height = (round(96 * side) for side in self.get_size_inches())
        alt = html.escape(displayable(self.alt))
        source = f"data:image/svg+xml;base64,{data}"
        return f'<img src="{source}" alt="{alt}" width="{width}" height="{height}">'

    def _repr_html_(self) -> str:
        return f"<figure>{self.img()}<figcaption>{html.escape(self.caption)}</figcaption></figure>"


def panes(plot: Plot, rows: int, columns: int, *, sharex: bool = False) -> np.ndarray:
    """Divide a figure into axes (rows, columns)."""
    return plot.subplots(rows, columns, squeeze=False, sharex=sharex)


def show_array(
    axes: Axes, array: np.ndarray, title: str, *, size: int = 9, **options: Any
) -> AxesImage:
    """Put an array on axes without a frame, pixel by pixel."""
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])
    if title:
        axes.set_title(title, size=size, parse_math=False)
    return axes.imshow(array, interpolation="none", **options)


def name_ticks(axis: Axis, places: Iterable[float], names: Iterable[object], size: int = 9) -> None:
    """Name places on an axis, without marks; below it turned by 90 degrees if names are long."""
    texts = [shorten(str(name)) for name in names]
    long = max(map(len, texts), default=0) > 3 and sum(map(len, texts)) > _LINE
    turned = 90 if isinstance(axis, XAxis) and long else 0
    axis.set_ticks(list(places), texts, size=size, rotation=turned, parse_math=False)
    axis.set_tick_params(length=0)


def number_ticks(axis: Axis, middles: np.ndarray) -> None:
    """Write numbers at places on an axis; of many, at some."""
    step = -(-len(middles) // 14)
    name_ticks(axis, middles[::step], range(0, len(middles), step))


def add_bar(plot: Plot, shown: AxesImage, axes: Axes, label: str) -> None:
    """Say beside the axes what the colors of an array mean."""
    bar = plot.colorbar(shown, ax=axes, label=label, shrink=0.7)
    bar.outline.set_visible(False)


def add_legend(axes: Axes, *, above: bool = False) -> None:
    """Name the lines; above the axes where its marks would pass for dots of the plot."""
    where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
    for text in axes.legend(fontsize=8, **(where if above else {})).get_texts():
        text.set_parse_math(False)


def set_title(axes: Axes, title: str) -> None:
    """Write a title, in which nothing is a formula; each of its lines is escaped."""
    if title:
        text = "\n".join(map(displayable, title.splitlines()))
        axes.set_title(text, parse_math=False)


def save_plot(plot: Plot, folder: Path, name: str) -> list[Path]:
    """Write a figure into a folder as PNG and SVG, each whole or not at all."""
    files = {folder / f"{name}.png": plot.png(), folder / f"{name}.svg": plot.svg().encode()}
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def shorten(name: str, most: int = 24) -> str:
    """Write a name, which may hold anything, on one short line."""
    text = displayable(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"
