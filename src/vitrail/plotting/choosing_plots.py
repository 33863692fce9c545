"""The plot of a choice among backbones: accuracy against speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitrail.plotting.canvas import COLORS, INK, Plot, shorten, styled
from vitrail.text import show_rate


@styled
def draw_pareto(
    names: Sequence[str],
    speeds: Sequence[float],
    accuracies: Sequence[tuple[float, float, float]],
    front: Sequence[bool],
    chosen: int,
) -> Plot:
    """Draw accuracy (value, low, high) against images per second; the front is a line."""
    alt = f"Accuracy and speed of {len(names)} backbones; {names[chosen]} is recommended"
    plot = Plot("pareto", alt, 3.4)
    axes = plot.add_subplot()
    line = sorted((speeds[n], accuracies[n][0]) for n in range(len(names)) if front[n])
    axes.plot(*zip(*line, strict=True), color=INK, linewidth=1, zorder=1)
    for number, (name, speed, (value, low, high)) in enumerate(
        zip(names, speeds, accuracies, strict=True)
    ):
        color = COLORS[1] if number == chosen else COLORS[0]
        spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar(speed, value, yerr=spread, fmt="o", color=color, capsize=3)
        axes.annotate(
            shorten(name), (speed, value), (6, 4), textcoords="offset points", size=8, color=INK,
            parse_math=False,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(0.25)
    places = sorted({min(speeds), math.sqrt(min(speeds) * max(speeds)), max(speeds)})
    axes.set_xticks(places, [show_rate(place) for place in places])
    axes.minorticks_off()
    axes.set(xlabel="images per second on this machine", ylabel="accuracy of a linear probe")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    return plot
