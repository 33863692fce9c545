"""transformers' AIMv2 image tower: RMSNorm, a norm of patches, SwiGLU, no biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import require_vit
from vitrail.weights.formats.format import Format, Shapes
from vitrail.weights.formats.huggingface.huggingface_inference import infer_hf_encoder, read_number
from vitrail.weights.formats.huggingface.huggingface_names import Names
from vitrail.weights.formats.huggingface.huggingface_tables import hf_encoder_rows
from vitrail.weights.formats.keymap import Row, Table, linear_rows, make_table

_NAMES = Names(
    patch="embeddings.patch_embed",
    positions="embeddings.position_embedding.weight",
    layer="encoder.layers",
    norms=("rms_norm1", "rms_norm2"),
    attention=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.out_proj",
    mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
    gated=True,
    last="rms_norm",
    activation="silu",
    heads=8,
)
_EPS = 1e-5


def _is_aimv2(shapes: Shapes) -> bool:
    return {"embeddings.rms_norm.weight", "encoder.layers.0.ffn.gate_proj.weight"} <= shapes.keys()


def _infer_aimv2(shapes: Shapes, config: Mapping[str, Any]) -> Spec:
    if "head.cls_token" in shapes:
        raise InputError(
            "an AIMv2 with attention pooling whose query is not projected, which vitrail does not "
            "have: save the tower without it (use_head=False)"
        )
    if config.get("is_native"):
        raise InputError("an AIMv2 of native resolution, whose sin-cos positions vitrail lacks")
    given = infer_hf_encoder(shapes, config, _NAMES, 0)
    given["norm_eps"] = float(read_number(config, "rms_norm_eps", _EPS))
    biased = "encoder.layers.0.ffn.down_proj.bias" in shapes
    return ViTSpec(**given, classes=0, pool="gap", norm="rms", patch_norm=True, dense_bias=biased)


def _aimv2_table(spec: Spec) -> Table:
    project = "transformers' AIMv2"
    options: dict[str, Any] = {"norm": "rms", "patch_norm": True, "activation": "swiglu"}
    options |= {"qkv_bias": (True, False), "class_position": (True, False)}
    spec = require_vit(spec, project, pool="gap", **options)
    rows: list[Row] = [*linear_rows("patch_norm", "embeddings.rms_norm")]
    rows += hf_encoder_rows(spec, _NAMES, "")
    return make_table(spec, rows, project, knows=("norm", "patch_norm", "dense_bias"))


def aimv2_config(spec: ViTSpec) -> dict[str, Any]:
    """Give what a config.json says of an AIMv2 beyond its sizes."""
    return {
        "architectures": ["Aimv2VisionModel"],
        "model_type": "aimv2_vision_model",
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "mlp_bias": spec.dense_bias,
        "use_head": False,
    }


HF_AIMV2 = Format("transformers AIMv2", _is_aimv2, _infer_aimv2, _aimv2_table)
