"""Calibrate a model on held-out images, and keep what they say in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.console import log_line, show_progress
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset, check_one_class, select
from vitrail.data.datasets.open import Data, open_dataset
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.split import sample_order
from vitrail.data.trained_on import record_images
from vitrail.data.transforms.apply import normalize
from vitrail.distributed import choose_device
from vitrail.evaluation.class_matching import match_classes
from vitrail.evaluation.evaluate import check_head
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.inputs import name_data, name_model, open_images, preprocess_of
from vitrail.evaluation.uncertainty.fit_uncertainty import fit_uncertainty
from vitrail.evaluation.uncertainty.novelty import class_means, feature_distance
from vitrail.evaluation.uncertainty.selective import find_threshold
from vitrail.files import check_writable
from vitrail.result import Result, ResultTable, plain_fields
from vitrail.text import expand
from vitrail.training.checkpoints.run_folder import MODEL
from vitrail.training.run_data import open_run_data, read_config
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel, as_checkpoint, as_model
from vitrail.weights.model_folder import RECORD, check_replaceable, load_folder, save_folder
from vitrail.weights.uncertainty_record import Uncertainty, UncertaintyFacts

BATCH = 64
_PARTS = 5  # of images that are likened to each other
MOST = 10_000
"""Training images that the class means are computed of, at most."""
RATES = (0.1, 0.05, 0.02, 0.01)
"""Error rates that the summary lists."""


@dataclass(frozen=True, kw_only=True)
class CalibrationResult(Result):
    """What held-out images said about a model."""

    model: str
    data: str
    images: int
    """Held-out images."""
    temperature: float
    ece_before: float
    """Expected calibration error without the temperature."""
    ece_after: float
    """The same with it, cross-validated."""
    why: str = ""
    """Why the temperature is 1, where it is."""
    answered: dict[str, float | None]
    """For each error rate, the fraction of images that get an answer with --unsure; None where the
    images are too few to tell."""
    out: Path
    """The model folder that keeps it."""
    selected: Selected | None = None
    """How many images of how many these are, and why those."""
    notes: tuple[str, ...] = ()
    """What a person should know before believing the numbers, one line each."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return plain_fields(self)

    def summary(self) -> Iterator[ResultTable | str]:
        """Give the calibration error, and how much is answered at which error rate."""
        rows = [
            (rate, "too few images to tell" if part is None else f"{part:.0%}")
            for rate, part in self.answered.items()
        ]
        yield ResultTable(("error rate of answers", "images answered"), rows)
        on = f"on {self.images:,} images of {self.data}"
        if self.why:
            yield f"no temperature is applied: {self.why}"
            yield f"calibration error {self.ece_before:.2%}, {on}"
        else:
            yield (
                f"calibration error {self.ece_before:.2%} before, {self.ece_after:.2%} after "
                f"temperature {self.temperature:.3f}, {on}"
            )
        if self.selected is not None:
            yield f"calibrated on {self.selected}"
        yield from self.notes
        yield f"kept in {self.out}"
        yield f"next: vitrail predict {self.model} photos/ --unsure 5%"


def calibrate(
    model: AnyModel,
    data: Data,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    batch: int = BATCH,
    device: str | None = None,
    workers: int | None = None,
) -> CalibrationResult:
    """Fit a model's temperature to held-out images, and note when it is right and what it knows.

    `split` is by default the data's own `val`; of data without splits, all that the model was not
    trained on. The other images' features say which ones are like those that it knows; where there
    are no others, these do, in five parts. The result is kept in the model's own folder, or in the
    new one `out`.
    """
    if batch < 1:
        raise InputError(f"--batch must be at least 1, got {batch}")
    folder = _find_folder(model) if out is None else Path(out)
    check_writable(folder, folder=True)
    if out is not None:
        check_replaceable(folder)
    loaded = as_loaded(model)
    _check_calibrated(name_model(model), loaded)
    if split == "train":
        raise InputError("--split train: a model is calibrated on images that it never saw")
    opened = open_images(data, split, (model,))
    held, known = opened.dataset, opened.rest
    if known is None and opened.whole:  # nothing of it was trained on: its own folds are likened
        known = held
    elif known is None:
        known = open_dataset(data, split="train")
    options = {"batch": batch, "device": device, "workers": workers}
    known = held if known is held else _sample(known)
    found = measure_uncertainty(loaded, held, known, **options)
    preprocess = preprocess_of(loaded).read_as(held)
    kept = replace(as_checkpoint(loaded), preprocess=preprocess, uncertainty=found)
    save_folder(kept, folder)
    named = name_model(model) if out is None else str(out)
    shown = {"model": named, "data": name_data(data), "out": folder}
    return _result(found, **shown, selected=opened.selected, notes=opened.notes)


def leave_calibration(folder: Path) -> None:
    """Calibrate a finished run's model on its validation images, where it can be; else say why.

    A run without any, with several labels per image or with parts of its own is left as it is.
    """
    config, place = read_config(folder), folder / MODEL
    if config.task != "classification" or not (config.val_split or config.hold_out):
        return
    try:
        checkpoint = load_folder(place)
        if checkpoint.uncertainty or checkpoint.changed_by or checkpoint.activation != "softmax":
            return
        held, known = _sample(open_run_data(folder, "val")), None
        if held.multilabel or len(held.classes) < 2:
            return
        with suppress(InputError):  # a stream's images are not reached by number
            known = _sample(open_run_data(folder, "train"))
        found = measure_uncertainty(as_model(checkpoint), held, known, device=config.device)
        save_folder(replace(checkpoint, uncertainty=found), place)
    except (InputError, OSError) as error:  # the data may be an object, or have moved
        log_line(f"the model is not calibrated: {error}")
        return
    log_line(_tell(found.facts))


def _tell(facts: UncertaintyFacts) -> str:
    """Say in one line what came of it."""
    before, after = (f"{each:.1%}" for each in (facts.ece_before, facts.ece_after))
    on = f"on {facts.images:,} images of {facts.data}"
    if facts.why:
        return f"no temperature is applied: {facts.why}; calibration error {before} {on}"
    return (
        f"calibrated {on}: temperature {facts.temperature:.3f}, calibration error {before} before, "
        f"{after} after"
    )


def measure_uncertainty(
    loaded: LoadedModel,
    held: ImageDataset,
    known: ImageDataset | None,
    *,
    batch: int = BATCH,
    device: str | None = None,
    workers: int | None = None,
) -> Uncertainty:
    """Run a model over held-out images, and over training images for its class means."""
    options = {"batch": batch, "device": device, "workers": workers}
    found = _measure(loaded, held, known, options)
    record = record_images(held, [])
    if record.kind == "unknown":
        return found
    return replace(found, hashes=torch.from_numpy(record.trained.view(np.int64)))


def _measure(
    loaded: LoadedModel,
    held: ImageDataset,
    known: ImageDataset | None,
    options: dict[str, Any],
) -> Uncertainty:
    check_one_class(held)
    outputs = loaded.model.spec.classes
    means = distances = None
    if known is held:
        features, logits, labels = _run(loaded, held, **options)
        numbers = _outputs(held, loaded)[labels]
        means, distances = class_means(features, numbers, outputs), torch.zeros(len(numbers))
        for part in range(_PARTS):  # no image is likened to a mean that it is in
            ours = torch.arange(len(numbers)) % _PARTS == part
            rest = ~ours
            if ours.any() and rest.any():
                others = class_means(features[rest], numbers[rest], outputs)
                distances[ours] = feature_distance(features[ours], others).float()
        return fit_uncertainty(logits, numbers, data=held.name, means=means, distances=distances)
    if known is not None:
        features, _, labels = _run(loaded, known, **options)
        means = class_means(features, _outputs(known, loaded)[labels], outputs)
    features, logits, labels = _run(loaded, held, **options)
    if means is not None:
        distances = feature_distance(features, means)
    numbers = _outputs(held, loaded)[labels]
    return fit_uncertainty(logits, numbers, data=held.name, means=means, distances=distances)


def _outputs(dataset: ImageDataset, loaded: LoadedModel) -> Tensor:
    """Give the model's output of each class of a dataset."""
    matching = match_classes(dataset, loaded.classes, loaded.model.spec.classes)
    return torch.from_numpy(matching.outputs(len(dataset.classes)))


@torch.inference_mode()
def _run(
    loaded: LoadedModel,
    dataset: ImageDataset,
    *,
    batch: int,
    device: str | None,
    workers: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute features, logits and labels of all readable images."""
    place, preprocess = choose_device(device), preprocess_of(loaded)
    model = loaded.model.to(place).eval()
    batches = EvalBatches(dataset, preprocess, batch=batch)
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    loader = Loader(batches.__getitem__, range(len(batches)), LoaderConfig(workers=workers))
    with show_progress(dataset.name, len(dataset)) as report:
        for number, each in enumerate(loader, 1):
            images = normalize(each.images, preprocess, device=place)
            features, logits = features_and_logits(model, images)
            good = each.weights > 0
            parts = features.float().cpu(), logits.float().cpu(), each.labels
            rows.append((parts[0][good], parts[1][good], parts[2][good]))
            report(min(number * batch, len(dataset)))
    features, logits, labels = (torch.cat(each) for each in zip(*rows, strict=True))
    if not len(labels):
        raise InputError(f"{dataset.name}: no image can be read")
    if not torch.isfinite(logits).all():
        raise InputError("the model's outputs are NaN or infinite; its weights are damaged")
    return features, logits, labels


def features_and_logits(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute both in one pass; a distilled model's second head needs another."""
    features = model.features(images)
    if getattr(model, "distillation_head", None) is not None:
        return features, model(images)
    return features, model.head(features)


def _sample(dataset: ImageDataset) -> ImageDataset:
    """Take as many of each class, and at most `MOST` in all."""
    if len(dataset) <= MOST or dataset.multilabel:
        return dataset
    orders = sample_order(dataset.labels, len(dataset.classes), 0)
    each = max(MOST // len(orders), 1)
    return select(dataset, np.sort(np.concatenate([order[:each] for order in orders])))


def _check_calibrated(name: str, loaded: LoadedModel) -> None:
    check_head(name, loaded)
    if loaded.activation != "softmax":
        raise InputError(
            f"{name} predicts "
            f"{'numbers' if loaded.activation == 'none' else 'several labels per image'}; only a "
            "model of one class per image has a "
            "temperature"
        )


def _find_folder(model: AnyModel) -> Path:
    """Find the folder that a model is in; one that is not in a folder of ours needs --out."""
    if isinstance(model, str | os.PathLike):
        path = expand(os.fspath(model).removeprefix("run:"))
        for folder in (path, path / MODEL):
            if (folder / RECORD).is_file():
                return folder
    raise InputError(f"{name_model(model)} is not a model folder of ours: give --out FOLDER")


def _result(
    found: Uncertainty,
    *,
    model: str,
    data: str,
    out: Path,
    selected: Selected,
    notes: tuple[str, ...],
) -> CalibrationResult:
    facts = found.facts
    return CalibrationResult(
        model=model,
        data=data,
        images=facts.images,
        temperature=facts.temperature,
        ece_before=facts.ece_before,
        ece_after=facts.ece_after,
        why=facts.why,
        answered={f"{rate:.0%}": answered_fraction(found, rate) for rate in RATES},
        out=out,
        selected=selected,
        notes=notes,
    )


def answered_fraction(found: Uncertainty, rate: float) -> float | None:
    """Compute the fraction of held-out images that are answered at an error rate, if known."""
    confidence, correct = found.confidence.numpy(), found.correct.numpy()
    try:
        threshold = find_threshold(confidence, correct, rate)
    except InputError:
        return None
    return float((confidence > threshold).mean())
