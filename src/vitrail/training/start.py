"""The weights that a run starts from: pre-trained ones fitted to its task, or fresh ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Preprocess, default_preprocess
from vitrail.models import Spec, ViTSpec, build, parse
from vitrail.training.train_config import PreprocessConfig, TrainConfig
from vitrail.weights.adapt import adapt_to_model
from vitrail.weights.checkpoint import Checkpoint, Provenance
from vitrail.weights.load import read_checkpoint
from vitrail.weights.trained_on_record import TRAINED


def start_weights(
    config: TrainConfig, classes: Sequence[str], checkpoint: Checkpoint | None = None
) -> Checkpoint:
    """Fit pre-trained weights to a run's classes, or initialize fresh ones.

    `checkpoint` has the weights that the settings name, where they were read already. Without
    classes the model gets as many outputs as its name says, by default no head.
    """
    spec = parse(config.model)
    named = any(option.startswith("classes=") for option in config.model.split(","))
    outputs = len(classes) or (spec.classes if named else 0)
    made = Provenance(source=f"run:{config.out}", sha256="", format="vitrail")
    if config.weights is None:
        model = build(spec, classes=outputs)
        start = Checkpoint(spec=model.spec, tensors=dict(model.state_dict()))
    else:
        read = checkpoint or read_checkpoint(config.weights)
        head = "replace" if config.tune.head == "probe" else config.tune.head
        start = adapt_to_model(read, spec, classes=classes or outputs, head=head)
        made = start.provenance or made
    if config.loss.head_bias:
        start = _set_head_bias(start, config.loss.head_bias)
    made = replace(made, changes=(*made.changes, f"{TRAINED}{config.data}"))
    plain = default_preprocess(start.spec.image, start.spec.channels)
    preprocess = _change(start.preprocess or plain, config.preprocess, start.spec)
    return replace(start, preprocess=preprocess, provenance=made)


def _set_head_bias(start: Checkpoint, value: float) -> Checkpoint:
    """Begin fresh biases of the head with a value; those that weights came with stay."""
    key = "head.output.bias"
    if key not in start.tensors:
        raise InputError(f"loss.head_bias requires a head with a bias, got {start.spec.name}")
    bias = start.tensors[key]
    return replace(start, tensors={**start.tensors, key: bias.masked_fill(bias == 0, value)})


def _change(preprocess: Preprocess, config: PreprocessConfig, spec: Spec) -> Preprocess:
    """Fit images otherwise, where settings say so."""
    budget = preprocess.patches if config.patches is None else config.patches
    if budget:
        mixed = isinstance(spec, ViTSpec) and spec.takes_mixed_sizes
        if not isinstance(spec, ViTSpec) or not mixed or spec.patch[0] != spec.patch[1]:
            raise InputError(
                f"preprocess.patches requires a ViT with square patches, got {spec.name}; set it "
                "to 0 for images of one size"
            )
        preprocess = replace(preprocess, patch_size=spec.patch[0])
    for name, values in {"mean": config.mean, "std": config.std}.items():
        if values is not None and len(values) != spec.channels:
            raise InputError(
                f"preprocess.{name} requires a number for each of the model's {spec.channels} "
                f"channels, got {len(values)}"
            )
    return replace(
        preprocess,
        fit=config.fit or preprocess.fit,
        mean=preprocess.mean if config.mean is None else config.mean,
        std=preprocess.std if config.std is None else config.std,
        crop=preprocess.crop if config.crop is None else config.crop,
        interpolation=config.interpolation or preprocess.interpolation,
        patches=budget,
    )
