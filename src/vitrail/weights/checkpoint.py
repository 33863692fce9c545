"""A model's spec, weights, classes and preprocessing, and whether they fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from vitrail.config import InputError
from vitrail.data.trained_on import TrainedOn
from vitrail.data.transforms.preprocess import LARGEST_SIDE, Preprocess
from vitrail.models import BiT, Spec, ViT, build
from vitrail.models.cost.total import cost_of
from vitrail.weights.formats.mae_decoder import Decoder
from vitrail.weights.uncertainty_record import Uncertainty, check_uncertainty

Activation = Literal["softmax", "sigmoid", "none"]
"""What makes probabilities of a model's logits: softmax for one class per image, sigmoid for any
number of labels per image."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where weights come from."""

    source: str
    """What they were asked for by."""
    sha256: str
    """Hash of the file that was read; empty where it was only loaded, not kept."""
    format: str
    """Whose names the file uses."""
    changes: tuple[str, ...] = ()
    """What was done to the weights since, one line per change."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that a model needs: its spec, weights, classes and preprocessing."""

    spec: Spec
    tensors: dict[str, Tensor]
    """All parameters, under our names."""
    classes: tuple[str, ...] | None = None
    """The names of the head's outputs, in their order."""
    preprocess: Preprocess | None = None
    activation: Activation = "softmax"
    """What the loss that it was trained with makes of its logits; `none` if they are numbers."""
    thresholds: tuple[float, ...] | None = None
    """For each output of a sigmoid model, the probability from which on an image has the label,
    chosen on held-out images; 0.5 where there are none."""
    uncertainty: Uncertainty | None = None
    """Its temperature, and how sure and how often right it was on held-out images."""
    trained_on: TrainedOn | None = None
    """Which images it was trained on and which were held out; None where no record says so."""
    provenance: Provenance | None = None
    decoder: Decoder | None = None
    """What MAE predicts pixels with, where the weights come with it."""
    changed_by: str | None = None
    """The import path of what put parts of its own into the model, where something did."""

    def build(self, change: Callable[[Any], Any] | None = None) -> ViT | BiT:
        """Build the model around the tensors, without a copy, in eval mode.

        One with parts of its own needs the `change` that puts them in.
        """
        if change is not None:
            model = change(build(self.spec))
            try:
                model.load_state_dict(self.tensors)
            except RuntimeError as error:
                said = " ".join(str(error).split())
                raise InputError(f"the weights do not fit the changed model: {said}") from None
            return model.eval()
        if self.changed_by is not None:
            raise InputError(
                f"the model has parts of its own, put in by {self.changed_by}; "
                f"load it from Python: vitrail.load(…, change=that function)"
            )
        model = make_empty(self)
        model.load_state_dict(self.tensors, assign=True)
        return model.eval()


def make_empty(checkpoint: Checkpoint) -> ViT | BiT:
    """Make the model without memory; refuse weights that are not its own, all misfits at once."""
    model = build(checkpoint.spec, device="meta")
    if checkpoint.changed_by is not None:  # what its parts hold only they know
        return model
    problems = list(_find_misfits(model.state_dict(), checkpoint.tensors))
    if problems:
        more = [f"and {len(problems) - 10} more"] if len(problems) > 10 else []
        listed = "; ".join([*problems[:10], *more])
        raise InputError(f"the weights do not fit {checkpoint.spec}: {listed}")
    return model


def _find_misfits(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in wanted.items():
        shape = tuple(tensor.shape)
        if name not in given:
            yield f"missing {name} {shape}"
        elif tuple(given[name].shape) != shape:
            yield f"{name} has shape {tuple(given[name].shape)}, expected {shape}"
        elif not given[name].is_floating_point():
            yield f"{name} holds {given[name].dtype}, expected floating-point numbers"
    yield from (f"unknown {name[:80]!r}" for name in given if name not in wanted)


def check_size(spec: Spec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a spec that a file's tensors are far from filling, or whose images never fit.

    What little is missing is listed later.
    """
    if max(spec.image) > LARGEST_SIDE:
        size = "x".join(str(side)[:20] for side in spec.image)
        raise InputError(f"images of {size} pixels; the limit is {LARGEST_SIDE} on a side")
    blocks = getattr(spec, "depth", 0) + sum(getattr(spec, "stages", ()))
    if 4 * blocks > len(shapes):  # even the smallest block has more
        raise InputError(f"{blocks:_} blocks can't be made of {len(shapes):_} tensors")
    there = sum(map(math.prod, shapes.values()))
    if (needed := cost_of(spec).parameters) > 1000 * there:
        raise InputError(f"{needed:_} parameters can't be made of {there:_} numbers")


def check_outputs(checkpoint: Checkpoint) -> None:
    """Refuse class names, thresholds or calibration that are not of the model's outputs."""
    classes, outputs = checkpoint.classes, checkpoint.spec.classes
    if classes is not None and len(classes) != outputs:
        raise InputError(f"{len(classes)} class names for {outputs} outputs of {checkpoint.spec}")
    if checkpoint.uncertainty is not None:
        check_uncertainty(checkpoint.uncertainty, outputs)
    if (thresholds := checkpoint.thresholds) is None:
        return
    if checkpoint.activation != "sigmoid":
        raise InputError(
            f"thresholds require the activation sigmoid; this model has {checkpoint.activation}"
        )
    if len(thresholds) != outputs or not all(0 <= each <= 1 for each in thresholds):
        raise InputError(f"expected {outputs} thresholds in [0, 1], got {[*thresholds][:10]}")
