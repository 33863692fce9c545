"""What a run reached, as a record and in words."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from vitrail.config import OBJECT
from vitrail.result import Result, ResultTable, plain_fields
from vitrail.text import show
from vitrail.training.best_tracker import EvalResult
from vitrail.training.logging.run_facts import MachineFacts

REPORT = "report.html"
MEASURES = ("top1", "top5", "loss", "map", "macro_accuracy", "macro_f1", "micro_f1", "mae")
MEASURES += ("rmse", "r2")
"""What a run is measured by on its validation images, where it applies."""
Ending = Literal["finished", "converged", "paused"]


@dataclass(frozen=True, kw_only=True)
class FinalScore:
    """What the kept model reached on a test set, which chose nothing."""

    data: str
    """What was asked for."""
    images: int
    """Images that were evaluated."""
    of: int
    """Images of the test set; those that were trained on are left out."""
    why: str
    metric: str
    """What `value` is: top-1, mAP or R2."""
    value: float
    interval: tuple[float, float]
    """95 % interval of it."""
    top1: float | None = None
    notes: tuple[str, ...] = ()
    """What a person should know before believing the number, one line each."""

    def __str__(self) -> str:
        """Say it in one line."""
        form = ".3f" if self.metric == "R2" else ".2%"
        value, low, high = (format(each, form) for each in (self.value, *self.interval))
        on = f"{self.images:,} of {self.of:,} images {self.why}"
        return f"test     {self.metric} {value} (95 % interval {low} to {high}) on {on}"


@dataclass(frozen=True, kw_only=True)
class Run(Result):
    """What a run reached."""

    folder: Path
    ending: Ending
    steps: int
    top1: float | None
    """On the validation split, of the weights that were kept; None where no classes are learned."""
    top1_interval: tuple[float, float] | None = None
    """95 % interval of it, by Wilson."""
    top5: float | None
    loss: float | None
    map: float | None = None
    """Mean average precision, where images have several labels; F1 with thresholds of 0.5."""
    macro_accuracy: float | None = None
    """Where images have one label: the mean of the classes' accuracies."""
    macro_f1: float | None = None
    micro_f1: float | None = None
    mae: float | None = None
    """Of a regression: mean absolute error in the targets' own units, their mean where several."""
    rmse: float | None = None
    r2: float | None = None
    """Fraction of the targets' variance that is predicted."""
    r2_interval: tuple[float, float] | None = None
    """95 % interval of it, by bootstrap."""
    images: int
    """Validation images that were evaluated."""
    skipped: int
    """Validation images that could not be read."""
    worst_classes: tuple[tuple[str, int, int], ...] = ()
    """The three classes with the lowest accuracy: name, images, correct ones."""
    evaluated_on: str | None = None
    """The validation images; older runs do not say."""
    chosen_on: str | None = None
    """The images that chose among the evaluations (`keep` best, `patience`) or the thresholds of
    several labels, where any did."""
    fewshot: Mapping[str, float] | None = None
    """Few-shot accuracy of the last weights by the number of shots, where it was measured."""
    test: FinalScore | None = None
    """On `test_data`, where it was given."""
    seed: int | None = None
    settings: str | None = None
    """Hash of all settings that decide what a run computes."""
    data: str | None = None
    """What it was trained on, as it was given."""
    example: str | None = None
    """A validation image, where images are files of their own."""
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
        if self.r2 is not None:
            reached = f"R2 {self.r2:.3f}, mean absolute error {self.mae:.4g}"
        elif self.top1 is not None or self.map is not None:
            reached = f"mAP {self.map:.2%}" if self.top1 is None else f"top-1 {self.top1:.2%}"
        return f"{said}, {reached} on {on} images"

    def score(self) -> tuple[str, float]:
        """Name what the run is measured by on its validation images, and give it."""
        named = {"top-1": self.top1, "mAP": self.map, "R2": self.r2, "loss": self.loss}
        return next(((name, each) for name, each in named.items() if each is not None),
                    ("loss", math.nan))  # fmt: skip

    def summary(self) -> Iterator[ResultTable | str]:
        """Say what the run reached, where its model and report are, and what can be done next."""
        if self.top1 is not None and self.top1_interval is not None:
            low, high = self.top1_interval
            on = f"{self.images:,} validation images, {self.ending} after {self.steps:,} steps"
            yield f"top-1    {self.top1:.2%} (95 % interval {low:.1%} to {high:.1%}) on {on}"
        elif self.r2 is not None and self.r2_interval is not None:
            low, high = self.r2_interval
            on = f"{self.images:,} validation images, {self.ending} after {self.steps:,} steps"
            yield f"R2       {self.r2:.3f} (95 % interval {low:.3f} to {high:.3f}) on {on}"
            yield f"error    {self.mae:.4g} mean absolute, {self.rmse:.4g} root mean square"
        else:
            yield f"result   {self}"
        if chose_itself(self.chosen_on, self.evaluated_on):
            yield f"note     {CHOSE_ITSELF}"
        if self.worst_classes:
            worst = (f"{name} ({right} of {count})" for name, count, right in self.worst_classes)
            yield f"worst    {', '.join(worst)}"
        if self.test is not None:
            yield str(self.test)
        yield f"model    {show(self.folder)}"
        if (page := self.folder / REPORT).exists():
            yield f"report   {show(page)}"
        for place, command in enumerate(self.next_commands()):
            yield f"{'next' if place == 0 else '':8} {command}"

    def next_commands(self) -> list[str]:
        """Give commands that make use of the model, ready to be copied."""
        if self.ending == "paused" or self.loss is None:
            return []
        folder = shlex.quote(os.fspath(self.folder))
        data = None if self.data is None or self.data.startswith(OBJECT) else shlex.quote(self.data)
        if self.score()[0] == "loss":  # pre-training without labels
            return [f"vitrail finetune photos/ --weights run:{folder}"]
        measured = [] if data is None else [f"vitrail evaluate {folder} {data}"]
        image = self.example if self.example and Path(self.example).is_file() else "new/"
        predict = f"vitrail predict {folder} {shlex.quote(image)}"
        return [*measured, predict, f"vitrail serve {folder}"]

    @classmethod
    def load(cls, folder: Path, reached: Mapping[str, Any]) -> Run:
        """Build it from what result.json holds."""
        facts = reached.get("machine")
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in reached.items() if name in known}
        machine = None if facts is None else MachineFacts(**facts)
        worst = tuple(
            (name, count, right) for name, count, right in values.pop("worst_classes", ())
        )
        for name in ("top1_interval", "r2_interval"):
            if (interval := values.get(name)) is not None:
                values[name] = interval[0], interval[1]
        if (test := values.get("test")) is not None:
            low, high = test["interval"]
            test = {**test, "interval": (low, high), "notes": tuple(test["notes"])}
            values["test"] = FinalScore(**test)
        found = {"folder": folder, "machine": machine, "worst_classes": worst}
        return cls(**{**values, **found})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        values = plain_fields(self)
        return {"run": values.pop("folder"), **values}


CHOSE_ITSELF = "the same images chose its weights or thresholds, so the result is a little too good"


def chose_itself(chosen_on: str | None, evaluated_on: str | None) -> bool:
    """Tell whether the images that chose are those that the result is of, as in older runs."""
    return chosen_on is not None and evaluated_on in (None, chosen_on)


def make_run(
    folder: Path,
    ending: Ending,
    steps: int,
    kept: EvalResult | None,
    fewshot: Mapping[str, float] | None = None,
    **facts: Any,
) -> Run:
    """Put together what a run reached; `kept` is how its weights do on the validation split.

    `facts` say what it was and cost (run_facts.py).
    """
    values = kept.values if kept else {}
    return Run(
        folder=folder,
        ending=ending,
        steps=steps,
        images=kept.images if kept else 0,
        skipped=kept.skipped if kept else 0,
        **{"r2_interval" if "r2" in values else "top1_interval": kept.interval if kept else None},
        worst_classes=kept.worst if kept else (),
        fewshot={name.rpartition("/")[2]: each for name, each in (fewshot or {}).items()} or None,
        **{name: values.get(name) for name in MEASURES},
        **facts,
    )
