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
from vitrail.models import Spec, spec_from_dict
from vitrail.models.names import parse_said
from vitrail.models.vit_spec import QUIET
from vitrail.weights.checkpoint import check_size
from vitrail.weights.files.tensor_files import WeightsFile
from vitrail.weights.formats.format import FileFacts, Format
from vitrail.weights.formats.huggingface.huggingface_inference import check_model_type
from vitrail.weights.formats.keymap import cut_name
from vitrail.weights.formats.known_formats import FORMATS
from vitrail.weights.formats.timm.timm_architectures import RESNETS, VITS
from vitrail.weights.formats.timm.timm_config import architecture_named

_ALWAYS = ("depth", "width", "mlp", "patch", "image", "stages", "stem_width")
"""Fields in which a name has to agree even where it does not say them."""
SPEC_KEY = "vitrail.spec"
"""Where files that we write in another project's format also hold the spec, which says more."""


def gather_facts(config: Mapping[str, Any], model: str | None = None) -> FileFacts:
    """Collect what a config and a given name say: one of ours, or of timm's architectures."""
    if model is None:
        return FileFacts(config)
    name = model.removeprefix("timm:").partition(".")[0]
    if name not in VITS and name not in RESNETS:
        return FileFacts(config, *parse_said(model))
    if (there := architecture_named(config)) not in ("", name):
        raise InputError(f"config.json: the file holds timm's {there}, not {name}")
    return FileFacts({**config, "architecture": name})


def identify(file: WeightsFile, facts: FileFacts) -> tuple[Format, Spec]:
    """Say a file's format and spec from its header alone."""
    empty = {k: torch.empty(shape, device="meta") for k, shape in file.shapes.items()}
    empty = unwrap_names(empty)
    for format in FORMATS:
        shapes = {k: tuple(v.shape) for k, v in format.normalize(empty).items()}
        if not format.recognizes(shapes):
            continue
        spec = _read_spec(file) if SPEC_KEY in file.metadata else format.infer(shapes, facts)
        check_size(spec, shapes)
        return format, agree(spec, facts, str(file.path))
    check_model_type(facts.config)
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


def agree(found: Spec, facts: FileFacts, source: str) -> Spec:
    """Take from a given name what weights don't decide, and refuse what contradicts them."""
    named = facts.named
    if named is None:
        return found
    if type(found) is not type(named):
        raise InputError(f"{source} holds a {found.family} ({found.name}), not {named.name}")
    free: dict[str, Any] = {}
    wrong: list[str] = []
    for key in (field.name for field in fields(found)):
        have, wanted = getattr(found, key), getattr(named, key)
        if have == wanted or (key not in facts.said and key not in _ALWAYS):
            continue
        if key in QUIET or key == "position_resize":
            free[key] = wanted
        elif key != "layer_scale" or not (have and wanted):  # else its value before training
            wrong.append(f"{key} {_show(have)}, not {_show(wanted)}")
    if wrong:
        raise InputError(f"{source} holds {found.name}, not {named.name}: {', '.join(wrong)}")
    facts.notes.extend(f"{key}={value}, as named" for key, value in free.items())
    return replace(found, **free)


def _show(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
