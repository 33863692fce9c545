"""Which of transformers' tensors make up our parameters, for each family."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import UNGATED, require, require_vit
from vitrail.weights.formats.huggingface.huggingface_names import (
    CLIP,
    DINO,
    DINO_ROOTS,
    GATED,
    SIGLIP,
    SIGLIP2,
    VIT,
    Names,
)
from vitrail.weights.formats.keymap import Part, Row, Shape, Table, linear_rows, make_table


def hf_encoder_rows(spec: ViTSpec, names: Names, root: str) -> Iterator[Row]:
    """Give the rows of the patch embedding, its positions, the blocks and the last norm."""
    rows: Shape = (spec.positioned + spec.grid[0] * spec.grid[1], spec.width)
    flat = names.positions.endswith(".weight")
    yield "positions.0.table", Part(root + names.positions, rows if flat else (1, *rows))
    yield from linear_rows("embedding", root + names.patch)
    for number in range(spec.depth):
        ours, theirs = f"blocks.{number}", f"{root}{names.layer}.{number}"
        yield from linear_rows(f"{ours}.attention.norm", f"{theirs}.{names.norms[0]}")
        for leaf in ("weight", "bias"):
            parts = (f"{theirs}.{part}.{leaf}" for part in names.attention)
            yield f"{ours}.attention.qkv.{leaf}", *parts
        query, _, value = names.attention
        yield f"{ours}.attention.qkv_bias.bias", f"{theirs}.{query}.bias", f"{theirs}.{value}.bias"
        yield from linear_rows(f"{ours}.attention.output", f"{theirs}.{names.output}")
        yield from linear_rows(f"{ours}.mlp.norm", f"{theirs}.{names.norms[1]}")
        *hidden, output = (f"{theirs}.{part}" for part in names.mlp)
        for leaf in ("weight", "bias"):
            yield f"{ours}.mlp.hidden.{leaf}", *(f"{part}.{leaf}" for part in hidden)
        yield from linear_rows(f"{ours}.mlp.output", output)
        for branch, scale in enumerate(names.scales or (), start=1):
            yield f"{ours}.after{branch}.scale.factor", f"{theirs}.{scale}"
    yield from linear_rows("norm", root + names.last)


def vit_table(spec: Spec) -> Table:
    """List the tensors of a ViT."""
    project = "transformers' ViT"
    spec = require_vit(spec, project, pool=("token",), activation=UNGATED, qkv_bias=(True, False))
    root = "vit." if spec.classes else ""
    rows = [("class_token", f"{root}embeddings.cls_token"), *hf_encoder_rows(spec, VIT, root)]
    if spec.classes:
        require_vit(spec, project, head_bias=(True,), qkv_bias=(True, False))
        rows += linear_rows("head.output", "classifier")
    else:
        rows += linear_rows("head.hidden", "pooler.dense")
    return make_table(spec, rows, project)


def deit_table(spec: Spec) -> Table:
    """List the tensors of a DeiT with two heads; with one, its second token is a register."""
    project = "transformers' DeiT"
    options: dict[str, Any] = {"activation": UNGATED, "qkv_bias": (True, False)}
    spec = require_vit(spec, project, pool="token", head_bias=True, **options)
    if spec.registers:
        require(spec, project, registers=1, register_position=True, distilled=False)
    else:
        require(spec, project, distilled=True)
    root = "deit." if spec.classes else ""
    rows: list[Row] = [
        ("class_token", f"{root}embeddings.cls_token"),
        ("distillation_token", f"{root}embeddings.distillation_token"),
        ("registers", f"{root}embeddings.distillation_token"),
        *hf_encoder_rows(spec, VIT, root),
        *linear_rows("head.output", "cls_classifier" if spec.distilled else "classifier"),
        *linear_rows("distillation_head.output", "distillation_classifier"),
    ]
    return make_table(spec, rows, project, knows=("register_position",))


def ijepa_table(spec: Spec) -> Table:
    """List the tensors of an I-JEPA, a ViT without a class token."""
    project = "transformers' I-JEPA"
    options: dict[str, Any] = {"activation": UNGATED, "qkv_bias": (True, False)}
    options |= {"class_position": (True, False), "head_bias": True}
    spec = require_vit(spec, project, pool="gap", **options)
    rows = list(hf_encoder_rows(spec, VIT, "ijepa." if spec.classes else ""))
    return make_table(spec, [*rows, *linear_rows("head.output", "classifier")], project)


def dino_table(spec: Spec) -> Table:
    """List the tensors of a DINOv2, with registers or without."""
    project = "transformers' DINOv2"
    spec = require_vit(spec, project, pool=("token", "token-gap"), qkv_bias=(True, False))
    if not spec.layer_scale:
        raise InputError(f"{project} has LayerScale in every block, which {spec} lacks")
    if spec.classes:
        require(spec, f"{project} with a classifier", pool="token-gap", head_bias=True)
    else:
        require(spec, f"{project} without a classifier", pool="token")
    root = DINO_ROOTS[spec.registers > 0] if spec.classes else ""
    rows: list[Row] = [
        ("class_token", f"{root}embeddings.cls_token"),
        ("registers", f"{root}embeddings.register_tokens"),
        *hf_encoder_rows(spec, GATED if spec.activation == "swiglu" else DINO, root),
        *linear_rows("head.output", "classifier"),
    ]
    return make_table(spec, rows, project, knows=("pool",))


def clip_table(spec: Spec) -> Table:
    """List the tensors of CLIP's image tower."""
    project, root = "transformers' CLIP", "vision_model."
    spec = require_vit(spec, project, pre_norm=True, activation=UNGATED, patch_bias=False)
    # The classifier reads the mean of the patches, which no norm precedes.
    reads = ("gap", "none", True) if spec.pool == "gap" else ("token", "tokens", False)
    pool, norm, unpooled = reads
    require(spec, project, pool=pool, last_norm=norm, unpooled_class_token=unpooled)
    token = Part(f"{root}embeddings.class_embedding", (spec.width,))
    rows: list[Row] = [
        ("class_token", token),
        *linear_rows("pre_norm", f"{root}pre_layrnorm"),
        *hf_encoder_rows(spec, CLIP, root),
    ]
    if spec.pool == "gap":
        require(spec, f"{project} with a classifier", head_bias=True)
        rows += linear_rows("head.output", "classifier")
    else:
        rows.append(("head.output.weight", "visual_projection.weight"))
    return make_table(spec, rows, project, knows=("unpooled_class_token", "last_norm"))


def siglip_table(spec: Spec) -> Table:
    """List the tensors of SigLIP's image tower."""
    project, root = "transformers' SigLIP", "vision_model."
    spec = require_vit(
        spec, project, pool=("gap", "map"), activation=UNGATED, class_position=(True, False)
    )
    second = spec.position_resize == "siglip2"
    if second:
        require(spec, "transformers' SigLIP 2", channels=3)
    rows = list(hf_encoder_rows(spec, SIGLIP2 if second else SIGLIP, root))
    if spec.pool == "gap":
        require_vit(spec, project, head_bias=(True,), class_position=(True, False))
        rows += linear_rows("head.output", "classifier")
    head, project_in = f"{root}head", f"{root}head.attention.in_proj"
    rows.append(("pooling.probe", f"{head}.probe"))
    for part in ("query", "key_value"):
        rows += [(f"pooling.{part}.{x}", f"{project_in}_{x}[{part}]") for x in ("weight", "bias")]
    rows += linear_rows("pooling.output", f"{head}.attention.out_proj")
    rows += linear_rows("pooling.mlp.norm", f"{head}.layernorm")
    rows += linear_rows("pooling.mlp.hidden", f"{head}.mlp.fc1")
    rows += linear_rows("pooling.mlp.output", f"{head}.mlp.fc2")
    return make_table(spec, rows, project)
