"""Classify image files: the command `vitrail predict` as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vitrail.config import InputError
from vitrail.console import log_line, show_progress
from vitrail.data.datasets.open import Data
from vitrail.data.image_inputs import find_images, is_one
from vitrail.deploy.backends.backends import REFERENCE
from vitrail.deploy.backends.selection import (
    AUTO,
    PrecisionChoice,
    check_backend,
    check_calibration,
    select_backend,
    select_precision,
)
from vitrail.evaluation.uncertainty.selective import parse_rate
from vitrail.predictor import ImageLike, ModelLike, Prediction, Predictor
from vitrail.predictor.doubts import answers_nothing
from vitrail.predictor.prediction_files import csv_writer, parquet_writer
from vitrail.result import Result, ResultTable
from vitrail.weights.text.prompts import Texts


@dataclass(frozen=True)
class PredictionResult(Result):
    """The predictions for many images."""

    images: int
    """Number of images that were classified."""
    predictions: tuple[Prediction, ...]
    """One per image, in their order; without `keep` none."""
    unreadable: tuple[Prediction, ...]
    """Those that could not be read, with the reason."""

    def summary(self) -> Iterable[ResultTable | str]:
        """Give a table of classes, or numbers, and the images that could not be read."""
        if numbers := [each for each in self.predictions if each.values is not None]:
            cells = [
                (each.path, *(f"{value:.6g}" for value in (each.values or {}).values()))
                for each in numbers
            ]
            yield ResultTable(("image", *(numbers[0].values or {})), cells)
        doubted = any(each.doubts() for each in self.predictions)
        rows = [
            (
                "" if rank else each.path,
                *score.cells(),
                *([] if not doubted else ["" if rank else "; ".join(each.doubts())]),
            )
            for each in self.predictions
            for rank, score in enumerate(each.top)
        ]
        if rows:
            cells = len(rows[0]) - doubted
            columns = (*("image", "class", "probability", "predicted")[:cells], *["note"] * doubted)
            yield ResultTable(columns, rows, justify="left")
        if withheld := sum(each.unsure is True for each in self.predictions):
            yield f"unsure: {withheld:,} of {self.images:,} images"
        for each in self.unreadable:
            yield f"unreadable: {each.path}: {each.error}"


def predict(
    model: ModelLike,
    images: ImageLike | Sequence[ImageLike],
    *,
    classes: Texts | None = None,
    templates: Texts | None = None,
    patches: int | None = None,
    unsure: float | str | None = None,
    top: int = 5,
    csv: str | Path | None = None,
    parquet: str | Path | None = None,
    backend: str = REFERENCE,
    precision: PrecisionChoice = "float32",
    data: Data | None = None,
    device: str | None = None,
    keep: bool = True,
    on_prediction: Callable[[Prediction], None] = lambda prediction: None,
) -> PredictionResult:
    """Classify images, given as files, folders or pixels; unreadable ones have an error.

    `classes` are given as text to a CLIP or SigLIP ("cat,dog", a list, or a file with one per
    line), with prompt `templates` such as "a photo of a {}.". `patches` keeps the images' aspect
    ratio, within a patch budget. `unsure`, such as "5%", withholds answers so that at most that
    fraction of the others is wrong, for a model that was calibrated. `precision` is that of matrix
    products; int8 is calibrated on training images of `data`, auto compares on its others.
    `on_prediction` gets each prediction as soon as it is there; without `keep`, the result holds
    only the unreadable ones. InputError if no image can be read.
    """
    given = [images] if is_one(images) else list(images)
    if not given:
        raise InputError("no images given; give files or a folder")
    if top < 1:
        raise InputError(f"--top {top}: expected at least 1")
    if csv is not None and csv == parquet:
        raise InputError(f"--csv and --parquet are both {csv}; give two names")
    check_backend(backend)
    check_calibration(precision, backend, data)
    rate = None if unsure is None else parse_rate(unsure)
    files: list[ImageLike] = []
    for each in given:
        files += find_images([each]) if isinstance(each, str | Path) else [each]
    if device is None and (backend not in (REFERENCE, AUTO) or precision == "int8"):
        device = "cpu"  # where the others run
    predictor = Predictor.load(model, classes=classes, templates=templates, device=device)
    if patches is not None:
        predictor = predictor.with_patches(patches)
    if rate is not None:
        predictor = predictor.with_unsure(rate)
        if answers_nothing(predictor.doubts):
            log_line(f"no answer of {predictor.name} is sure enough for {rate:.4g}: all are unsure")
    count = len(files)
    predictor = select_backend(predictor, backend, precision=precision, images=count, log=log_line)
    if backend == REFERENCE:
        predictor = select_precision(predictor, precision, data, images=count, log=log_line)
    kept: list[Prediction] = []
    unreadable: list[Prediction] = []
    with ExitStack() as stack:
        report = stack.enter_context(show_progress("predicting", len(files)))
        writers = [stack.enter_context(csv_writer(Path(csv), predictor.targets))] if csv else []
        if parquet:
            writers.append(stack.enter_context(parquet_writer(Path(parquet), predictor.targets)))
        for done, prediction in enumerate(predictor.predictions(files, top=top), 1):
            if prediction.error is not None:
                unreadable.append(prediction)
            if keep:
                kept.append(prediction)
            for write in writers:
                write(prediction)
            on_prediction(prediction)
            report(done)
        if len(unreadable) == len(files):
            first = unreadable[0]
            more = f", and {len(files) - 1:,} more" if len(files) > 1 else ""
            raise InputError(f"no image could be read: {first.path}: {first.error}{more}")
    return PredictionResult(len(files) - len(unreadable), tuple(kept), tuple(unreadable))
