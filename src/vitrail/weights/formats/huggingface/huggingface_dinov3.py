"""transformers' DINOv3: registers, LayerScale, rotary positions, no bias of keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import require, require_vit, shape_of
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.huggingface.huggingface_inference import (
    gate_config,
    infer_hf_encoder,
    read_number,
)
from vitrail.weights.formats.huggingface.huggingface_names import DINO
from vitrail.weights.formats.huggingface.huggingface_tables import hf_encoder_rows
from vitrail.weights.formats.keymap import Row, Table, make_table

_PLAIN = replace(
    DINO,
    patch="embeddings.patch_embeddings",
    positions="",
    layer="layer",
    attention=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.o_proj",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    last="norm",
    eps=1e-5,
    heads=6,
)
_GATED = replace(_PLAIN, mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), gate="hidden_act")
_REGISTERS = "embeddings.register_tokens"
_THETA = 100.0


def _is_dinov3(shapes: Shapes) -> bool:
    first = ("layer.0.norm1.weight", "layer.0.attention.q_proj.weight")
    return {f"{_PLAIN.patch}.weight", "embeddings.cls_token", *first} <= shapes.keys()


def _infer_dinov3(shapes: Shapes, facts: FileFacts) -> Spec:
    gated = f"layer.0.{_GATED.mlp[0]}.weight" in shapes
    config = facts.config
    if gated and "model_type" not in config:  # as published
        facts = facts.with_config({"hidden_act": "silu", **config})
    given = infer_hf_encoder(shapes, facts, _GATED if gated else _PLAIN, 0)
    query, key, value = (f"layer.0.{name}.bias" in shapes for name in _PLAIN.attention)
    if query != value or (key and not query):
        said = f"query_bias={query}, key_bias={key}, value_bias={value}"
        raise InputError(f"a DINOv3 with {said}: vitrail has all, all but the key's, or none")
    count = shapes.get(_REGISTERS, (1, 0, 0))
    return ViTSpec(
        **{**given, "qkv_bias": query},
        classes=0,
        position="none",
        rotary="centered",
        rotary_theta=float(read_number(config, "rope_theta", _THETA)),
        registers=shape_of(shapes, _REGISTERS, 3)[1] if count[1:2] != (0,) else 0,
        key_bias=key or not query,
        dense_bias="layer.0.mlp.down_proj.bias" in shapes,
        layer_scale=float(read_number(config, "layerscale_value", 1.0)) or 1.0,
    )


def _dinov3_table(spec: Spec) -> Table:
    project = "transformers' DINOv3"
    options: dict[str, Any] = {"qkv_bias": (True, False), "position": "none"}
    spec = require_vit(spec, project, pool="token", rotary="centered", **options)
    require(spec, project, attention_dropout=0.0, dropout=0.0)
    if not spec.layer_scale:
        raise InputError(f"{project} has LayerScale in every block, which {spec} lacks")
    rows: list[Row] = [
        ("class_token", "embeddings.cls_token"),
        ("registers", _REGISTERS),
        *hf_encoder_rows(spec, _GATED if spec.gated else _PLAIN, ""),
    ]
    return make_table(spec, rows, project, knows=("rotary", "key_bias", "dense_bias", "activation"))


def dinov3_config(spec: ViTSpec) -> dict[str, Any]:
    """Give what a config.json says of a DINOv3 beyond its sizes."""
    return {
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        "use_gated_mlp": spec.gated,
        "rope_theta": spec.rotary_theta,
        "num_register_tokens": spec.registers,
        "query_bias": spec.qkv_bias,
        "key_bias": spec.qkv_bias and spec.key_bias,
        "value_bias": spec.qkv_bias,
        "proj_bias": spec.dense_bias,
        "mlp_bias": spec.dense_bias,
        "layerscale_value": spec.layer_scale,
        "pos_embed_shift": spec.rotary_shift or None,
        "pos_embed_jitter": spec.rotary_jitter if spec.rotary_jitter > 1 else None,
        "pos_embed_rescale": spec.rotary_rescale if spec.rotary_rescale > 1 else None,
        **gate_config(spec),
    }


def _left_out(key: str) -> str | None:
    if key == "embeddings.mask_token":
        return "used by pre-training only"
    return "empty: the model has no registers" if key == _REGISTERS else None


def _normalize(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop what transformers puts before the layers in memory."""
    return {re.sub(r"^model\.(?=layer\.)", "", key): value for key, value in tensors.items()}


HF_DINOV3 = Format(
    "transformers DINOv3", _is_dinov3, _infer_dinov3, _dinov3_table, _left_out, _normalize
)
