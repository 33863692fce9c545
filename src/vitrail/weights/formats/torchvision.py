"""torchvision's names: VisionTransformer (vit_b_16 and the like)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import (
    count_depth,
    count_outputs,
    find_heads,
    find_image,
    heads_of,
    require_vit,
    shape_of,
)
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.keymap import Part, Row, Table, Tensors, linear_rows, make_table

_LAYER = "encoder.layers.encoder_layer_"
_HEADS = heads_of("B L H")


def _normalize(tensors: Mapping[str, Tensor]) -> Tensors:
    """Name the MLP's layers as torchvision has since 0.13: by place, not linear_1 and linear_2."""
    new = {"1": "0", "2": "3"}
    named = {
        re.sub(r"\.mlp\.linear_([12])\.", lambda old: f".mlp.{new[old[1]]}.", key): value
        for key, value in tensors.items()
    }
    return named if len(named) == len(tensors) else dict(tensors)


def _table(spec: Spec) -> Table:
    options: dict[str, tuple[Any, ...]] = {"pool": ("token",), "norm_eps": (1e-6,)}
    spec = require_vit(spec, "torchvision", activation=("gelu",), head_bias=(True,), **options)
    return make_table(spec, _rows(spec), "torchvision")


def _rows(spec: ViTSpec) -> Iterator[Row]:
    positions = spec.positioned + spec.grid[0] * spec.grid[1]
    yield "class_token", "class_token"
    yield "positions.0.table", Part("encoder.pos_embedding", (1, positions, spec.width))
    yield from linear_rows("embedding", "conv_proj")
    for number in range(spec.depth):
        ours, theirs = f"blocks.{number}", f"{_LAYER}{number}"
        yield from linear_rows(f"{ours}.attention.norm", f"{theirs}.ln_1")
        for leaf in ("weight", "bias"):
            yield f"{ours}.attention.qkv.{leaf}", f"{theirs}.self_attention.in_proj_{leaf}"
        yield from linear_rows(f"{ours}.attention.output", f"{theirs}.self_attention.out_proj")
        yield from linear_rows(f"{ours}.mlp.norm", f"{theirs}.ln_2")
        yield from linear_rows(f"{ours}.mlp.hidden", f"{theirs}.mlp.0")
        yield from linear_rows(f"{ours}.mlp.output", f"{theirs}.mlp.3")
    yield from linear_rows("norm", "encoder.ln")
    yield from linear_rows("head.hidden", "heads.pre_logits")
    yield from linear_rows("head.output", "heads.head")


def _recognizes(shapes: Shapes) -> bool:
    marks = {"class_token", "conv_proj.weight", "encoder.pos_embedding", f"{_LAYER}0.ln_1.weight"}
    return marks <= shapes.keys()


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    """Read the spec; a file says nothing of heads and resolution, torchvision has no config."""
    width, channels, *patch = shape_of(shapes, "conv_proj.weight", 4)
    patches = shape_of(shapes, "encoder.pos_embedding", 3)[1] - 1
    depth = count_depth(shapes, rf"{re.escape(_LAYER)}(\d+)\.")
    mlp = shape_of(shapes, f"{_LAYER}0.mlp.3.weight", 2)[1]
    return ViTSpec(
        depth=depth,
        width=width,
        heads=find_heads(facts, (depth, width, mlp), _HEADS),
        mlp=mlp,
        patch=(patch[0], patch[1]),
        image=find_image(facts, (patch[0], patch[1]), patches),
        channels=channels,
        classes=count_outputs(shapes, "heads.head.weight"),
        representation=count_outputs(shapes, "heads.pre_logits.weight"),
        activation="gelu",
        position_resize="torchvision",
    )


TORCHVISION = Format("torchvision", _recognizes, _infer, _table, normalize=_normalize)
