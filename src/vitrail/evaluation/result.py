"""A set's answers as a report: what a person reads, a program parses, and a plot draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.calibration import Calibration, calibrate
from vitrail.evaluation.intervals import Estimate, bootstrap, mean, wilson
from vitrail.evaluation.scored import MOST, Predictions
from vitrail.evaluation.scores import average_precision, confusion_matrix, list_confusion, rank

_FEWER = 200
"""Resamples of the mean average precision, each of which goes over all scores."""


@dataclass(frozen=True)
class ClassReport:
    """How well a model does on one class."""

    name: str
    images: int
    """Its images that were measured."""
    top1: Estimate | None
    top5: Estimate | None
    precision: float | None
    """The part of the images taken for this class that are of it."""
    average_precision: float | None
    """With several labels an image."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """How well a model does on a set."""

    images: int
    """Images that were measured."""
    skipped: int
    """Images that could not be read."""
    top1: Estimate
    """Part of the images whose most likely class is right; of labels, with several an image."""
    top5: Estimate
    loss: Estimate
    """Mean cross-entropy."""
    calibration: Calibration | None
    real: Estimate | None
    """Top-1 by the reassessed labels of ImageNet, of the images that have any."""
    real_images: int
    mean_average_precision: Estimate | None
    classes: tuple[ClassReport, ...]
    """Those that images were measured of."""
    confusion: np.ndarray | None
    """How often which class (row) was taken for which (column); the last column, if there is one
    more, is for the model's other classes."""
    names: tuple[str, ...]
    """The names of the matrix's rows."""

    def on(self) -> str:
        """Say on how many images it was measured."""
        if not self.skipped:
            return f"on {self.images:,} images"
        total = self.images + self.skipped
        return f"on {self.images:,} of {total:,} images ({self.skipped:,} unreadable)"


def make_report(
    answers: Predictions,
    source: ImageDataset,
    *,
    real: Sequence[frozenset[int]] | None = None,
    resamples: int = 1000,
) -> Report:
    """Measure all that answers show; `real` has the right classes of each image of the source."""
    skipped = len(answers.bad)
    if answers.scores is not None:
        return _report_several(answers, source, skipped, resamples)
    count = len(answers.indices)
    first, among = answers.right(), answers.right(MOST)
    matrix = confusion_matrix(answers.labels, answers.top[:, 0], len(source.classes))
    sets = [real[index] for index in answers.indices.tolist()] if real is not None else []
    hits = [int(best) in each for best, each in zip(answers.top[:, 0], sets, strict=False) if each]
    return Report(
        images=count,
        skipped=skipped,
        top1=wilson(int(first.sum()), count),
        top5=wilson(int(among.sum()), count),
        loss=mean(answers.losses, resamples=resamples),
        calibration=calibrate(answers.confidence, first, resamples=resamples),
        real=wilson(sum(hits), len(hits)) if real is not None else None,
        real_images=len(hits),
        mean_average_precision=None,
        classes=_report_classes(answers.labels, first, among, matrix, source.classes),
        confusion=matrix,
        names=source.classes,
    )


def _report_classes(
    labels: np.ndarray,
    first: np.ndarray,
    among: np.ndarray,
    matrix: np.ndarray,
    names: Sequence[str],
) -> tuple[ClassReport, ...]:
    total = np.bincount(labels, minlength=len(names)).tolist()
    right = np.bincount(labels, weights=first, minlength=len(names)).tolist()
    near = np.bincount(labels, weights=among, minlength=len(names)).tolist()
    taken = matrix.sum(0).tolist()
    return tuple(
        ClassReport(
            name,
            count,
            wilson(right[number], count),
            wilson(near[number], count),
            right[number] / taken[number] if taken[number] else None,
            None,
        )
        for number, (name, count) in enumerate(zip(names, total, strict=True))
        if count
    )


def _report_several(
    answers: Predictions, source: ImageDataset, skipped: int, resamples: int
) -> Report:
    """Measure where an image may have several labels, or none."""
    scores, labels = answers.scores, answers.labels
    assert scores is not None
    agreed = ((scores > 0) == (labels > 0)).mean(1)
    share = mean(agreed, resamples=resamples)
    order = rank(scores)
    each = average_precision(scores, labels, order=order)

    def mean_precision(weights: np.ndarray) -> float:
        found = average_precision(scores, labels, weights, order=order)
        there = found[~np.isnan(found)]
        return float(there.mean()) if len(there) else np.nan

    return Report(
        images=len(scores),
        skipped=skipped,
        top1=share,
        top5=share,
        loss=mean(answers.losses, resamples=resamples),
        calibration=None,
        real=None,
        real_images=0,
        mean_average_precision=bootstrap(
            mean_precision, len(scores), resamples=min(_FEWER, resamples)
        ),
        classes=tuple(
            ClassReport(name, int(count), None, None, None, None if np.isnan(ap) else float(ap))
            for name, count, ap in zip(source.classes, labels.sum(0, dtype=int), each, strict=True)
        ),
        confusion=None,
        names=source.classes,
    )


def to_json(report: Report) -> dict[str, Any]:
    """Give a report as plain data; the confusion matrix by its cells that are not 0."""
    found: dict[str, Any] = {"images": report.images, "skipped": report.skipped}
    named = {
        "top1": report.top1,
        "top5": report.top5,
        "loss": report.loss,
        "real": report.real,
        "map": report.mean_average_precision,
        "ece": report.calibration and report.calibration.ece,
    }
    for name, estimate in named.items():
        if estimate is not None:
            found |= {name: estimate.value, f"{name}_interval": [estimate.low, estimate.high]}
    if report.real is not None:
        found["real_images"] = report.real_images
    if report.calibration is not None:
        found["bins"] = [vars(each) for each in report.calibration.bins]
    found["classes"] = [
        {key: value for key, value in row.items() if value is not None}
        for row in class_rows(report)
    ]
    if report.confusion is not None:
        names = [*report.names, None]
        found["confusion"] = [
            {"label": names[each.label], "predicted": names[each.predicted],
             "images": each.images}
            for each in list_confusion(report.confusion)
        ]  # fmt: skip
    return found


def class_rows(report: Report) -> list[dict[str, Any]]:
    """Give a row a class, for a table."""
    return [
        {
            "class": each.name,
            "images": each.images,
            "top1": each.top1 and each.top1.value,
            "low": each.top1 and each.top1.low,
            "high": each.top1 and each.top1.high,
            "top5": each.top5 and each.top5.value,
            "precision": each.precision,
            "average_precision": each.average_precision,
        }
        for each in report.classes
    ]


def image_rows(answers: Predictions, source: ImageDataset) -> list[dict[str, Any]]:
    """Give a row an image: its class, the answer and its probability; or why there is none."""
    rows: list[dict[str, Any]] = []
    for row, index in enumerate(answers.indices.tolist()):
        found: dict[str, Any] = {"image": source.where(index)}
        if answers.scores is None:
            best = int(answers.top[row, 0])
            found["class"] = source.classes[answers.labels[row]]
            found["predicted"] = source.classes[best] if best >= 0 else ""
            found["probability"] = float(answers.confidence[row])
        rows.append({**found, "loss": float(answers.losses[row]), "error": ""})
    blank = dict.fromkeys(rows[0], "")
    rows += [blank | {"image": bad.where, "error": bad.reason} for bad in answers.bad]
    return rows
