"""A probe as a model: the frozen backbone with the probe's linear head, in a model folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.checks.output_place import check_output_place
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data
from vitrail.data.split import sample_order
from vitrail.data.trained_on import record_images
from vitrail.evaluation.features.image_features import Features
from vitrail.evaluation.features.mapped_rows import split_rows, take_rows
from vitrail.evaluation.inputs import preprocess_of
from vitrail.evaluation.uncertainty.fit_uncertainty import fit_uncertainty
from vitrail.evaluation.uncertainty.novelty import class_means, feature_distance
from vitrail.files import check_writable
from vitrail.models import ViTSpec
from vitrail.weights.checkpoint import Provenance
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, as_checkpoint
from vitrail.weights.model_folder import check_replaceable, save_folder
from vitrail.weights.trained_on_record import extend_record
from vitrail.weights.uncertainty_record import Uncertainty

_FOLDS = 5
_MOST = 20_000  # images, above which one fold is enough to calibrate on; of it, as many


@dataclass(frozen=True)
class LinearHead:
    """A linear classifier of features as the model computes them; float64."""

    weight: Tensor
    """(classes, width)."""
    bias: Tensor
    """(classes)."""

    def logits(self, features: Tensor) -> Tensor:
        """Score images (n, width): (n, classes)."""
        blocks = split_rows(len(features), features.shape[1])
        return torch.cat([features[b].double() @ self.weight.T + self.bias for b in blocks])

    def scaled(self, scale: float) -> LinearHead:
        """Multiply the logits by a number."""
        return LinearHead(self.weight * scale, self.bias * scale)


def unstandardize(weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor) -> LinearHead:
    """Make a head for features as they are from one (width, classes) for standardized ones."""
    weight = weight.double() / std[:, None]
    return LinearHead(weight.T, bias.double() - mean @ weight)


FitHead = Callable[[Tensor, Tensor], LinearHead]
"""Fits a head to features (n, width) and class numbers (n)."""


def folds(labels: np.ndarray, classes: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split positions into the rest and a held-out fifth of each class, five times.

    A class's only image is never held out. With many images only one fold is given, and of
    that at most as many as calibrate well.
    """
    fold_of = np.full(len(labels), -1)
    for order in sample_order(labels, classes, seed):
        if len(order) > 1:
            fold_of[order] = np.arange(len(order)) % _FOLDS
    for fold in range(_FOLDS if len(labels) <= _MOST else 1):
        held = np.flatnonzero(fold_of == fold)
        held = held[:: -(-len(held) // _MOST) or 1]
        if len(held):
            yield torch.from_numpy(np.flatnonzero(fold_of != fold)), torch.from_numpy(held)


def check_probe_out(out: str | Path | None, features: str, data: Data) -> None:
    """Refuse a model folder that can't be written, before the work begins."""
    if out is None:
        return
    if features != "pre-logits":
        raise InputError(
            f"--out requires --features pre-logits, which a model's head reads; got {features}"
        )
    check_writable(Path(out), folder=True)
    check_output_place(out, data)
    check_replaceable(Path(out))


def calibrate_head(
    head: LinearHead, train: Features, rows: Tensor | None, fit: FitHead, seed: int
) -> tuple[LinearHead, Uncertainty | None]:
    """Scale a head so that its probabilities are as often right as they say: temperature 1.

    Heads fitted to four fifths of its images (`rows` of `train`, or all) score the others, and
    class means of those measure their distance. None where no image could be held out.
    """
    x, y = torch.from_numpy(train.values), torch.from_numpy(train.labels)
    if rows is not None:
        x, y = take_rows(x, rows), y[rows]
    classes, parts = len(train.classes), list[tuple[Tensor, Tensor, Tensor]]()
    for rest, held in folds(y.numpy(), classes, seed):
        known, others = take_rows(x, rest), take_rows(x, held)
        distances = feature_distance(others, class_means(known, y[rest], classes))
        parts.append((fit(known, y[rest]).logits(others), y[held], distances))
    if not parts:
        return head, None
    logits, labels, distances = (torch.cat(each) for each in zip(*parts, strict=True))
    data, means = f"{train.name}, cross-validated", class_means(x, y, classes)
    plain = fit_uncertainty(logits, labels, data=data)
    logits = logits / plain.temperature
    found = fit_uncertainty(logits, labels, data=data, means=means, distances=distances)
    facts = replace(found.facts, temperature=1.0, ece_before=plain.facts.ece_before)
    facts = replace(facts, why=plain.facts.why)
    return head.scaled(1 / plain.temperature), replace(found, facts=facts)


def write_probe(
    model: AnyModel,
    head: LinearHead,
    train: Features,
    out: str | Path,
    said: str,
    uncertainty: Uncertainty | None = None,
    *,
    datasets: tuple[ImageDataset, ImageDataset] | None = None,
) -> Path:
    """Write a model folder of the frozen backbone and the head; `said` is how it was fitted.

    Of `datasets`, the first is recorded as trained on and the second as held out.
    """
    record = None
    loaded = as_loaded(model)
    checkpoint = as_checkpoint(loaded)
    spec, classes = checkpoint.spec, len(train.classes)
    dtype = next(iter(checkpoint.tensors.values())).dtype
    tensors = {k: t for k, t in checkpoint.tensors.items() if not k.startswith(_HEADS)}
    weight, bias = head.weight.to(dtype), head.bias.to(dtype)
    if isinstance(spec, ViTSpec):
        spec = replace(spec, head_bias=True)
        if spec.distilled:  # the two heads' mean: features are the class token's
            second = torch.zeros_like(weight), torch.zeros_like(bias)
            tensors |= _name("distillation_head.output", *second)
            weight, bias = 2 * weight, 2 * bias
    tensors |= _name("head.output", weight, bias)
    before = checkpoint.provenance or Provenance(source=str(spec), sha256="", format="vitrail")
    provenance = replace(before, changes=(*before.changes, said))
    if datasets is not None:
        learned, held = datasets
        record = extend_record(checkpoint.trained_on, record_images(learned, [held]), provenance)
    save_folder(
        replace(
            checkpoint,
            spec=replace(spec, classes=classes),
            tensors=tensors,
            classes=train.classes,
            preprocess=replace(preprocess_of(loaded), reading=train.reading),
            activation="softmax",
            thresholds=None,
            uncertainty=uncertainty,
            provenance=provenance,
            trained_on=record,
        ),
        Path(out),
    )
    return Path(out)


_HEADS = ("head.output.", "distillation_head.output.")


def _name(layer: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {f"{layer}.weight": weight, f"{layer}.bias": bias}
