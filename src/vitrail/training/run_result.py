"""What a run reached, as a record and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from vitrail.result import Result, ResultTable, plain_fields
from vitrail.text import show
from vitrail.training.best_tracker import EvalResult
from vitrail.training.logging.run_facts import MachineFacts

Ending = Literal["finished", "converged", "paused"]


@dataclass(frozen=True, kw_only=True)
class Run(Result):
    """What a run reached."""

    folder: Path
    ending: Ending
    steps: int
    top1: float | None
    """On the validation split, of the weights that were kept; None where no classes are learned."""
    top5: float | None
    loss: float | None
    map: float | None = None
    """Mean average precision, where images have several labels; F1 with thresholds of 0.5."""
    macro_accuracy: float | None = None
    """Where images have one label: the mean of the classes' accuracies."""
    macro_f1: float | None = None
    micro_f1: float | None = None
    images: int
    """Validation images that were evaluated."""
    skipped: int
    """Validation images that could not be read."""
    chosen_on: str | None = None
    """The images that chose among the evaluations (`keep` best, `patience`) or the thresholds of
    several labels, where any did."""
    seed: int | None = None
    settings: str | None = None
    """Hash of all settings that decide what a run computes."""
    model: str | None = None
    parameters: int | None = None
    trained_parameters: int | None = None
    images_seen: int | None = None
    """Training images over all steps, each as often as it was seen."""
    flops: int | None = None
    """Exact operations of all training steps; None where a part of your own took part."""
    machine: MachineFacts | None = None
    """Time, memory and versions, the only facts that differ when a run is repeated."""

    def __str__(self) -> str:
        """Say it in one line."""
        said = f"{self.ending} after {self.steps:,} steps"
        if self.loss is None:
            return said
        total = self.images + self.skipped
        on = f"{self.images:,} of {total:,}" if self.skipped else f"{total:,}"
        reached = f"loss {self.loss:.4g}"
        if self.top1 is not None or self.map is not None:
            reached = f"mAP {self.map:.2%}" if self.top1 is None else f"top-1 {self.top1:.2%}"
        return f"{said}, {reached} on {on} images"

    def summary(self) -> Iterator[ResultTable | str]:
        """Say where the run is and what it reached."""
        yield f"{show(self.folder)}: {self}"

    @classmethod
    def load(cls, folder: Path, reached: Mapping[str, Any]) -> Run:
        """Build it from what result.json holds."""
        facts = reached.get("machine")
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in reached.items() if name in known}
        machine = None if facts is None else MachineFacts(**facts)
        return cls(**{**values, "folder": folder, "machine": machine})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        values = plain_fields(self)
        return {"run": values.pop("folder"), **values}


def make_run(
    folder: Path,
    ending: Ending,
    steps: int,
    kept: EvalResult | None,
    chosen_on: str | None = None,
    **facts: Any,
) -> Run:
    """Put together what a run reached; `kept` is how its weights do on the validation split.

    `facts` say what it was and cost (run_facts.py).
    """
    values = kept.values if kept else {}
    names = ("top1", "top5", "loss", "map", "macro_accuracy", "macro_f1", "micro_f1")
    return Run(
        folder=folder,
        ending=ending,
        steps=steps,
        images=kept.images if kept else 0,
        skipped=kept.skipped if kept else 0,
        chosen_on=chosen_on,
        **{name: values.get(name) for name in names},
        **facts,
    )
