"""How transformers names ViTs on disk, and how its other spellings are brought to that.

What it has in memory, and what other versions of it have written, `normalize` renames.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    last: str = "layernorm"
    eps: float = 1e-12
    activation: str = "gelu"


VIT = Names()
DINO = replace(VIT, norms=("norm1", "norm2"), mlp=("mlp.fc1", "mlp.fc2"), eps=1e-6)
GATED = replace(DINO, mlp=("mlp.weights_in", "mlp.weights_out"))
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

_ROOTS = ("vit", "deit", "dinov2", "dinov2_with_registers", "vision_model")
_INNER = ("embeddings", "encoder", "layernorm", "pooler", "pre_layrnorm", "post_layernorm", "head")
_RENAMED = [
    (rf"^({'|'.join(_ROOTS)})\.(?=({'|'.join(_INNER)}|layers)\.)", ""),
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


def normalize(tensors: Mapping[str, Tensor]) -> Tensors:
    """Name a file's tensors as the tables do, whatever version of transformers wrote them.

    SigLIP's `in_proj`, which feeds two of our parameters, is cut in two; `denormalize` joins it.
    Nothing is copied, except SwiGLU's two branches where they come apart. A file that has a
    parameter twice stays as it is, for the table to refuse.
    """
    named = {_rename(key): value for key, value in tensors.items()}
    if len(named) < len(tensors):
        return dict(tensors)
    for key in list(named):
        if ".mlp.gate_proj." in key:
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


def denormalize(tensors: Mapping[str, Tensor]) -> Tensors:
    """Join what `normalize` cut: the tensors as transformers has them on disk."""
    joined = dict(tensors)
    for key in [key for key in joined if key.endswith("[query]")]:
        name = key.removesuffix("[query]")
        joined[name] = torch.cat([joined.pop(key), joined.pop(f"{name}[key_value]")])
    return joined


def _root(named: Mapping[str, Tensor]) -> str:
    """Say what stands before an encoder's names on disk; nothing where it has no classifier."""
    if CLIP.positions in named:
        return "vision_model."
    if "cls_classifier.weight" in named:
        return "deit."
    plain = f"{VIT.layer}.0.{VIT.norms[0]}.weight" in named
    return "vit." if plain and "classifier.weight" in named else ""
