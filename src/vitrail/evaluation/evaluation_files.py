"""An evaluation as files: tables by class and by image, plots, and everything as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.evaluation_result import EvaluationResult
from vitrail.evaluation.metrics.scores import DRAWN, confusion_matrix, predict_labels
from vitrail.evaluation.regression_result import RegressionResult
from vitrail.files import make_folder, write_whole
from vitrail.result import write_json
from vitrail.text import encodable


def image_rows(result: EvaluationResult, dataset: ImageDataset) -> list[dict[str, Any]]:
    """Give one row per image: its class, the prediction and its probability, or the error.

    Where images have several labels, class and prediction are lists: a|b.
    """
    found = result.predictions
    assert found is not None
    rows: list[dict[str, Any]] = []
    if isinstance(result, RegressionResult) and found.logits is not None:
        for true, predicted in zip(found.labels.tolist(), found.logits.tolist(), strict=True):
            row: dict[str, Any] = {}
            for name, own, guess in zip(result.names, true, predicted, strict=True):
                row |= {name: own, f"{name} predicted": guess}
            rows.append(row)
    elif found.logits is None:
        names = [*dataset.classes, ""]  # the last for an output that stands for no class
        for label, best, confidence in zip(
            found.labels, found.top[:, 0], found.confidence.tolist(), strict=True
        ):
            rows.append({"class": names[label], "predicted": names[best]})
            rows[-1]["probability"] = confidence
    else:
        levels = [each.threshold or 0.0 for each in result.classes]
        pairs = zip(found.labels > 0, predict_labels(found.logits, levels), strict=True)
        for own, predicted in pairs:
            rows.append({"class": _join_names(dataset, own)})
            rows[-1]["predicted"] = _join_names(dataset, predicted)
    wheres = map(dataset.where, found.indices.tolist())
    rows = [
        {"image": where, **row, "loss": loss, "error": ""}
        for where, row, loss in zip(wheres, rows, found.losses.tolist(), strict=True)
    ]
    blank = dict.fromkeys(rows[0], "")
    return rows + [blank | {"image": bad.where, "error": bad.reason} for bad in found.unreadable]


def _join_names(dataset: ImageDataset, chosen: np.ndarray) -> str:
    return "|".join(dataset.classes[number] for number in np.flatnonzero(chosen))


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
    """Write one row per class, or per target."""
    make_folder(path.parent)
    listed = result.targets if isinstance(result, RegressionResult) else result.classes
    write_csv_rows(path, [each.row() for each in listed])


def write_evaluation(result: EvaluationResult, dataset: ImageDataset, out: Path) -> None:
    """Write an evaluation's tables, plots and JSON into a folder."""
    from vitrail.plotting.evaluation_plots import (
        draw_confusion,
        draw_reliability,
        draw_scatter,
        make_title,
        save_plot,
    )

    write_class_table(result, out / result.table)
    if isinstance(result, RegressionResult) and result.predictions is not None:
        true, predicted = result.predictions.labels, result.predictions.logits
        assert predicted is not None
        title = make_title(dataset.name, result.evaluated_on())
        save_plot(draw_scatter(true, predicted, result.names, title), out, "scatter")
    write_csv_rows(out / "images.csv", image_rows(result, dataset))
    if result.confusion is not None and result.calibration is not None:
        assert result.top1 is not None
        said = f"top-1 {result.top1.value:.1%} {result.evaluated_on()}"
        title = make_title(dataset.name, said)
        if len(result.names) <= DRAWN:
            matrix = confusion_matrix(result.confusion, len(result.names))
            save_plot(draw_confusion(matrix, result.names, title), out, "confusion")
        found = result.calibration
        bins = [(b.low, b.images, b.confidence, b.accuracy) for b in found.bins]
        save_plot(draw_reliability(bins, found.ece, title), out, "reliability")
    write_whole(out / "report.json", write_json(result))
