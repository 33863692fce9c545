"""Plots of an evaluation: which classes are taken for which, and how sure the model may be.

PNG to look at, SVG to print; the same numbers give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vitrail.config import InputError
from vitrail.text import printable

_NAMED = 60
"""Up to so many classes have their names at the edge."""
_COUNTED = 25
"""Up to so many, their counts in the cells."""
_BLUE, _RED, _GRAY = "#2b6ca3", "#c44e52", "#888888"


def draw_confusion(matrix: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Draw how often which class (row) was taken for which (column), as parts of each row."""
    rows, columns = matrix.shape
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = 4.0 + (0.2 * rows if rows <= _NAMED else 4.0)
    figure = Figure(figsize=(side + 1.4, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="part of the class's images", shrink=0.8)
    axes.set(xlabel="predicted class", ylabel="class")
    axes.set_title(title, fontsize=10)
    if rows <= _NAMED:
        shown = [_shorten(name) for name in names]
        axes.set_yticks(range(rows), shown, fontsize=8)
        axes.set_xticks(range(columns), [*shown, "(other)"][:columns], fontsize=8, rotation=90)
    if rows <= _COUNTED:
        _write_counts(axes, matrix, shares)
    return figure


def _write_counts(axes: Axes, matrix: np.ndarray, shares: np.ndarray) -> None:
    for row, column in zip(*np.nonzero(matrix), strict=True):
        color = "white" if shares[row, column] > 0.5 else "black"
        text = f"{matrix[row, column]:,}"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=color)


def _shorten(name: str, most: int = 24) -> str:
    text = printable(name)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("$", r"\$")  # which would begin a formula


def make_title(name: str, said: str) -> str:
    """Write a plot's title: a set's name, of a long one the end, and what is said of it."""
    text = printable(name)
    return f"{text if len(text) <= 40 else f'…{text[-39:]}'}\n{said}".replace("$", r"\$")


def draw_reliability(
    bins: Sequence[tuple[float, int, float | None, float | None]],
    ece: tuple[float, float, float],
    title: str,
) -> Figure:
    """Draw how often the model was right by how sure it was, over how many images there are.

    A bin is its lower edge, its images, their mean confidence and accuracy; the calibration
    error comes with its interval.
    """
    figure = Figure(figsize=(5.2, 6.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    full = [each for each in bins if each[1]]
    width = 1 / len(bins)
    places = [low for low, *_ in full]
    counts = [count for _, count, *_ in full]
    sure = [confidence or 0.0 for *_, confidence, _ in full]
    right = [accuracy or 0.0 for *_, accuracy in full]
    upper.bar(places, right, width, align="edge", color=_BLUE, edgecolor="white", label="accuracy")
    gaps = [s - r for s, r in zip(sure, right, strict=True)]
    upper.bar(
        places, gaps, width, bottom=right, align="edge", color="none", hatch="////",
        edgecolor=_RED, label="gap to mean confidence",
    )  # fmt: skip
    upper.plot([0, 1], [0, 1], "--", color=_GRAY, label="as sure as right")
    value, low, high = ece
    said = f"calibration error {value:.1%} (95 %: {low:.1%} to {high:.1%})"
    upper.set(ylim=(0, 1), xlim=(0, 1), ylabel="part that was right")
    upper.set_title(f"{title}\n{said}", fontsize=10)
    upper.legend(loc="upper left", fontsize=9, frameon=False)
    lower.bar(places, counts, width, align="edge", color=_GRAY,
              edgecolor="white")  # fmt: skip
    lower.set(xlabel="probability of the most likely class", ylabel="images")
    return figure


def save_plot(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure into a folder as PNG and SVG, each whole or not at all."""
    written = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = folder / f"{name}.{kind}"
        part = folder / f".{name}.new.{kind}"
        try:
            with rc_context({"svg.hashsalt": "vitrail", "svg.fonttype": "none"}):
                FigureCanvasAgg(figure)
                figure.savefig(part, format=kind, dpi=150, metadata=metadata)
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        written.append(path)
    return written
