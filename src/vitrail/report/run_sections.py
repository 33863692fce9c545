"""The sections of a run's report: what it reached, and how it got there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.config import InputError
from vitrail.data.class_balance import describe_imbalance
from vitrail.plotting.inspection_plots import Curves, draw_curves, draw_predictions
from vitrail.report.html_page import ReportSection, table_card
from vitrail.report.report_inputs import ReportInputs
from vitrail.report.verdict import show_verdict
from vitrail.training.checkpoints.run_folder import RECONSTRUCTIONS, RESULT, read_result
from vitrail.training.logging.metrics_logger import METRICS
from vitrail.training.run_data import open_run_data, read_config
from vitrail.training.train_config import TrainConfig


@dataclass(frozen=True)
class RunSummary:
    """A run's settings, and its result where it is finished."""

    folder: Path
    config: TrainConfig
    result: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    def describe(self) -> str:
        """Say in a line what was trained and what it reached."""
        config, result = self.config, self.result or {}
        start = f", fine-tuned from {config.weights}" if config.weights else ""
        text = f"Trained on {config.data}{start}."
        if (top1 := result.get("top1")) is not None:
            images = f"{result['images']:,} validation images"
            text += f" Top-1 accuracy {top1:.2%} on {images} after {result['steps']:,} steps."
        elif (precision := result.get("map")) is not None:
            images = f"{result['images']:,} validation images"
            text += f" mAP {precision:.2%} on {images} after {result['steps']:,} steps."
        elif (score := result.get("r2")) is not None:
            images = f"{result['images']:,} validation images"
            text += f" R2 {score:.3f} on {images} after {result['steps']:,} steps."
        elif (loss := result.get("loss")) is not None:
            text += f" Validation loss {loss:.4g} after {result['steps']:,} steps."
        return text


def read_run(folder: Path) -> RunSummary:
    """Read a run's settings and result."""
    path, result = folder / RESULT, None
    if path.exists():
        try:
            result = read_result(path)
            result |= {name: int(result[name]) for name in ("steps", "images")}
        except (ValueError, LookupError, TypeError):
            raise InputError(
                f"{path} is damaged; expected what training wrote: remove it and train with the "
                "same command again, which takes it from the last checkpoint"
            ) from None
    return RunSummary(folder, read_config(folder), result)


def show_run(
    run: RunSummary, inputs: ReportInputs, mistakes: ReportSection
) -> Iterator[ReportSection]:
    """Show what a run reached, its mistakes, its curves, and all its numbers."""
    training = show_training(run.folder)
    if run.result is not None:
        curves = read_curves(run.folder)
        yield show_verdict(run.result, mistakes, curves)
        if (test := run.result.get("test")) is not None:
            yield _show_test(test)
        training.cards.append(_result_card(run, run.result, inputs))
    yield from (mistakes, training)


def _show_test(test: dict[str, Any]) -> ReportSection:
    """Show what the model reached on images that chose nothing."""
    form = ".3f" if test["metric"] == "R2" else ".2%"
    value, low, high = (format(each, form) for each in (test["value"], *test["interval"]))
    rows = {
        test["metric"]: f"{value} (95 % interval {low} to {high})",
        "images": f"{test['images']:,} of {test['of']:,}, {test['why']}",
        "data": test["data"],
    }
    rows |= {"note" if n == 1 else f"note {n}": said for n, said in enumerate(test["notes"], 1)}
    section = ReportSection("Test set", data=dict(test), narrow=True)
    section.cards.append(table_card("Scored once, at the end", rows))
    return section


def _result_card(run: RunSummary, result: dict[str, Any], inputs: ReportInputs) -> str:
    """List all numbers of a run, and what was run."""
    rows = dict[str, str]()
    named = {
        "top1": "top-1 accuracy",
        "top5": "top-5 accuracy",
        "macro_accuracy": "macro accuracy",
        "map": "mean average precision",
        "macro_f1": "macro F1",
        "micro_f1": "micro F1",
    }
    rows |= {
        name: f"{result[key]:.2%}" for key, name in named.items() if result.get(key) is not None
    }
    errors = {"r2": "R2", "mae": "mean absolute error", "rmse": "root mean square error"}
    rows |= {
        name: f"{result[key]:.4g}" for key, name in errors.items() if result.get(key) is not None
    }
    for shots, accuracy in (result.get("fewshot") or {}).items():
        rows[f"{shots}-shot accuracy"] = f"{accuracy:.2%} on {run.config.fewshot.data}"
    if result.get("loss") is not None:
        rows["loss"] = f"{result['loss']:.4g}"
    if result["images"]:
        skipped = result.get("skipped")
        more = f", {skipped:,} unreadable ones skipped" if skipped else ""
        rows["validation images"] = f"{result['images']:,}{more}"
    if inputs.dataset is not None:
        rows["validation data"] = inputs.dataset.name
    rows |= {"steps": f"{result['steps']:,}", "model": run.config.model, "data": run.config.data}
    if run.config.weights:
        rows["fine-tuned from"] = run.config.weights
    labeled = inputs.dataset is not None and not inputs.dataset.regression
    if labeled and inputs.dataset is not None and len(inputs.dataset.classes) > 1:
        with suppress(InputError):  # what it was trained on may have moved
            images = open_run_data(run.config, "train")
            rows["training classes"] = f"{describe_imbalance(images)}; balance {run.config.balance}"
    return table_card("The run in numbers", rows)


def show_training(run: Path) -> ReportSection:
    """Show a run's curves, and what it predicts where it learns without labels."""
    section, curves = ReportSection("Training", key="training"), read_curves(run)
    if curves:
        last = {  # of those that are numbers: a gradient of float16 may overflow
            name: float(values[-1])
            for name, (_, values) in curves.items()
            if np.isfinite(values[-1])
        }
        section.draw(draw_curves(curves), last=last)
    if (drawn := run / RECONSTRUCTIONS).exists():
        try:
            with Image.open(drawn, formats=("PNG",)) as image:
                sheet = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError):
            raise InputError(f"{drawn} is damaged; remove it for a report without it") from None
        section.draw(draw_predictions(sheet))
    return section


def read_curves(folder: Path) -> Curves:
    """Read what a run measured, by name: steps and values, which may be NaN."""
    path = folder / METRICS
    found: dict[str, list[tuple[int, float]]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            for name, value in row.items():
                if name not in ("step", "epoch"):
                    found.setdefault(name, []).append((int(row["step"]), float(value)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a run folder") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError(f"{path} is damaged; expected lines that training wrote") from None
    columns = {name: np.array(rows, float).T for name, rows in found.items()}
    return {name: (steps, values) for name, (steps, values) in columns.items()}
