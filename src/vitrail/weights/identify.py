"""Recognize a weights file's format, and infer which model it holds, from its header alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import Spec, parse, spec_from_dict
from vitrail.models.spec import ViTSpec
from vitrail.weights.checkpoint import check_size
from vitrail.weights.files.tensor_files import WeightsFile
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.huggingface.huggingface_inference import check_model_type
from vitrail.weights.formats.keymap import cut_name
from vitrail.weights.formats.known_formats import FORMATS

SPEC_KEY = "vitrail.spec"
"""Where files that we write in another project's format also hold the spec, which says more."""


def identify(
    file: WeightsFile, config: Mapping[str, Any], *, model: str | None = None
) -> tuple[Format, Spec]:
    """Say a file's format and spec from its header alone."""
    empty = {k: torch.empty(shape, device="meta") for k, shape in file.shapes.items()}
    empty = unwrap_names(empty)
    for format in FORMATS:
        shapes = {k: tuple(v.shape) for k, v in format.normalize(empty).items()}
        if not format.recognizes(shapes):
            continue
        sure = SPEC_KEY in file.metadata
        spec = _read_spec(file) if sure else format.infer(shapes, _with_model(config, model))
        check_size(spec, shapes)
        if model is not None:
            spec = agree(spec, parse(model), str(file.path), sure=sure)
        return format, spec
    check_model_type(config)
    known = ", ".join(format.name for format in FORMATS)
    some = ", ".join(map(cut_name, list(file.shapes)[:3]))
    raise InputError(f"{file.path} is in no known format ({known}); it holds {some}, …")


def unwrap_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop what torch.compile and parallel training put before each name."""
    named = {re.sub(r"^(module\.|_orig_mod\.)+", "", key): value for key, value in tensors.items()}
    return named if len(named) == len(tensors) else dict(tensors)


def _read_spec(file: WeightsFile) -> Spec:
    """Read the spec in a file's metadata, which anybody may have written."""
    try:
        data = json.loads(file.metadata[SPEC_KEY])
        spec = spec_from_dict(data if isinstance(data, dict) else {})
        check_size(spec, file.shapes)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file.path}: the spec in its metadata: {error}") from None
    return spec


def _with_model(config: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """Let a given name say the grid and the heads, where the shapes alone leave them open."""
    if model is None:
        return {**config}
    named = parse(model)
    heads = named.heads if isinstance(named, ViTSpec) else None
    activation = named.activation if isinstance(named, ViTSpec) else None
    said = {"vitrail_image": named.image, "vitrail_heads": heads, "vitrail_activation": activation}
    return {**config, **said}


def agree(found: Spec, named: Spec, source: str, *, sure: bool) -> Spec:
    """Take from the name what shapes can't show, and refuse what contradicts them.

    A spec that we wrote is `sure` of all.
    """
    if type(found) is not type(named):
        raise InputError(f"{source} holds a {found.family} ({found.name}), not {named.name}")
    keys = ("depth", "width", "mlp", "patch", "image", "stages", "stem_width")
    keys += ("heads",) if sure else ()
    have = {field.name for field in fields(found)}
    wrong = [
        f"{key} {getattr(found, key)}, not {getattr(named, key)}"
        for key in keys
        if key in have and getattr(found, key) != getattr(named, key)
    ]
    if wrong:
        raise InputError(f"{source} holds {found.name}, not {named.name}: {', '.join(wrong)}")
    return replace(found, heads=named.heads) if isinstance(named, ViTSpec) else found
