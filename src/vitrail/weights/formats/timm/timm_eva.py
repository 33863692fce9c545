"""timm's `Eva` class: EVA, EVA-02, DINOv3, Perception Encoder and the ViTs with rotary positions.

Its tensors don't show rotary positions, so an entry's arguments are written down here as timm has
them, and those of a config.json go before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitrail.config import InputError
from vitrail.models import ViTSpec

_ROTARY: dict[str, Any] = {"use_rot_pos_emb": True}
_EVA02 = {**_ROTARY, "ref_feat_shape": [16, 16]}
_NAVER = {**_ROTARY, "rope_grid_indexing": "xy", "global_pool": "token"}
_DINOV3 = {
    **_ROTARY,
    "rope_type": "dinov3",
    "rope_temperature": 100,
    "rope_rotate_half": True,
    "norm_eps": 1e-5,
    "global_pool": "avg",
}
_PE = {**_ROTARY, "rope_grid_indexing": "xy", "norm_eps": 1e-5}
_ENTRIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"eva02_enormous_.+", {"use_post_norm": True, "global_pool": "token"}),
    (r"eva02_.+_clip_\d+", {**_EVA02, "global_pool": "token"}),
    (r"eva02_.+|vit_.+_rope_reg\d_gap_256", _EVA02),
    (r"eva_giant_patch14_clip_224", {"global_pool": "token"}),
    (r"eva_giant_.+", {}),
    (r"vit_.+_rope(_ape)?_224", {**_NAVER, "rope_temperature": 100}),
    (r"vit_.+_rope_mixed(_ape)?_224", {**_NAVER, "rope_type": "mixed", "rope_temperature": 10}),
    (r"vit_.+_dinov3(_qkvb)?", _DINOV3),
    (r"vit_.+_lingbot", {**_DINOV3, "global_pool": "token"}),
    (r"vit_.+_sapiens2", {**_DINOV3, "norm_eps": 1e-6, "global_pool": "token"}),
    (r"vit_pe_core_gigantic_.+", {**_PE, "ref_feat_shape": [32, 32], "attn_pool_num_heads": 8}),
    (
        r"vit_pe_core_base_.+",
        {**_PE, "ref_feat_shape": [14, 14], "rope_grid_offset": 1.0, "attn_pool_num_heads": 8},
    ),
    (
        r"vit_pe_core_.+",
        {**_PE, "ref_feat_shape": [24, 24], "rope_grid_offset": 1.0, "attn_pool_num_heads": 8},
    ),
    (
        r"vit_pe_(lang|spatial)_gigantic_.+",
        {**_PE, "ref_feat_shape": [32, 32], "global_pool": "avg"},
    ),
    (
        r"vit_pe_(lang|spatial)_.+",
        {**_PE, "ref_feat_shape": [32, 32], "rope_grid_offset": 1.0, "global_pool": "avg"},
    ),
    # The class VisionTransformer says these in other words.
    (r"eva_large_.+", {"global_pool": "avg"}),
    (r"aimv2_.+|vit_.+_clip_.+", {"norm_eps": 1e-5}),
    (r"beit3_.+", {"global_pool": "avg", "norm_eps": 1e-5}),
    (r"vit_base_patch16_rpn_224|vit_relpos_.+_rpn_.+", {"use_post_norm": True}),
    (r"test_vit3", {"pool_include_prefix": True}),
)
"""Entries of timm, with their arguments that no tensor shows; `norm_eps` is of its norm_layer."""


def entry_arguments(name: str) -> dict[str, Any]:
    """Return those arguments of an architecture that its tensors don't show."""
    found = (arguments for pattern, arguments in _ENTRIES if re.fullmatch(pattern, name))
    return next(found, {})


def is_eva(spec: ViTSpec) -> bool:
    """Tell whether timm needs its class `Eva` for a model."""
    return spec.rotary != "none" or not spec.key_bias


def has_split_qkv(spec: ViTSpec) -> bool:
    """Tell whether timm's entries with such options have queries, keys and values apart."""
    return is_eva(spec) and (spec.sub_norm != "none" or is_sapiens(spec))


def is_sapiens(spec: ViTSpec) -> bool:
    """Tell whether a model is like timm's Sapiens2, whose keys may be shared between heads."""
    return spec.layer_scale_at == "attention" or spec.key_heads > 0


def shape_arguments(spec: ViTSpec) -> dict[str, Any]:
    """Return the arguments that all of timm's ViT classes have."""
    return {
        "img_size": list(spec.image),
        "patch_size": list(spec.patch),
        "in_chans": spec.channels,
        "embed_dim": spec.width,
        "depth": spec.depth,
        "num_heads": spec.heads,
    }


def has_split_gate(spec: ViTSpec) -> bool:
    """Tell whether timm's entries with such options have SwiGLU's two branches apart."""
    apart = spec.sub_norm != "none" or spec.rotary == "centered" or spec.patch_norm
    return spec.activation == "swiglu" and apart and not is_sapiens(spec)


def read_options(arguments: Mapping[str, Any], *, token: bool) -> dict[str, Any]:
    """Return what arguments say of a spec beyond its tensors, with a class token or without."""
    options: dict[str, Any] = {}
    if "norm_eps" in arguments:
        options["norm_eps"] = arguments["norm_eps"]
    if arguments.get("use_post_norm"):
        options["norm_place"] = "post"
    if arguments.get("pool_include_prefix") or ("attn_pool_num_heads" in arguments and token):
        options["pool_prefix"] = True
    if heads := arguments.get("attn_pool_num_heads"):
        options["pool_heads"] = heads
    if not arguments.get("use_rot_pos_emb"):
        return options
    kind, indexing = arguments.get("rope_type", "cat"), arguments.get("rope_grid_indexing", "ij")
    half = bool(arguments.get("rope_rotate_half"))
    kinds = {("cat", "ij", False): "axial", ("cat", "xy", False): "axial-xy"}
    kinds |= {("mixed", "xy", False): "mixed", ("dinov3", "ij", True): "centered"}
    if (kind, indexing, half) not in kinds:
        said = f"rope_type={kind!r}, rope_grid_indexing={indexing!r}, rope_rotate_half={half}"
        raise InputError(f"config.json: vitrail has no rotary positions with {said}")
    rows, columns = arguments.get("ref_feat_shape") or (0, 0)
    if rows != columns:
        raise InputError(f"config.json: ref_feat_shape {rows}x{columns} must be square")
    options |= {"rotary": kinds[kind, indexing, half], "rotary_grid": rows}
    options["rotary_theta"] = float(arguments.get("rope_temperature", 10_000))
    return options | {"rotary_offset": float(arguments.get("rope_grid_offset", 0))}


def write_eva_arguments(spec: ViTSpec) -> tuple[str, dict[str, Any]]:
    """Return an entry of timm's, and all arguments that make it a model of this spec."""
    if spec.position == "relative-2d":
        return _write_beit_arguments(spec)
    rope = {
        "axial": {"rope_type": "cat", "rope_grid_indexing": "ij", "rope_rotate_half": False},
        "axial-xy": {"rope_type": "cat", "rope_grid_indexing": "xy", "rope_rotate_half": False},
        "mixed": {"rope_type": "mixed", "rope_grid_indexing": "xy", "rope_rotate_half": False},
        "centered": {"rope_type": "dinov3", "rope_grid_indexing": "ij", "rope_rotate_half": True},
    }
    arguments: dict[str, Any] = {
        **shape_arguments(spec),
        # Half a unit more than the hidden size, because timm rounds the product down.
        "mlp_ratio": (spec.mlp + 0.5) / spec.width,
        "swiglu_mlp": spec.activation == "swiglu",
        "swiglu_align_to": int(has_split_gate(spec)),
        "scale_mlp": spec.sub_norm != "none",
        "scale_attn_inner": spec.sub_norm == "both",
        "qkv_bias": spec.qkv_bias,
        "qkv_fused": not has_split_qkv(spec),
        "attn_type": "rope" if spec.key_bias and spec.qkv_bias else "eva",
        "qk_norm": spec.qk_norm,
        "class_token": spec.class_tokens > 0,
        "num_reg_tokens": spec.registers,
        "no_embed_class": spec.positioned == 0,
        "use_abs_pos_emb": spec.position != "none",
        "use_rot_pos_emb": spec.rotary != "none",
        "rope_temperature": spec.rotary_theta,
        "rope_grid_offset": spec.rotary_offset,
        "use_post_norm": spec.norm_place == "post",
        "use_pre_transformer_norm": spec.pre_norm,
        "use_post_transformer_norm": spec.last_norm == "tokens",
        "use_fc_norm": spec.last_norm == "pooled",
        "global_pool": "avg" if spec.pool == "gap" else spec.pool,
        "dynamic_img_size": False,
        "attn_only_layer_scale": spec.layer_scale_at == "attention",
        **rope.get(spec.rotary, {}),
    }
    if spec.pool == "map":
        arguments["attn_pool_num_heads"] = spec.pool_heads or spec.heads
        arguments["attn_pool_mlp_ratio"] = ((spec.pool_mlp or spec.mlp) + 0.5) / spec.width
    if spec.key_heads:
        arguments["num_kv_heads"] = [spec.key_heads_of(layer) for layer in range(spec.depth)]
    if spec.layer_scale:
        arguments["init_values"] = spec.layer_scale
    if spec.rotary_grid:
        arguments["ref_feat_shape"] = [spec.rotary_grid] * 2
    return _choose_entry(spec), arguments


def _write_beit_arguments(spec: ViTSpec) -> tuple[str, dict[str, Any]]:
    if not spec.layer_scale:
        raise InputError("timm's BEiT does not support layer_scale=0")
    return "beit_base_patch16_224", {
        **shape_arguments(spec),
        "mlp_ratio": (spec.mlp + 0.5) / spec.width,
        "swiglu_mlp": spec.activation == "swiglu",
        "scale_mlp": spec.sub_norm != "none",
        "init_values": spec.layer_scale,
        "global_pool": "avg" if spec.pool == "gap" else spec.pool,
    }


def _choose_entry(spec: ViTSpec) -> str:
    """Choose an entry by what no argument can say: the epsilon, no LayerScale, no scaled grid."""
    if spec.norm == "rms":
        return "vit_base_patch16_sapiens2"
    if spec.norm_eps == 1e-6:
        return "eva_giant_patch14_224"
    if spec.norm_eps == 1e-5 and spec.layer_scale:
        return "vit_base_patch16_dinov3"
    if spec.norm_eps == 1e-5 and spec.rotary_grid:
        return "vit_pe_spatial_base_patch16_512"
    raise InputError(
        f"timm's EVA does not support norm_eps={spec.norm_eps:g} with layer_scale="
        f"{spec.layer_scale:g} and rotary_grid={spec.rotary_grid}"
    )
