"""The first screen of a run's report: how good it is, where it is weak, what to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vitrail.plotting.inspection_plots import Curves
from vitrail.report.html_page import ReportSection, escape, format_image_count
from vitrail.training.run_result import CHOSE_ITSELF, chose_itself

WIDE = 0.05
"""An interval wider than this calls for more validation images."""


def show_verdict(
    result: Mapping[str, Any], mistakes: ReportSection, curves: Curves
) -> ReportSection:
    """Show a run's result in three cards."""
    section = ReportSection("Result", data=dict(result), narrow=True)
    section.cards.append(_headline(result))
    if worst := result.get("worst_classes"):
        section.cards.append(_weakest(worst))
    points = [
        *_look_at_mistakes(mistakes),
        *_look_at_curves(curves),
        *_look_at_data(result),
    ]
    if points:
        items = "\n".join(f"<li>{point}</li>" for point in points)
        section.cards.append(
            '<div class="card">\n<h3>What to look at</h3>\n<ul class="look">\n'
            f"{items}\n</ul>\n</div>"
        )
    return section


def _headline(result: Mapping[str, Any]) -> str:
    """Write the one number that counts, with its interval as words and as a range."""
    said = f"on {result['images']:,} validation images"
    if (top1 := result.get("top1")) is not None:
        value, name = f"{top1:.1%}", "top-1 accuracy"
    elif (precision := result.get("map")) is not None:
        value, name = f"{precision:.1%}", "mean average precision"
    elif (score := result.get("r2")) is not None:
        value, name = f"{score:.3f}", "R2"
        if interval := result.get("r2_interval"):
            said = f"95 % interval {interval[0]:.3f} to {interval[1]:.3f}, {said}"
        said = f"mean absolute error {result['mae']:.4g}; {said}"
    elif (loss := result.get("loss")) is not None:
        value, name = f"{loss:.4g}", "validation loss"
    else:
        value, name, said = f"{result['steps']:,}", "steps", "without validation images"
    if chose_itself(result.get("chosen_on"), result.get("evaluated_on")):
        said = f"{said}; {CHOSE_ITSELF}"
    drawn = ""
    if top1 is not None and (interval := result.get("top1_interval")):
        low, high = interval
        drawn = (
            f'<div class="interval" aria-hidden="true"><span class="range" style="left:'
            f'{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></span><span class="point" '
            f'style="left:{100 * top1:.1f}%"></span></div>\n'
        )
        said = f"95 % interval {low:.1%} to {high:.1%}, {said}"
    return (
        f'<div class="card">\n<p class="verdict">{value} <small>{name}</small></p>\n{drawn}'
        f'<p class="note">{escape(said)}.</p>\n</div>'
    )


def _weakest(worst: list[tuple[str, int, int]]) -> str:
    rows = "\n".join(
        f'<tr><td>{escape(name).replace("_", "_<wbr>")}<span class="track"><span class="bar" '
        f'style="width:{100 * right / count:.0f}%"></span></span></td>'
        f'<td class="number">{right:,} of {count:,}</td></tr>'
        for name, count, right in worst
    )
    return f'<div class="card">\n<h3>Weakest classes</h3>\n<table>\n{rows}\n</table>\n</div>'


def _look_at_mistakes(mistakes: ReportSection) -> Iterator[str]:
    if mistakes.data.get("mistakes"):
        yield f'<a href="#mistakes">The mistakes</a>: {escape(mistakes.note)}'
    for true, predicted, count in mistakes.data.get("confused", ())[:1]:
        if count > 1:
            pair = escape(f"{true} as {predicted}")
            yield f"Most often confused: {pair}, {format_image_count(count)}."


def _look_at_curves(curves: Curves) -> Iterator[str]:
    """Tell a model that overfits, and one that was still learning, where evaluations can tell."""
    if "val/loss" not in curves:
        return
    steps, losses = curves["val/loss"]
    if len(losses) < 3 or not np.isfinite(losses).all():
        return
    best = int(np.argmin(losses))
    link = '<a href="#training">The curves</a>'
    if losses[-1] > 1.05 * losses[best]:
        yield f"{link}: validation loss was lowest at step {steps[best]:,} and rose: it overfits."
    elif best == len(losses) - 1 and losses[-1] < 0.98 * losses[-2]:
        yield f"{link}: validation loss was still falling; more steps may help."


def _look_at_data(result: Mapping[str, Any]) -> Iterator[str]:
    if interval := result.get("top1_interval"):
        width = interval[1] - interval[0]
        if width > WIDE:
            yield (
                f"The interval is {100 * width:.0f} points wide: with four times as many "
                "validation images it would be half as wide."
            )
    if skipped := result.get("skipped"):
        yield f"{format_image_count(skipped)} could not be read and were skipped."
