"""Drawings of studies: a measure over another, with intervals over seeds, and its fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import PercentFormatter

from vitrail.plotting.canvas import COLORS, INK, Plot, add_legend, name_ticks, shorten, styled

Points = Sequence[tuple[float, float, float, float]]
"""x, mean, and the ends of its interval."""
Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""A fit: xs, values, and the ends of their interval."""

_MARKS = "osD^vP*X"
_NAMED = 6  # places on an axis that are each named


@styled
def draw_lines(
    curves: Mapping[str, Points],
    *,
    x: str,
    y: str,
    fits: Mapping[str, Band] | None = None,
    percent: bool = True,
    log_x: bool = True,
    log_y: bool = False,
    bands: bool = False,
) -> Plot:
    """Draw a curve for each name over a logarithmic axis, with intervals over seeds.

    They are bars at each point, or `bands` around the line. Where `fits` are given, points stand
    alone and the fits are the lines.
    """
    alt = f"{y} over {x}: {', '.join(curves)}"
    plot = Plot("study", alt, 3.6)
    axes = plot.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        xs, means, lows, highs = np.array(points).T
        color, mark = COLORS[number % len(COLORS)], _MARKS[number % len(_MARKS)]
        errors = None if bands else np.stack([means - lows, highs - means])
        if bands:
            axes.fill_between(xs, lows, highs, color=color, alpha=0.15, lw=0)
        line = "none" if fits else "-"
        axes.errorbar(
            xs, means, errors, label=name or None, ls=line, ms=5, lw=1.5, elinewidth=0.8,
            capsize=2, color=color, marker=mark,
        )  # fmt: skip
        if fits and name in fits:
            places, values, low, high = fits[name]
            axes.plot(places, values, color=color, lw=1)
            axes.fill_between(places, low, high, color=color, alpha=0.15, lw=0)
    axes.set(xscale="log" if log_x else "linear", xlabel=x, ylabel=y)
    places = sorted({point[0] for points in curves.values() for point in points})
    if bands and len(places) <= _NAMED:
        axes.minorticks_off()
        name_ticks(axes.xaxis, places, [f"{place:,.4g}" for place in places])
    if log_y:
        axes.set_yscale("log")
    elif percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylim(*_limits(curves))
    if any(curves):  # a single curve may have no name
        add_legend(axes, above=True)
    return plot


def _limits(curves: Mapping[str, Points]) -> tuple[float, float]:
    """Choose limits by the means: a wide interval of few seeds may leave the drawing."""
    means = [point[1] for points in curves.values() for point in points]
    low, high = min(means, default=0.0), max(means, default=1.0)
    margin = max(0.15 * (high - low), 0.02)
    return low - margin, high + margin


@styled
def draw_groups(
    groups: Mapping[str, tuple[float, float, float]], *, x: str, percent: bool = True
) -> Plot:
    """Draw a dot with its interval for each name, from top to bottom."""
    alt = f"{x}: " + ", ".join(f"{name} {mean:.3g}" for name, (mean, *_) in groups.items())
    plot = Plot("study", alt, 0.9 + 0.28 * len(groups))
    axes = plot.add_subplot()
    places = np.arange(len(groups))[::-1]
    means, lows, highs = np.array(list(groups.values())).T
    axes.errorbar(
        means, places, xerr=np.stack([means - lows, highs - means]), fmt="o", color=COLORS[0],
        ecolor=INK, elinewidth=0.8, capsize=2, ms=5,
    )  # fmt: skip
    name_ticks(axes.yaxis, places, [shorten(name, 32) for name in groups])
    axes.set(xlabel=x)
    if percent:
        margin = max(0.2 * (means.max() - means.min()), 0.02)
        axes.set_xlim(means.min() - margin, means.max() + margin)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return plot
