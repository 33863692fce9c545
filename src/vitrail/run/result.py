"""What a run reached, as a record and in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.evaluation.best_tracker import EvalResult

Ending = Literal["finished", "converged", "paused"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run reached."""

    folder: Path
    ending: Ending
    steps: int
    top1: float | None
    """On the validation split, of the weights that were kept; None where no classes are learnt."""
    top5: float | None
    loss: float | None
    images: int
    """Validation images that were measured."""
    skipped: int
    """Validation images that could not be read."""


def make_run(folder: Path, ending: Ending, steps: int, kept: EvalResult | None) -> Run:
    """Put together what a run reached; `kept` is how its weights do on the validation split."""
    values = kept.values if kept else {}
    return Run(
        folder=folder,
        ending=ending,
        steps=steps,
        top1=values.get("top1"),
        top5=values.get("top5"),
        loss=values.get("loss"),
        images=kept.images if kept else 0,
        skipped=kept.skipped if kept else 0,
    )


def describe(result: Run) -> str:
    """Say what a run reached in one line."""
    said = f"{result.ending} after {result.steps:,} steps"
    if result.loss is None:
        return said
    total = result.images + result.skipped
    on = f"{result.images:,} of {total:,}" if result.skipped else f"{total:,}"
    reached = f"loss {result.loss:.4g}" if result.top1 is None else f"top-1 {result.top1:.2%}"
    return f"{said}, {reached} on {on} images"
