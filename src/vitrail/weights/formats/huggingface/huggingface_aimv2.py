"""transformers' AIMv2 image tower: RMSNorm, a norm of patches, SwiGLU, no biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import count_outputs, require_vit, section
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.huggingface.huggingface_inference import (
    gate_config,
    infer_hf_encoder,
    read_number,
)
from vitrail.weights.formats.huggingface.huggingface_names import Names
from vitrail.weights.formats.huggingface.huggingface_tables import hf_encoder_rows
from vitrail.weights.formats.keymap import Row, Table, Tensors, linear_rows, make_table

_NAMES = Names(
    patch="embeddings.patch_embed",
    positions="embeddings.position_embedding.weight",
    layer="encoder.layers",
    norms=("rms_norm1", "rms_norm2"),
    attention=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.out_proj",
    mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
    gate="hidden_act",
    last="rms_norm",
    activation="silu",
    heads=8,
)
_EPS = 1e-5


def _is_aimv2(shapes: Shapes) -> bool:
    return {"embeddings.rms_norm.weight", "encoder.layers.0.ffn.gate_proj.weight"} <= shapes.keys()


def _infer_aimv2(shapes: Shapes, facts: FileFacts) -> Spec:
    native = _NAMES.positions not in shapes  # of any resolution, with fixed positions
    config = {**facts.config, **section(facts.config, "vision_config")}
    names = replace(_NAMES, positions="") if native else _NAMES
    given = infer_hf_encoder(shapes, facts.with_config(config), names, 0)
    given["norm_eps"] = float(read_number(config, "rms_norm_eps", _EPS))
    given["position"] = "sincos-2d-mae" if native else "learned-1d"
    biased = "encoder.layers.0.ffn.down_proj.bias" in shapes
    given |= {"pool": "probe" if "head.cls_token" in shapes else "gap", "dense_bias": biased}
    classes = count_outputs(shapes, "visual_projection.weight")
    return ViTSpec(**given, classes=classes, head_bias=not classes, norm="rms", patch_norm=True)


def _aimv2_table(spec: Spec) -> Table:
    project = "transformers' AIMv2"
    options: dict[str, Any] = {"norm": "rms", "patch_norm": True, "activation": ("swiglu", "geglu")}
    options |= {"qkv_bias": (True, False), "class_position": (True, False)}
    options |= {"position": ("learned-1d", "sincos-2d-mae"), "pool": ("gap", "probe")}
    spec = require_vit(spec, project, **options, head_bias=not spec.classes)
    rows: list[Row] = [
        *linear_rows("patch_norm", "embeddings.rms_norm"),
        *hf_encoder_rows(spec, _NAMES, ""),
        ("pooling.probe", "head.cls_token"),
        *linear_rows("pooling.output", "head.output_proj"),
        ("head.output.weight", "visual_projection.weight"),
    ]
    for leaf in ("weight", "bias"):
        rows.append((f"pooling.key_value.{leaf}", *(f"head.{x}_proj.{leaf}" for x in "kv")))
    return make_table(spec, rows, project, knows=("norm", "patch_norm", "dense_bias", *options))


def _normalize(theirs: Mapping[str, Tensor]) -> Tensors:
    """Name the image tower of a model of two as the tower alone is named."""
    if "vision_model.embeddings.rms_norm.weight" not in theirs:
        return dict(theirs)
    return {key.removeprefix("vision_model."): theirs[key] for key in theirs}


def _left_out(key: str) -> str | None:
    text = key.partition(".")[0] in ("text_model", "text_projection", "logit_scale")
    return "the text tower" if text else None


def aimv2_config(spec: ViTSpec) -> dict[str, Any]:
    """Give what a config.json says of an AIMv2 beyond its sizes."""
    if spec.classes:
        raise InputError("transformers' AIMv2 has a projection beside a text tower only")
    return {
        "architectures": ["Aimv2VisionModel"],
        "model_type": "aimv2_vision_model",
        "rms_norm_eps": spec.norm_eps,
        "mlp_bias": spec.dense_bias,
        "use_head": spec.pool == "probe",
        "is_native": spec.position == "sincos-2d-mae",
        **gate_config(spec),
    }


HF_AIMV2 = Format(
    "transformers AIMv2", _is_aimv2, _infer_aimv2, _aimv2_table, _left_out, _normalize
)
