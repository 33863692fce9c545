"""A model with all that came with its weights, and how it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.config import InputError
from vitrail.data import Preprocess
from vitrail.data.image_inputs import InputTransform
from vitrail.data.trained_on import TrainedOn
from vitrail.data.transforms.preprocess import default_preprocess
from vitrail.models import BiT, ViT, ViTSpec, build
from vitrail.weights.checkpoint import Activation, Checkpoint, Provenance
from vitrail.weights.model_folder import save_folder
from vitrail.weights.uncertainty_record import Uncertainty


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to use, and what came with its weights."""

    model: ViT | BiT
    classes: tuple[str, ...] | None
    preprocess: Preprocess | None
    provenance: Provenance | None
    activation: Activation = "softmax"
    """What makes probabilities of the model's logits; `none` if they are numbers themselves."""
    thresholds: tuple[float, ...] | None = None
    """For each output of a sigmoid model, the probability from which on an image has the label."""
    uncertainty: Uncertainty | None = None
    """Its temperature, and how sure and how often right it was on held-out images."""
    trained_on: TrainedOn | None = None
    """Which images it was trained on and which were held out; None where no record says so."""

    @property
    def transform(self) -> InputTransform:
        """Makes the model's input of an image: `loaded.transform(image)`, as in evaluation.

        It has no part of the model, so that a torch Dataset may take it to other processes.
        """
        if self.preprocess is None:
            raise InputError(
                f"the weights of {self.model.spec.name} came without preprocessing; set it: "
                "dataclasses.replace(loaded, preprocess=vitrail.Preprocess(…))"
            )
        return InputTransform(self.preprocess)

    @property
    def temperature(self) -> float:
        """What logits are divided by to give probabilities; 1 unless it was calibrated."""
        return 1.0 if self.uncertainty is None else self.uncertainty.temperature


AnyModel = str | os.PathLike[str] | LoadedModel | ViT | BiT
"""What a function takes as a model: text (a run or model folder, a source of weights), a loaded
model, or a bare one, whose classes and preprocessing are unknown."""


def with_patches(loaded: LoadedModel, patches: int) -> LoadedModel:
    """Let a model take images at their own aspect ratio, within a patch budget (NaFlex)."""
    spec = loaded.model.spec
    if patches < 1:
        raise InputError(f"--patches must be at least 1, got {patches}")
    mixed = isinstance(spec, ViTSpec) and spec.takes_mixed_sizes
    if not isinstance(spec, ViTSpec) or not mixed or spec.patch[0] != spec.patch[1]:
        raise InputError(f"--patches requires a ViT with square patches, got {spec.name}")
    preprocess = loaded.preprocess or default_preprocess(spec.image, spec.channels)
    budget = replace(preprocess, patches=patches, patch_size=spec.patch[0])
    return replace(loaded, preprocess=budget)


def as_checkpoint(model: LoadedModel | ViT | BiT) -> Checkpoint:
    """Take all that is to be kept of a model, without a copy of its weights."""
    loaded = model if isinstance(model, LoadedModel) else LoadedModel(model, None, None, None)
    spec, tensors = loaded.model.spec, dict(loaded.model.state_dict())
    with torch.device("meta"):
        wanted = build(spec).state_dict()
    if {name: t.shape for name, t in wanted.items()} != {n: t.shape for n, t in tensors.items()}:
        raise InputError(
            f"the model has other parameters than a {spec.name}, perhaps a head of your own; "
            "keep its state_dict() with torch.save"
        )
    rest = {field.name: getattr(loaded, field.name) for field in fields(loaded)[1:]}
    return Checkpoint(spec=spec, tensors=tensors, **rest)


def as_model(checkpoint: Checkpoint, change: Callable[[Any], Any] | None = None) -> LoadedModel:
    """Build a checkpoint's model, without a copy of its weights; `change` as for its `build`."""
    rest = {field.name: getattr(checkpoint, field.name) for field in fields(LoadedModel)[1:]}
    return LoadedModel(checkpoint.build(change), **rest)


def save(model: LoadedModel | ViT | BiT, folder: str | os.PathLike[str]) -> Path:
    """Write a model's folder, whole or not at all: what `load` and every command read."""
    save_folder(as_checkpoint(model), Path(folder))
    return Path(folder)
