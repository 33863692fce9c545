"""Plots of an evaluation: which classes are confused, and how well confidence is calibrated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from vitrail.plotting.canvas import (
    COLORS,
    INK,
    WIDTH,
    Plot,
    add_bar,
    name_ticks,
    set_title,
    shorten,
    styled,
)
from vitrail.plotting.canvas import save_plot as save_plot

_NAMED = 60
"""Up to this many classes, the axes show names."""
_COUNTED = 25
"""Up to this many classes, the cells show counts."""
_FRACTION = LinearSegmentedColormap.from_list("fraction", (f"{COLORS[0]}00", f"{COLORS[0]}ff"))
"""From nothing, whatever the page's background, to a full color."""


@styled
def draw_confusion(counts: np.ndarray, classes: Sequence[str], title: str = "") -> Plot:
    """Draw how often images of each class (rows) were predicted as each class (columns)."""
    rows, columns = counts.shape
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    correct = np.trace(counts) / max(1, counts.sum())
    alt = f"Confusion matrix of {rows} classes: {correct:.1%} of {counts.sum():,.0f} correct"
    names = [shorten(name) for name in classes]
    edge = 0.07 * max(map(len, names), default=0) if rows <= _NAMED else 0.2
    side = max(WIDTH - edge - 1.4, 0.17 * rows) if rows <= _NAMED else 6.0
    plot = Plot("confusion", alt, side + edge + (0.8 if title else 0.4), side + edge + 1.4)
    axes = plot.add_subplot()
    shown = axes.imshow(fractions, cmap=_FRACTION, vmin=0, vmax=1, interpolation="none")
    axes.spines[:].set_visible(True)
    if rows <= _NAMED:
        name_ticks(axes.yaxis, range(rows), names, size=8)
        name_ticks(axes.xaxis, range(columns), [*names, "(other)"][:columns], size=8)
    if rows <= _COUNTED:
        _write_counts(axes, counts, fractions)
    axes.set(xlabel="predicted class", ylabel="true class")
    set_title(axes, title)
    add_bar(plot, shown, axes, "fraction of the true class")
    return plot


def _write_counts(axes: Axes, counts: np.ndarray, fractions: np.ndarray) -> None:
    for row, column in zip(*np.nonzero(counts), strict=True):
        color = "white" if fractions[row, column] > 0.5 else INK
        text = f"{counts[row, column]:,.0f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=color)


def make_title(name: str, said: str) -> str:
    """Write a plot's title: the end of a dataset's name, and a line about it."""
    return f"{name if len(name) <= 40 else f'…{name[-39:]}'}\n{said}"


@styled
def draw_scatter(
    true: np.ndarray, predicted: np.ndarray, names: Sequence[str], title: str = ""
) -> Plot:
    """Draw predicted numbers over true ones (images, targets), a panel for each target."""
    count = len(names)
    alt = f"Predicted over true {', '.join(names)} of {len(true):,} images; exact ones on the line"
    columns = min(count, 2)
    rows = -(-count // columns)
    plot = Plot("scatter", alt, 4.2 * rows)
    panels = plot.subplots(rows, columns, squeeze=False).flatten()
    for number, axes in enumerate(panels):
        axes.set_visible(number < count)
        if number >= count:
            continue
        x, y = true[:, number], predicted[:, number]
        low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
        axes.plot([low, high], [low, high], "--", color=INK, linewidth=1)
        axes.scatter(x, y, s=9, color=COLORS[0], alpha=0.6, linewidths=0)
        axes.set(xlabel=f"true {shorten(names[number])}", ylabel="predicted")
    set_title(panels[0], title)
    return plot


@styled
def draw_reliability(
    bins: Sequence[tuple[float, int, float | None, float | None]],
    ece: tuple[float, float, float],
    title: str = "",
) -> Plot:
    """Draw accuracy by confidence, above the number of images in each bin.

    A bin is its lower edge, its images, their mean confidence and accuracy; the calibration
    error comes with its interval.
    """
    value, low, high = ece
    said = f"calibration error {value:.1%} (95 %: {low:.1%} to {high:.1%})"
    plot = Plot("reliability", f"Accuracy by confidence: {said}", 5.6)
    upper, lower = plot.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    full = [each for each in bins if each[1]]
    width = 1 / len(bins)
    edges = [edge for edge, *_ in full]
    counts = [count for _, count, *_ in full]
    confidences = [confidence or 0.0 for *_, confidence, _ in full]
    accuracies = [accuracy or 0.0 for *_, accuracy in full]
    gaps = np.subtract(confidences, accuracies)
    upper.bar(edges, accuracies, width, align="edge", color=COLORS[0], label="accuracy")
    upper.bar(
        edges, gaps, width, bottom=accuracies, align="edge", color="none", hatch="////",
        edgecolor=COLORS[1], label="gap to mean confidence",
    )  # fmt: skip
    upper.plot([0, 1], [0, 1], "--", color=INK, label="perfectly calibrated")
    upper.set(ylim=(0, 1), xlim=(0, 1), ylabel="accuracy")
    set_title(upper, f"{title}\n{said}".strip())
    upper.legend(loc="upper left", fontsize=9)
    lower.bar(edges, counts, width, align="edge", color=INK)
    lower.set(xlabel="confidence", ylabel="images")
    return plot
