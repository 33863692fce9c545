"""How transformers names ViTs on disk, and how its other spellings are brought to that.

What it has in memory, and what other versions of it have written, `normalize_names` renames.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Literal

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.weights.formats.keymap import Tensors


@dataclass(frozen=True)
class Names:
    """How a family calls its parts, and what it takes for granted without a config.json."""

    patch: str = "embeddings.patch_embeddings.projection"
    positions: str = "embeddings.position_embeddings"
    layer: str = "encoder.layer"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    attention: tuple[str, ...] = tuple(
        f"attention.attention.{x}" for x in ("query", "key", "value")
    )
    output: str = "attention.output.dense"
    mlp: tuple[str, ...] = ("intermediate.dense", "output.dense")
    """The hidden layer, of a gated MLP in one or in two tensors, and the output."""
    gate: Literal["", "silu", "hidden_act"] = ""
    """What gates the MLP: nothing, always silu, or what the config says."""
    scales: tuple[str, str] | None = None
    last: str = "layernorm"
    eps: float = 1e-12
    activation: str = "gelu"
    heads: int = 12


VIT = Names()
DINO = replace(VIT, norms=("norm1", "norm2"), mlp=("mlp.fc1", "mlp.fc2"), eps=1e-6)
DINO = replace(DINO, scales=("layer_scale1.lambda1", "layer_scale2.lambda1"))
GATED = replace(DINO, mlp=("mlp.weights_in", "mlp.weights_out"), gate="silu")
CLIP = Names(
    patch="embeddings.patch_embedding",
    positions="embeddings.position_embedding.weight",
    layer="encoder.layers",
    norms=("layer_norm1", "layer_norm2"),
    attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    last="post_layernorm",
    eps=1e-5,
    activation="quick_gelu",
)
SIGLIP = replace(CLIP, eps=1e-6, activation="gelu_pytorch_tanh")
SIGLIP2 = replace(SIGLIP, patch=f"{SIGLIP.patch}[flat]")

DINO_ROOTS = ("dinov2.", "dinov2_with_registers.")
"""What stands before the names of a DINOv2 with a classifier, without registers and with them."""
_ROOTS = (
    *("vit", "deit", "ijepa", "dinov2", "dinov2_with_registers", "vision_model"),
    *("beit", "data2vec_vision"),
)
_INNER = ("embeddings", "encoder", "layernorm", "pooler", "pre_layrnorm", "post_layernorm", "head")
_BIAS = "relative_position_bias."
_RENAMED = [
    (rf"^({'|'.join(_ROOTS)})\.(?=({'|'.join(_INNER)}|layers|shared_position_bias)\.)", ""),
    (r"^shared_position_bias\.", f"encoder.{_BIAS}"),
    (rf"^layers\.(\d+)\.{_BIAS}", rf"layers.\1.attention.attention.{_BIAS}"),
    (r"^layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"^layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"^layers\.", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.down_proj\.", ".mlp.weights_out."),
]


def _rename(key: str) -> str:
    for pattern, new in _RENAMED:
        key = re.sub(pattern, new, key)
    return key


def normalize_names(tensors: Mapping[str, Tensor]) -> Tensors:
    """Name a file's tensors as the tables do, whatever version of transformers wrote them.

    SigLIP's `in_proj`, which feeds two of our parameters, is cut in two, and SigLIP 2's dense patch
    embedding becomes a convolution; `denormalize_names` undoes both. Nothing is copied, except
    SwiGLU's two branches where they come apart. A file that has a parameter twice stays as it is,
    for the table to refuse.
    """
    if {"lm_head.weight", "beit.layernorm.weight"} <= tensors.keys():  # one norm after the other
        tensors = {re.sub(r"^layernorm\.", "lm_head.norm.", key): tensors[key] for key in tensors}
    named = {_rename(key): value for key, value in tensors.items()}
    if len(named) < len(tensors):
        return dict(tensors)
    for key in list(named):
        if key == f"{SIGLIP.patch}.weight" and named[key].ndim == 2:
            named[f"{SIGLIP2.patch}.weight"] = _make_convolution(named.pop(key))
            if (bias := f"{SIGLIP.patch}.bias") in named:
                named[f"{SIGLIP2.patch}.bias"] = named.pop(bias)
        elif ".mlp.gate_proj." in key:
            _join_branches(named, key)
        elif re.fullmatch(r"head\.attention\.in_proj_(weight|bias)", key) and named[key].ndim:
            whole = named.pop(key)
            cut = len(whole) // 3
            named[f"{key}[query]"], named[f"{key}[key_value]"] = whole[:cut], whole[cut:]
    root = _root(named)
    return {
        root + key if key.partition(".")[0] in _INNER else key: value
        for key, value in named.items()
    }


def _join_branches(named: Tensors, gate: str) -> None:
    up = gate.replace(".gate_proj.", ".up_proj.")
    if up in named and named[up].shape == named[gate].shape:
        pair = [named.pop(gate), named.pop(up)]
        named[gate.replace(".gate_proj.", ".weights_in.")] = torch.cat(pair)


def _make_convolution(weight: Tensor) -> Tensor:
    """Give the convolution that a dense layer over flat patches is; their channels come last."""
    side = isqrt(weight.shape[1] // 3)
    if weight.shape[1] != 3 * side * side:
        raise InputError(f"'patch_embedding.weight' {tuple(weight.shape)} is not of RGB squares")
    return weight.view(-1, side, side, 3).permute(0, 3, 1, 2)


def denormalize_names(tensors: Mapping[str, Tensor]) -> Tensors:
    """Undo what `normalize_names` cut and turned: the tensors as transformers has them on disk."""
    joined = dict(tensors)
    for key in [key for key in joined if key.endswith("[query]")]:
        name = key.removesuffix("[query]")
        joined[name] = torch.cat([joined.pop(key), joined.pop(f"{name}[key_value]")])
    for key in [key for key in joined if "[flat]." in key]:
        value = joined.pop(key)
        value = value.permute(0, 2, 3, 1).flatten(1).contiguous() if value.ndim == 4 else value
        joined[key.replace("[flat]", "")] = value
    return joined


def _root(named: Mapping[str, Tensor]) -> str:
    """Say what stands before an encoder's names on disk; nothing where it has no classifier."""
    if CLIP.positions in named:
        return "vision_model."
    if not {"classifier.weight", "cls_classifier.weight"} & named.keys():
        return ""
    if "embeddings.distillation_token" in named:
        return "deit."
    if f"{VIT.layer}.0.{DINO.norms[0]}.weight" in named:
        return DINO_ROOTS["embeddings.register_tokens" in named]
    if f"{VIT.layer}.0.{VIT.norms[0]}.weight" not in named:
        return ""
    if "embeddings.cls_token" not in named:
        return "ijepa."
    query, key, _ = (f"{VIT.layer}.0.{name}.bias" in named for name in VIT.attention)
    return "beit." if query and not key else "vit."
