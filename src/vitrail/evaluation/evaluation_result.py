"""What an evaluation found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vitrail.evaluation.dataset_predictions import Predictions
from vitrail.evaluation.metrics.calibration import Calibration
from vitrail.evaluation.metrics.intervals import Estimate
from vitrail.evaluation.metrics.scores import Confusion, most_confused
from vitrail.result import Result, ResultTable, to_plain
from vitrail.text import printable

_SHOWN = 40
"""Classes that the table lists; of more, the worst."""


@dataclass(frozen=True)
class Selected:
    """How many images of how many are measured, and why those."""

    images: int
    of: int
    why: str

    def __str__(self) -> str:
        """Say it in one line."""
        count = f"{self.images:,}" if self.images == self.of else f"{self.images:,} of {self.of:,}"
        return f"{count} images {self.why}"


@dataclass(frozen=True)
class ClassResult:
    """How well a model does on one class."""

    name: str
    images: int
    """Its images that were evaluated."""
    top1: Estimate | None = None
    top5: Estimate | None = None
    precision: float | None = None
    """Fraction of the images predicted as this class that belong to it."""
    average_precision: float | None = None
    """Where images have several labels, as the next two."""
    f1: float | None = None
    threshold: float | None = None
    """Probability from which on an image has the label."""

    def row(self) -> dict[str, Any]:
        """Give the row of a table, by column; None for what does not apply."""
        return {
            "class": self.name,
            "images": self.images,
            "top1": self.top1 and self.top1.value,
            "low": self.top1 and self.top1.low,
            "high": self.top1 and self.top1.high,
            "top5": self.top5 and self.top5.value,
            "precision": self.precision,
            "average_precision": self.average_precision,
            "f1": self.f1,
            "threshold": self.threshold,
        }


@dataclass(frozen=True, kw_only=True)
class EvaluationResult(Result):
    """How well a model does on a dataset."""

    model: str = ""
    data: str = ""
    dataset: str = ""
    """The dataset's name, with its split."""
    image: str = ""
    """The size of its images, HxW."""
    notes: tuple[str, ...] = ()
    """What a person should know before believing the numbers, one line each."""
    selected: Selected | None = None
    """How many images of how many these are, and why those."""
    images: int
    """Images evaluated."""
    skipped: int
    """Images that could not be read."""
    top1: Estimate | None = None
    """Fraction of images whose most likely class is correct, where they have one label."""
    top5: Estimate | None = None
    """Whose class is among the five most likely; None where there are no more than five."""
    macro_accuracy: Estimate | None = None
    """The mean of the classes' accuracies, each of which counts the same."""
    label_accuracy: Estimate | None = None
    """Where images have several labels, the fraction of labels predicted correctly."""
    loss: Estimate
    """Mean cross-entropy; for a sigmoid model binary, summed over classes."""
    calibration: Calibration | None = None
    real: Estimate | None = None
    """Top-1 by the reassessed labels of ImageNet, of the images that have any."""
    real_images: int = 0
    mean_average_precision: Estimate | None = None
    """Where images have several labels: over the classes that have images."""
    macro_f1: Estimate | None = None
    """The mean of the classes' F1."""
    micro_f1: Estimate | None = None
    classes: tuple[ClassResult, ...]
    """Those that images were evaluated of."""
    confusion: tuple[Confusion, ...] | None = None
    """How often which class was predicted as which; only pairs that occurred."""
    names: tuple[str, ...]
    """The names of the classes."""
    out: Path | None = None
    """The folder with files and plots."""
    predictions: Predictions | None = field(default=None, repr=False, compare=False)
    table: ClassVar[str] = "classes.csv"
    """The file of `out` with a row for each class."""

    def evaluated_on(self) -> str:
        """Say on how many images it was evaluated."""
        if not self.skipped:
            return f"on {self.images:,} images"
        total = self.images + self.skipped
        return f"on {self.images:,} of {total:,} images ({self.skipped:,} unreadable)"

    def scores(self) -> dict[str, Estimate]:
        """Give the scores that matter, by name, the one that models are compared by first."""
        found = {
            "mAP": self.mean_average_precision,
            "top-1": self.top1,
            "top-5": self.top5,
            "macro accuracy": self.macro_accuracy,
            "macro F1": self.macro_f1,
            "micro F1": self.micro_f1,
        }
        return {name: each for name, each in found.items() if each is not None}

    def metrics(self) -> dict[str, Any]:
        """Give the metrics as plain data; an estimate with its 95 % interval."""
        found: dict[str, Any] = {"images": self.images, "skipped": self.skipped}
        named = {
            "top1": self.top1,
            "top5": self.top5,
            "macro_accuracy": self.macro_accuracy,
            "label_accuracy": self.label_accuracy,
            "loss": self.loss,
            "real": self.real,
            "map": self.mean_average_precision,
            "macro_f1": self.macro_f1,
            "micro_f1": self.micro_f1,
            "ece": self.calibration and self.calibration.ece,
        }
        for name, estimate in named.items():
            if estimate is not None:
                found |= {name: estimate.value, f"{name}_interval": [estimate.low, estimate.high]}
        if self.real is not None:
            found["real_images"] = self.real_images
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the confusion matrix by its cells that are not 0."""
        found: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            "dataset": self.dataset,
            "image": self.image,
            "notes": list(self.notes),
            "selected": to_plain(self.selected),
            **self.metrics(),
        }
        if self.calibration is not None:
            found["ece_binned"] = self.calibration.binned
            found["bins"] = [vars(each) for each in self.calibration.bins]
        found["classes"] = [
            {key: value for key, value in each.row().items() if value is not None}
            for each in self.classes
        ]
        if self.confusion is not None:
            names = [*self.names, None]
            found["confusion"] = [
                {"label": names[label], "predicted": names[predicted], "images": count}
                for label, predicted, count in self.confusion
            ]
        return found

    def summary(self) -> Iterator[ResultTable | str]:
        """Give the classes, the worst of many, then what matters most."""
        multilabel = self.mean_average_precision is not None
        rows = list(self.classes)
        if len(rows) > _SHOWN:
            yield f"the {_SHOWN} worst of {len(rows):,} classes (--csv lists all)"
            rows.sort(key=lambda row: row.average_precision or (row.top1 or (0.0,))[0])
        columns = ("top-1", "95 %", "top-5", "precision")
        if self.top5 is None:
            columns = ("top-1", "95 %", "precision")
        if multilabel:
            columns = ("average precision", "F1", "threshold")
        yield ResultTable(
            ("class", "images", *columns),
            [
                (printable(row.name), f"{row.images:,}", *_figures(row, multilabel=multilabel))
                for row in rows[:_SHOWN]
            ],
        )
        yield from self.notes
        if self.confusion is not None and (pairs := self._most_confused()):
            yield f"most often confused: {pairs}"
        if self.selected is not None:
            yield f"{'evaluated on':14} {self.selected}"
        (name, main), *others = self.scores().items()
        yield f"{name:14} {show_estimate(main)} {self.evaluated_on()}"
        yield from (f"{name:14} {show_estimate(each)}" for name, each in others)
        if self.label_accuracy is not None:
            yield f"{'labels':14} {show_estimate(self.label_accuracy)} predicted correctly"
        loss = self.loss
        yield f"{'loss':14} {loss.value:.4f} ({loss.low:.4f} to {loss.high:.4f})"
        if self.calibration is not None:
            found = self.calibration
            more = f"error, without chance's part ({found.binned:.2%} in {len(found.bins)} bins)"
            yield f"{'calibration':14} {show_estimate(found.ece)} {more}"
        if self.real is not None:
            yield f"{'ReaL':14} {show_estimate(self.real)} on {self.real_images:,} images"
        if self.out is not None:
            plots = "" if self.confusion is None else ", confusion and reliability plots"
            yield f"{self.out}: report.json, classes.csv, images.csv{plots}"

    def _most_confused(self) -> str:
        """Name the pairs of classes that were confused most often."""
        assert self.confusion is not None
        names = [*map(printable, self.names), "a class that the data does not have"]
        shown = (
            f"{names[e.label]} as {names[e.predicted]} ({e.images:,})"
            for e in most_confused(self.confusion)[:3]
        )
        return ", ".join(shown)


def _figures(row: ClassResult, *, multilabel: bool) -> list[str]:
    if multilabel:
        threshold = "" if row.threshold is None else f"{row.threshold:.2f}"
        return [_percent(row.average_precision), _percent(row.f1), threshold]
    assert row.top1
    span = f"{row.top1.low:.1%} to {row.top1.high:.1%}"
    near = [] if row.top5 is None else [_percent(row.top5.value)]
    return [_percent(row.top1.value), span, *near, _percent(row.precision)]


def show_estimate(estimate: Estimate) -> str:
    """Write a fraction with its 95 % interval."""
    return f"{estimate.value:.2%} ({estimate.low:.2%} to {estimate.high:.2%})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
