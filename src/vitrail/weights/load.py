"""Load a model from a source: recognize the format, infer the spec, read, adapt to the task."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data import Preprocess
from vitrail.models import Spec
from vitrail.models.names import as_size, parse_said
from vitrail.models.spec import Size, ViTSpec
from vitrail.weights.adapt import adapt_checkpoint
from vitrail.weights.checkpoint import Checkpoint, Provenance
from vitrail.weights.class_names import imagenet_classes
from vitrail.weights.files.shards import open_checkpoint
from vitrail.weights.files.tensor_files import (
    WeightsFile,
    check_numbers,
    sha256_of,
    weights_in_memory,
)
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.keymap import Tensors, cut_name, read_table
from vitrail.weights.formats.known_formats import FORMATS, read_classes, read_preprocess
from vitrail.weights.formats.mae_decoder import find_decoder, is_decoders
from vitrail.weights.identify import agree, gather_facts, identify, unwrap_names
from vitrail.weights.loaded import AnyModel, LoadedModel, as_checkpoint, as_model, with_patches
from vitrail.weights.model_folder import load_folder, load_folder_spec
from vitrail.weights.multilabel import read_multilabel
from vitrail.weights.sources.resolve import resolve
from vitrail.weights.sources.resolved import Resolved
from vitrail.weights.transfer import HeadMode


def load(
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    format: str | None = None,
    model: str | None = None,
    classes: int | Sequence[str] | None = None,
    image: str | int | Size | None = None,
    channels: int | None = None,
    patch: str | int | Size | None = None,
    head: HeadMode = "replace",
    dropout: float | None = None,
    stochastic_depth: float | None = None,
    change: Callable[[Any], Any] | None = None,
) -> LoadedModel:
    """Load a model in eval mode, fitted to a new task where one is described.

    The source is text, or a state dict in memory, whose `format` ("timm", "google", …) is
    recognized unless it is given.
    `model` names what the source holds: it is checked, and says what shapes alone can't. The file
    is not hashed for its provenance, which would take longer than loading it; `read_checkpoint`
    hashes it.
    `dropout` and `stochastic_depth` are noise of later training, which weights don't hold.
    `change` puts parts of your own into the model, where it was trained with some.
    """
    if isinstance(source, str | os.PathLike):
        if format is not None:
            raise InputError("format is for a state dict; the format of a source is recognized")
        checkpoint = read_checkpoint(os.fspath(source), model=model, hashed=False)
    elif not isinstance(source, Mapping):
        kind = type(source).__name__
        raise InputError(f"expected a source of weights or a state dict, got {kind}")
    else:
        checkpoint = _read_state_dict(source, format, model)
    size, patch = as_size(image), as_size(patch)
    asked = (classes, size, channels, patch)
    if any(value is not None for value in asked):
        checkpoint = adapt_checkpoint(
            checkpoint, classes=classes, image=size, channels=channels, patch=patch, head=head
        )
    noise = {"dropout": dropout, "stochastic_depth": stochastic_depth}
    noise = {name: rate for name, rate in noise.items() if rate is not None}
    if noise and not isinstance(checkpoint.spec, ViTSpec):
        raise InputError(f"{checkpoint.spec.name} has no {' or '.join(noise)}; use a ViT")
    return as_model(replace(checkpoint, spec=replace(checkpoint.spec, **noise)), change)


def as_loaded(
    model: AnyModel, *, image: Size | None = None, patches: int | None = None
) -> LoadedModel:
    """Load a model that is named by text, or take one that is there.

    `image` is as for `load`; `patches` a budget within which images keep their aspect ratio.
    """
    if patches is not None and image is not None:
        raise InputError("--patches leaves each image its own size: give it or --image, not both")
    loaded = _as_loaded(model, image)
    return loaded if patches is None else with_patches(loaded, patches)


def _as_loaded(model: AnyModel, image: Size | None) -> LoadedModel:
    if isinstance(model, str | os.PathLike):
        return load(os.fspath(model), image=image)
    loaded = model if isinstance(model, LoadedModel) else LoadedModel(model, None, None, None)
    if image is None or image == loaded.model.spec.image:
        return loaded
    fitted = adapt_checkpoint(as_checkpoint(loaded), image=image)
    return replace(loaded, model=fitted.build(), preprocess=fitted.preprocess, uncertainty=None)


def _read_state_dict(
    tensors: Mapping[str, Tensor], format: str | None, model: str | None
) -> Checkpoint:
    """Read a state dict that another project's model gave."""
    known = {each.name: each for each in FORMATS}
    if format is not None and format not in known:
        raise InputError(f"no format {format!r}; there are: {', '.join(known)}")
    file = weights_in_memory(tensors, "state dict")
    found = Resolved("state dict", file.path, {})
    checkpoint = read_weights(file, found, model=model, hashed=False)
    assert checkpoint.provenance is not None
    if format not in (None, checkpoint.provenance.format):
        raise InputError(f"the state dict is in the format {checkpoint.provenance.format}, "
                         f"not {format}")  # fmt: skip
    return checkpoint


def _cut_to_patches(
    preprocess: Preprocess | None, spec: Spec
) -> tuple[Preprocess | None, tuple[str, ...]]:
    """Cut images to the model's whole patches; say so, as others cut them elsewhere.

    SigLIP with patches of 14 gets images of 384, of which its convolution drops 6 lines.
    """
    if preprocess is None or not isinstance(spec, ViTSpec) or preprocess.size == spec.image:
        return preprocess, ()
    (height, width), stride = preprocess.size, spec.stride
    if (height // stride[0] * stride[0], width // stride[1] * stride[1]) != spec.image:
        return preprocess, ()
    crop = preprocess.crop * min(spec.image) / min(preprocess.size)
    said = (
        f"images of {height}x{width} are cut to their middle {spec.image[0]}x{spec.image[1]}, "
        "whole patches; as published, the right and lower edges are cut"
    )
    return replace(preprocess, size=spec.image, crop=crop), (said,)


def read_checkpoint(source: str, *, model: str | None = None, hashed: bool = True) -> Checkpoint:
    """Read all that a source holds: our own folder, or a file of any known format."""
    return read_resolved(resolve(source), model=model, hashed=hashed)


def read_spec(source: str) -> Spec:
    """Read which model a source holds, without its weights."""
    found = resolve(source)
    if found.path.is_dir():
        return load_folder_spec(found.path)
    return identify(open_checkpoint(found.path), gather_facts(found.config))[1]


def read_resolved(found: Resolved, *, model: str | None = None, hashed: bool = True) -> Checkpoint:
    """Read a source whose files were found."""
    if found.path.is_dir():
        checkpoint = load_folder(found.path)
        if model is None:
            return checkpoint
        facts = FileFacts({}, *parse_said(model))
        spec = agree(checkpoint.spec, facts, found.source)
        return replace(checkpoint, spec=spec, provenance=_add(checkpoint.provenance, facts.notes))
    return read_weights(open_checkpoint(found.path), found, model=model, hashed=hashed)


def read_weights(
    file: WeightsFile, found: Resolved, *, model: str | None = None, hashed: bool = True
) -> Checkpoint:
    """Read a file that another project wrote."""
    config, facts = found.config, gather_facts(found.config, model)
    format, spec = identify(file, facts)
    try:
        theirs = format.normalize(unwrap_names(file.read()))
        tensors, left_out = read_table(format.table(spec), theirs, format.left_out)
    except InputError as error:
        raise InputError(
            f"{found.source} as {format.name} {spec.name}: {_shorten(error)}"
        ) from None
    decoder, why = find_decoder(theirs, spec, config)
    check_numbers(tensors | (decoder.tensors if decoder else {}), found.source)
    dropped = {k: left_out[k] for k in left_out if decoder is None or not is_decoders(k)}
    changes = (
        *facts.notes,
        *([why] if why else []),
        *(f"left out {cut_name(key)}: {reason}" for key, reason in dropped.items()),
    )
    tensors, unified = _unify(tensors)
    changes += unified
    head = tensors.get("head.output.weight")
    if head is not None and not head.any():  # as in Google's ImageNet-21k files
        changes += ("head.output is all zeros, as published: features, but no classifier",)
    published = found.published
    preprocess = read_preprocess(config, found.preprocessor)
    preprocess, cut = _cut_to_patches(preprocess, spec)
    changes += cut
    activation, thresholds = read_multilabel(file.metadata, config, spec.classes)
    return Checkpoint(
        spec=spec,
        tensors=tensors,
        classes=_classes(config, spec),
        preprocess=preprocess or (published.preprocess if published else None),
        activation=activation,
        thresholds=thresholds,
        decoder=decoder,
        provenance=Provenance(
            source=found.source,
            sha256=sha256_of(*file.parts or (file.path,)) if hashed else "",
            format=format.name,
            changes=changes,
        ),
    )


def _add(provenance: Provenance | None, notes: Sequence[str]) -> Provenance | None:
    return provenance and replace(provenance, changes=(*provenance.changes, *notes))


def _unify(tensors: Tensors) -> tuple[Tensors, tuple[str, ...]]:
    """Bring weights of several types, as CLIP's, to the one that holds all; also say so."""
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kinds) < 2:
        return tensors, ()
    widest = reduce(torch.promote_types, kinds)
    names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    change = f"brought to {str(widest).removeprefix('torch.')}, from {names}"
    return {k: t.to(widest) if t.dtype in kinds else t for k, t in tensors.items()}, (change,)


def _classes(config: Mapping[str, Any], spec: Spec) -> tuple[str, ...] | None:
    """Name the head's outputs, by the config or as ImageNet's; names of another head are none."""
    named = read_classes(config)
    return named if named and len(named) == spec.classes else imagenet_classes(spec.classes)


def _shorten(error: InputError) -> str:
    """Give the first ten differences, and how many there are in all."""
    problems = [str(problem) for problem in error.args]
    more = f" and {len(problems) - 10} more" if len(problems) > 10 else ""
    return "; ".join(problems[:10]) + more
