"""open_clip's models whose image tower is one of timm's (visual.trunk.*): SigLIP, EVA-02, PE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from vitrail.config import InputError
from vitrail.models import Spec
from vitrail.models.spec import ViTSpec
from vitrail.weights.formats.clip import clip_image, clip_vision, left_out_of_clip
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.keymap import Entry, Part, Table
from vitrail.weights.formats.timm.timm import TIMM

V = TypeVar("V")

_TRUNK = "visual.trunk."
_PROJECTION = "visual.head.proj."
_HEAD = "head.output"


def _recognizes(shapes: Shapes) -> bool:
    return TIMM.recognizes(_trunk_of(shapes))


def _trunk_of(named: Mapping[str, V]) -> dict[str, V]:
    return {key.removeprefix(_TRUNK): named[key] for key in named if key.startswith(_TRUNK)}


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    """Read the tower as timm's architecture that the config names, with open_clip's pooling."""
    if any(key.startswith("visual.head.") for key in shapes):
        raise InputError("visual.head: a projection of more than one layer, which vitrail lacks")
    said: dict[str, Any] = {}
    vision, image = clip_vision(facts.config), clip_image(facts)
    if vision.get("timm_model_name"):
        said["architecture"] = vision["timm_model_name"]
    if vision.get("timm_pool"):
        said["global_pool"] = vision["timm_pool"]
    if image is not None:
        said["pretrained_cfg"] = {"input_size": [3, *image]}
    spec = TIMM.infer(_trunk_of(shapes), facts.with_config(said))
    if not isinstance(spec, ViTSpec):
        raise InputError(f"{spec.name}: only ViTs are read as open_clip's image towers")
    unbiased = f"{_TRUNK}head.weight" in shapes and f"{_TRUNK}head.bias" not in shapes
    return replace(spec, head_bias=False) if unbiased else spec


def _table(spec: Spec) -> Table:
    assert isinstance(spec, ViTSpec)
    table = TIMM.table(spec if spec.head_bias else replace(spec, classes=0, head_bias=True))
    if not spec.head_bias:
        shape = (spec.classes, spec.pooled)
        table += (Entry(f"{_HEAD}.weight", shape, (Part("head.weight", shape),)),)
    return tuple(
        replace(
            entry, parts=tuple(replace(part, key=f"{_TRUNK}{part.key}") for part in entry.parts)
        )
        for entry in table
    )


def _normalize(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take a projection beside the tower as the tower's head, which timm's would be."""
    linear = {key.replace(_PROJECTION, f"{_TRUNK}head."): theirs[key] for key in theirs}
    trunk = TIMM.normalize(_trunk_of(linear))
    others = {key: linear[key] for key in linear if not key.startswith(_TRUNK)}
    return {**{f"{_TRUNK}{key}": trunk[key] for key in trunk}, **others}


OPEN_CLIP = Format("open_clip", _recognizes, _infer, _table, left_out_of_clip, _normalize)
