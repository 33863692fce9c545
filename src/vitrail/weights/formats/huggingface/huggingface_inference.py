"""What all families of transformers share: the encoder's sizes, from tensors and config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitrail.config import InputError, suggest
from vitrail.models.spec import Activation, Size, ViTSpec
from vitrail.weights.formats.conventions import count_depth, find_heads, find_image, shape_of
from vitrail.weights.formats.format import FileFacts, Shapes
from vitrail.weights.formats.huggingface.huggingface_names import Names

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "quick_gelu": "quick-gelu",
}
"""What we call a config.json's `hidden_act`."""

GATES: dict[str, Activation] = {"silu": "swiglu", "gelu": "geglu"}
"""What we call it where it gates another branch."""


_CONFIG = ("model_type", "hidden_size", "vision_config")
"""Keys that show that a config.json is transformers'."""
_MODEL_TYPES = (
    *("vit", "vit_mae", "vit_msn", "deit", "dinov2", "dinov2_with_registers"),
    *("dinov3_vit", "ijepa", "clip", "clip_vision_model", "siglip", "siglip_vision_model"),
    *("siglip2", "siglip2_vision_model", "aimv2", "aimv2_vision_model"),
    *("beit", "data2vec-vision", "yolos"),
    *("metaclip_2", "metaclip_2_vision_model", "altclip", "altclip_vision_model"),
)
"""The families of transformers that our models reproduce."""


def gate_config(spec: ViTSpec) -> dict[str, str]:
    """Give the `hidden_act` of a gated MLP; nothing where there is none."""
    names = {ours: {"hidden_act": theirs} for theirs, ours in GATES.items()}
    return names.get(spec.activation, {})


def check_model_type(config: Mapping[str, Any]) -> None:
    """Refuse a family of transformers that may compute something else with the same tensors."""
    kind = config.get("model_type")
    if kind is not None and kind not in _MODEL_TYPES:
        raise InputError(
            f"config.json: model_type {str(kind)[:60]!r} is not among the models of transformers "
            f"that vitrail reproduces: {', '.join(_MODEL_TYPES)}"
        )


def infer_hf_encoder(shapes: Shapes, facts: FileFacts, names: Names, tokens: int) -> dict[str, Any]:
    """Read what all families say alike; `tokens` of them have a position before the patches."""
    check_model_type(facts.config)
    config = facts.config.get("vision_config", facts.config)
    if not isinstance(config, Mapping):
        raise InputError(f"config.json: expected keys and values in vision_config, got {config!r}")
    first = next(key for key in shapes if key.endswith(f"{names.patch}.weight"))
    root = first.removesuffix(f"{names.patch}.weight")
    layer = f"{root}{names.layer}.0"
    width, channels, *patch = shape_of(shapes, first, 4)
    both = {**facts.config, **config}
    bare = both.keys().isdisjoint(_CONFIG)
    if bare and facts.named is None:
        raise InputError(
            "no config.json beside the file: its heads, epsilon and activation are not known; add "
            "it, or name the model, as in --model ViT-B/16"
        )
    activation = config.get("hidden_act", names.activation)
    known = GATES if names.gate else ACTIVATIONS
    if names.gate != "silu" and activation not in list(known):
        hint = suggest(str(activation), known)
        what = "a gated MLP's hidden_act" if names.gate else "hidden_act"
        raise InputError(f"unknown {what} {activation!r}; there are: {', '.join(known)}{hint}")
    rows = shapes.get(root + names.positions, ())[-2:]
    if names.positions and len(rows) != 2:
        raise InputError(f"missing {root + names.positions!r}, or misshapen: {rows}")
    depth = count_depth(shapes, rf"{re.escape(root + names.layer)}\.(\d+)\.")
    mlp = shape_of(shapes, f"{layer}.{names.mlp[-1]}.weight", 2)[1]
    told = facts.told if bare else FileFacts().told  # what a config leaves out is its default
    return {
        "depth": depth,
        "width": width,
        "heads": _heads(both, facts, names.heads, (depth, width, mlp)),
        "mlp": mlp,
        "patch": (patch[0], patch[1]),
        "image": _image(both, facts, (patch[0], patch[1]), rows[0] - tokens if rows else None),
        "channels": channels,
        "activation": "swiglu" if names.gate == "silu" else told("activation", known[activation]),
        "qkv_bias": f"{layer}.{names.attention[0]}.bias" in shapes,
        "norm_eps": told("norm_eps", float(read_number(config, "layer_norm_eps", names.eps))),
        "position_resize": "huggingface",
    }


def read_number(config: Mapping[str, Any], key: str, default: float = 0) -> Any:
    """Read a number that is not negative; the default where the config leaves it out."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InputError(f"config.json: expected a number for {key}, got {value!r}")
    return value


def _heads(
    config: Mapping[str, Any], facts: FileFacts, usual: int, shape: tuple[int, int, int]
) -> int:
    """Read the heads; a config that leaves them out means the family's default."""
    heads = config.get("num_attention_heads", usual if "model_type" in config else 0)
    if type(heads) is not int or heads < 0:
        raise InputError(f"config.json: expected a number for num_attention_heads, got {heads!r}")
    return heads or find_heads(facts, shape, {})


def _image(config: Mapping[str, Any], facts: FileFacts, patch: Size, patches: int | None) -> Size:
    """Give the resolution, cut to whole patches as SigLIP's convolution cuts 384 to 27 x 14."""
    size = config.get("image_size")
    if size is None:
        return find_image(facts, patch, patches)
    sides = [size, size] if isinstance(size, int) else size
    if not isinstance(sides, list | tuple) or [type(side) for side in sides] != [int, int]:
        raise InputError(f"config.json: expected a size or two for image_size, got {size!r}")
    return sides[0] // patch[0] * patch[0], sides[1] // patch[1] * patch[1]
