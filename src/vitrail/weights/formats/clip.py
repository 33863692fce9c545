"""OpenAI CLIP's and open_clip's names: the image tower of a model of images and text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Fit, Preprocess
from vitrail.models import Spec, ViTSpec
from vitrail.models.spec import Activation, Size
from vitrail.weights.formats.conventions import UNGATED, require, require_vit, section
from vitrail.weights.formats.format import (
    FileFacts,
    Format,
    Shapes,
    count_layers,
    square_side,
)
from vitrail.weights.formats.keymap import Part, Row, Table, linear_rows, make_table

_AXES = {  # of the tensors that a spec is read from
    "visual.class_embedding": 1,
    "visual.conv1.weight": 4,
    "visual.positional_embedding": 2,
    "visual.transformer.resblocks.0.mlp.c_fc.weight": 2,
    "visual.proj": 2,
}
_TEXT = r"(text|transformer|token_embedding|ln_final)\..+|positional_embedding|text_projection"
_OPENAI = {"input_resolution", "context_length", "vocab_size"}
"""What OpenAI's own files hold beside the weights; open_clip's don't."""
_UNSAID = "the file does not say {}: add open_clip's config, or name the model, as in --model {}"
_NUMBERS = r"logit_scale|logit_bias|attn_mask|input_resolution|context_length|vocab_size"
_OURS = {"attention.norm": "ln_1", "attention.output": "attn.out_proj", "mlp.norm": "ln_2"}
_OURS |= {"mlp.hidden": "mlp.c_fc", "mlp.output": "mlp.c_proj"}


def _table(spec: Spec) -> Table:
    spec = require_vit(
        spec, "CLIP", pool="token", pre_norm=True, patch_bias=False, activation=UNGATED
    )
    if spec.classes:
        require(spec, "CLIP's projection", head_bias=False)
    return make_table(spec, _rows(spec), "CLIP")


def _rows(spec: ViTSpec) -> Iterator[Row]:
    yield "class_token", Part("visual.class_embedding", (spec.width,))
    yield "positions.0.table", "visual.positional_embedding"
    yield "embedding.weight", "visual.conv1.weight"
    yield from linear_rows("pre_norm", "visual.ln_pre")
    yield from clip_block_rows(spec.depth, "visual.")
    yield from linear_rows("norm", "visual.ln_post")
    # Theirs multiplies from the right.
    projection = Part("visual.proj", (spec.width, spec.classes), axes=(1, 0))
    yield "head.output.weight", projection


def clip_block_rows(depth: int, root: str) -> Iterator[Row]:
    """Name the blocks of an image or a text tower."""
    for layer in range(depth):
        block, theirs = f"blocks.{layer}", f"{root}transformer.resblocks.{layer}"
        for ours, name in _OURS.items():
            yield from linear_rows(f"{block}.{ours}", f"{theirs}.{name}")
        for kind in ("weight", "bias"):
            yield f"{block}.attention.qkv.{kind}", f"{theirs}.attn.in_proj_{kind}"
        for branch in (1, 2):
            yield f"{block}.after{branch}.scale.factor", f"{theirs}.ls_{branch}.gamma"


def _recognizes(shapes: Shapes) -> bool:
    return {"visual.class_embedding", "visual.conv1.weight"} <= shapes.keys()


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    for key, axes in _AXES.items():
        shape = shapes.get(key, () if key != "visual.proj" else (1, 1))
        if len(shape) != axes or 0 in shape:
            raise InputError(
                f"{key!r} is missing or does not have {axes} axes: not an image tower of CLIP"
            )
    block = "visual.transformer.resblocks.0"
    width, channels, *patch = shapes["visual.conv1.weight"]
    mlp = shapes[f"{block}.mlp.c_fc.weight"][0]
    depth = count_layers(shapes, r"visual\.transformer\.resblocks\.(\d+)\.")
    depth = min(depth, len(shapes))  # whatever a name claims
    image, openai = clip_image(facts), not _OPENAI.isdisjoint(shapes)
    if image is None:
        side = square_side(shapes["visual.positional_embedding"][0] - 1)
        image = side * patch[0], side * patch[1]
    return ViTSpec(
        depth=depth,
        width=width,
        heads=_heads(width, facts, openai=openai),
        mlp=mlp,
        patch=(patch[0], patch[1]),
        image=image,
        channels=channels,
        classes=shapes.get("visual.proj", (0, 0))[1],
        patch_bias=False,
        pre_norm=True,
        activation=_activation(facts, openai=openai),
        layer_scale=1e-5 if f"{block}.ls_1.gamma" in shapes else 0.0,
        norm_eps=1e-5,
        head_bias=False,
        position_resize="timm",  # open_clip's too is bicubic with antialiasing
    )


def _heads(width: int, facts: FileFacts, *, openai: bool) -> int:
    """Return the heads: as open_clip's config says, or of 64 channels, its and OpenAI's usual."""
    size = clip_vision(facts.config).get("head_width", 64)
    if not isinstance(size, int) or size < 1:
        raise InputError(f"config.json: expected a number for head_width, got {size!r}")
    if "heads" in facts.said or openai or clip_vision(facts.config):
        return facts.told("heads", width // size)
    raise InputError(_UNSAID.format("how many heads it has", "ViT-B/32,activation=gelu"))


def _activation(facts: FileFacts, *, openai: bool) -> Activation:
    """Return which GELU it is: OpenAI's own, or as open_clip's config or the model's name says."""
    if openai or clip_vision(facts.config):
        quick = _model(facts.config).get("quick_gelu", openai)
        return "quick-gelu" if quick else "gelu"
    if "activation" not in facts.said:
        raise InputError(_UNSAID.format("which GELU it has", "ViT-B/32,activation=quick-gelu"))
    return facts.told("activation", "gelu")


def _model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return section(config, "model_cfg") or config


def clip_vision(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what open_clip's config says of the image tower."""
    return section(_model(config), "vision_cfg")


def clip_image(facts: FileFacts) -> Size | None:
    """Return the resolution that the config, or the model's given name, says."""
    size = clip_vision(facts.config).get("image_size")
    if size is None and facts.named is not None:
        return facts.named.image
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else size
    if (
        not isinstance(sides, list | tuple)
        or len(sides) != 2
        or not all(isinstance(side, int) for side in sides)
    ):
        raise InputError(f"the config's image_size {size!r} is not a size; write [height, width]")
    return sides[0], sides[1]


def read_open_clip_preprocess(config: Mapping[str, Any]) -> Preprocess | None:
    """Read the transform of open_clip's config; None where it says none that we have."""
    said, size = section(config, "preprocess_cfg"), clip_image(FileFacts(config))
    fits: dict[str, Fit] = {"shortest": "crop", "squash": "stretch"}
    fit = fits.get(str(said.get("resize_mode", "shortest")))
    interpolation = said.get("interpolation", "bicubic")
    if size is None or fit is None or not {"mean", "std"} <= said.keys():
        return None
    if interpolation not in ("bilinear", "bicubic"):
        return None
    mean, std = (tuple(map(float, said[key])) for key in ("mean", "std"))
    return Preprocess(size=size, mean=mean, std=std, interpolation=interpolation, fit=fit)


def left_out_of_clip(key: str) -> str | None:
    """Say why a tensor beside the image tower is not read, or None."""
    if re.fullmatch(_TEXT, key):
        return "the text tower"
    if re.fullmatch(_NUMBERS, key):
        return "a number for comparing images with text"
    return None


CLIP = Format("CLIP", _recognizes, _infer, _table, left_out_of_clip)
