"""What an evaluation found: for people, for programs, and as files with plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.calibration import Calibration, calibrate
from vitrail.evaluation.dataset_predictions import TOP_K, Predictions
from vitrail.evaluation.intervals import Estimate, bootstrap, mean, wilson
from vitrail.evaluation.scores import average_precision, confusion_matrix, f1, list_confusion, rank
from vitrail.files import write_whole
from vitrail.result import Result, ResultTable, write_json
from vitrail.text import encodable, printable

_FEWER = 200
"""Resamples of the mean average precision, each of which goes over all scores."""
_SHOWN = 40
"""Classes that the table lists; of more, the worst."""


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
    images: int
    """Images evaluated."""
    skipped: int
    """Images that could not be read."""
    top1: Estimate
    """Fraction of images whose most likely class is correct; of labels, where images have several.
    """
    top5: Estimate
    loss: Estimate
    """Mean cross-entropy; for a sigmoid model binary, summed over classes."""
    calibration: Calibration | None = None
    real: Estimate | None = None
    """Top-1 by the reassessed labels of ImageNet, of the images that have any."""
    real_images: int = 0
    mean_average_precision: Estimate | None = None
    """Where images have several labels, as the next two: over the classes that have images."""
    macro_f1: Estimate | None = None
    micro_f1: Estimate | None = None
    classes: tuple[ClassResult, ...]
    """Those that images were evaluated of."""
    confusion: np.ndarray | None = None
    """How often which class (row) was predicted as which (column); one more column, if there is
    one, is for the model's other classes."""
    names: tuple[str, ...]
    """The names of the matrix's rows."""
    out: Path | None = None
    """The folder with files and plots."""
    predictions: Predictions | None = field(default=None, repr=False, compare=False)

    def evaluated_on(self) -> str:
        """Say on how many images it was evaluated."""
        if not self.skipped:
            return f"on {self.images:,} images"
        total = self.images + self.skipped
        return f"on {self.images:,} of {total:,} images ({self.skipped:,} unreadable)"

    def metrics(self) -> dict[str, Any]:
        """Give the metrics as plain data; an estimate with its 95 % interval."""
        found: dict[str, Any] = {"images": self.images, "skipped": self.skipped}
        named = {
            "top1": self.top1,
            "top5": self.top5,
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
            **self.metrics(),
        }
        if self.calibration is not None:
            found["bins"] = [vars(each) for each in self.calibration.bins]
        found["classes"] = [
            {key: value for key, value in each.row().items() if value is not None}
            for each in self.classes
        ]
        if self.confusion is not None:
            names = [*self.names, None]
            found["confusion"] = [
                {"label": names[label], "predicted": names[predicted], "images": count}
                for label, predicted, count in list_confusion(self.confusion)
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
        first = "labels" if multilabel else "top-1"
        yield f"{first:12} {_show(self.top1)} {self.evaluated_on()}"
        rest = {
            "mAP": self.mean_average_precision,
            "macro F1": self.macro_f1,
            "micro F1": self.micro_f1,
            "top-5": None if multilabel else self.top5,
        }
        yield from (f"{name:12} {_show(each)}" for name, each in rest.items() if each is not None)
        loss = self.loss
        yield f"{'loss':12} {loss.value:.4f} ({loss.low:.4f} to {loss.high:.4f})"
        if self.calibration is not None:
            bins = len(self.calibration.bins)
            yield f"{'calibration':12} {_show(self.calibration.ece)} error, in {bins} bins"
        if self.real is not None:
            yield f"{'ReaL':12} {_show(self.real)} on {self.real_images:,} images"
        if self.out is not None:
            yield f"{self.out}: report.json, classes.csv, images.csv and plots"

    def _most_confused(self) -> str:
        """Name the pairs of classes that were confused most often."""
        assert self.confusion is not None
        wrong = [each for each in list_confusion(self.confusion) if each.label != each.predicted]
        wrong.sort(key=lambda each: -each.images)
        names = [*map(printable, self.names), "a class that the data does not have"]
        shown = (f"{names[e.label]} as {names[e.predicted]} ({e.images:,})" for e in wrong[:3])
        return ", ".join(shown)


def _figures(row: ClassResult, *, multilabel: bool) -> list[str]:
    if multilabel:
        threshold = "" if row.threshold is None else f"{row.threshold:.2f}"
        return [_percent(row.average_precision), _percent(row.f1), threshold]
    assert row.top1
    assert row.top5
    span = f"{row.top1.low:.1%} to {row.top1.high:.1%}"
    return [_percent(row.top1.value), span, _percent(row.top5.value), _percent(row.precision)]


def _show(estimate: Estimate) -> str:
    return f"{estimate.value:.2%} ({estimate.low:.2%} to {estimate.high:.2%})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def score_predictions(
    predictions: Predictions,
    dataset: ImageDataset,
    *,
    real: Sequence[frozenset[int]] | None = None,
    thresholds: np.ndarray | None = None,
    resamples: int = 1000,
) -> EvaluationResult:
    """Compute all metrics of predictions.

    `real` has the correct classes of each image of the dataset, `thresholds` the probability from
    which on an image has each label (0.5 unless given).
    """
    if predictions.logits is not None:
        return _score_multilabel(predictions, dataset, thresholds, resamples)
    count = len(predictions.indices)
    first, in_top = predictions.correct(), predictions.correct(TOP_K)
    matrix = confusion_matrix(predictions.labels, predictions.top[:, 0], len(dataset.classes))
    sets = [real[index] for index in predictions.indices.tolist()] if real is not None else []
    best = predictions.top[:, 0].tolist()
    hits = [top in each for top, each in zip(best, sets, strict=False) if each]
    return EvaluationResult(
        dataset=dataset.name,
        images=count,
        skipped=len(predictions.unreadable),
        top1=wilson(int(first.sum()), count),
        top5=wilson(int(in_top.sum()), count),
        loss=mean(predictions.losses, resamples=resamples),
        calibration=calibrate(predictions.confidence, first, resamples=resamples),
        real=wilson(sum(hits), len(hits)) if real is not None else None,
        real_images=len(hits),
        classes=_score_classes(predictions.labels, first, in_top, matrix, dataset.classes),
        confusion=matrix,
        names=dataset.classes,
        predictions=predictions,
    )


def _score_classes(
    labels: np.ndarray,
    first: np.ndarray,
    in_top: np.ndarray,
    matrix: np.ndarray,
    names: Sequence[str],
) -> tuple[ClassResult, ...]:
    total = np.bincount(labels, minlength=len(names)).tolist()
    correct = np.bincount(labels, weights=first, minlength=len(names)).tolist()
    near = np.bincount(labels, weights=in_top, minlength=len(names)).tolist()
    predicted = matrix.sum(0).tolist()
    return tuple(
        ClassResult(
            name,
            count,
            wilson(correct[number], count),
            wilson(near[number], count),
            correct[number] / predicted[number] if predicted[number] else None,
        )
        for number, (name, count) in enumerate(zip(names, total, strict=True))
        if count
    )


def _score_multilabel(
    predictions: Predictions, dataset: ImageDataset, thresholds: np.ndarray | None, resamples: int
) -> EvaluationResult:
    """Compute the metrics where an image may have several labels, or none."""
    logits, labels = predictions.logits, predictions.labels > 0
    assert logits is not None
    levels = np.full(labels.shape[1], 0.5) if thresholds is None else thresholds
    # Compared as logits: of 0.5 exactly the logits above 0, which probabilities round away.
    with np.errstate(divide="ignore"):
        predicted = logits > np.log(levels / (1 - levels)).astype(logits.dtype)
    share = mean((predicted == labels).mean(1), resamples=resamples)
    order = rank(logits)
    each = average_precision(logits, labels, order=order)
    fewer = min(_FEWER, resamples)

    def mean_precision(weights: np.ndarray) -> float:
        found = average_precision(logits, labels, weights, order=order)
        there = found[~np.isnan(found)]
        return float(there.mean()) if len(there) else np.nan

    def macro(weights: np.ndarray) -> float:
        found = f1(predicted, labels, weights)
        return float(np.nanmean(found)) if not np.isnan(found).all() else np.nan

    def micro(weights: np.ndarray) -> float:
        flat = weights.repeat(labels.shape[1])
        return float(f1(predicted.reshape(-1, 1), labels.reshape(-1, 1), flat)[0])

    counts, f1_each = labels.sum(0).tolist(), f1(predicted, labels, np.ones(len(labels)))
    return EvaluationResult(
        dataset=dataset.name,
        images=len(logits),
        skipped=len(predictions.unreadable),
        top1=share,
        top5=share,
        loss=mean(predictions.losses, resamples=resamples),
        mean_average_precision=bootstrap(mean_precision, len(logits), resamples=fewer),
        macro_f1=bootstrap(macro, len(logits), resamples=fewer),
        micro_f1=bootstrap(micro, len(logits), resamples=fewer),
        classes=tuple(
            ClassResult(
                name,
                count,
                average_precision=None if np.isnan(ap) else float(ap),
                f1=None if np.isnan(score) else float(score),
                threshold=float(level),
            )
            for name, count, ap, score, level in zip(
                dataset.classes, counts, each, f1_each, levels, strict=True
            )
        ),
        names=dataset.classes,
        predictions=predictions,
    )


def image_rows(predictions: Predictions, dataset: ImageDataset) -> list[dict[str, Any]]:
    """Give one row per image: its class, the prediction and its probability, or the error."""
    rows: list[dict[str, Any]] = []
    for row, index in enumerate(predictions.indices.tolist()):
        found: dict[str, Any] = {"image": dataset.where(index)}
        if predictions.logits is None:
            best = int(predictions.top[row, 0])
            found["class"] = dataset.classes[predictions.labels[row]]
            found["predicted"] = dataset.classes[best] if best >= 0 else ""
            found["probability"] = float(predictions.confidence[row])
        rows.append({**found, "loss": float(predictions.losses[row]), "error": ""})
    blank = dict.fromkeys(rows[0], "")
    rows += [blank | {"image": bad.where, "error": bad.reason} for bad in predictions.unreadable]
    return rows


def write_csv_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV with their names above, whole or not at all.

    A name that is not UTF-8 is escaped, as messages do.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: encodable(each) if isinstance(each, str) else each for key, each in row.items()}
        )
    write_whole(path, text.getvalue())


def write_class_table(result: EvaluationResult, path: Path) -> None:
    """Write one row per class."""
    write_csv_rows(path, [each.row() for each in result.classes])


def write_evaluation(result: EvaluationResult, dataset: ImageDataset, out: Path) -> None:
    """Write all that there is to know about an evaluation into a folder."""
    from vitrail.plotting.evaluation_plots import (
        draw_confusion,
        draw_reliability,
        make_title,
        save_plot,
    )

    assert result.predictions is not None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made: {error.strerror}") from None
    write_class_table(result, out / "classes.csv")
    write_csv_rows(out / "images.csv", image_rows(result.predictions, dataset))
    if result.confusion is not None and result.calibration is not None:
        said = f"top-1 {result.top1.value:.1%} {result.evaluated_on()}"
        title = make_title(dataset.name, said)
        save_plot(draw_confusion(result.confusion, result.names, title), out, "confusion")
        found = result.calibration
        bins = [(b.low, b.images, b.confidence, b.accuracy) for b in found.bins]
        save_plot(draw_reliability(bins, found.ece, title), out, "reliability")
    write_whole(out / "report.json", write_json(result))
