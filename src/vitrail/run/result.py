"""What a run reached, as a record and in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.evaluate.accuracy import Accuracy

Ending = Literal["finished", "converged", "paused"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run reached."""

    folder: Path
    ending: Ending
    steps: int
    top1: float | None
    """On the validation split, of the weights that were kept."""
    top5: float | None
    loss: float | None
    pictures: int
    """Validation pictures that were measured."""
    skipped: int
    """Validation pictures that could not be read."""


def make_run(folder: Path, ending: Ending, steps: int, kept: Accuracy | None) -> Run:
    """Put together what a run reached; `kept` is how its weights do on the validation split."""
    if kept is None:
        return Run(
            folder=folder,
            ending=ending,
            steps=steps,
            top1=None,
            top5=None,
            loss=None,
            pictures=0,
            skipped=0,
        )
    return Run(folder=folder, ending=ending, steps=steps, **kept._asdict())


def describe(result: Run) -> str:
    """Say what a run reached in one line."""
    said = f"{result.ending} after {result.steps:,} steps"
    if result.top1 is None:
        return said
    total = result.pictures + result.skipped
    on = f"{result.pictures:,} of {total:,}" if result.skipped else f"{total:,}"
    return f"{said}, top-1 {result.top1:.2%} on {on} pictures"
