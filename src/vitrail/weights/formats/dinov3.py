"""facebookresearch's DINOv3 backbones, as its hub gives them (.pth)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import (
    count_depth,
    find_heads,
    find_image,
    require_vit,
    shape_of,
)
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.keymap import Row, Table, linear_rows, make_table

_THETA = 100.0
_PERIODS = "rope_embed.periods"
_HEADS = {(12, 384): 6, (12, 768): 12, (24, 1024): 16, (32, 1280): 20, (40, 4096): 32}
"""Of S and S+, B, L, H+ and 7B, by depth and width."""
_ROOMS = re.compile(r"^(teacher\.|module\.|backbone\.|_orig_mod\.)+")
_LEFT_OUT = {
    r"mask_token|local_cls_norm\..+": "used by pre-training only",
    r"(projectors|dino_head|ibot_head)\..+": "a projection, used by pre-training only",
    r"rope_embed\.periods": "the rotary frequencies, which are computed",
}
_OURS = {"attention.norm": "norm1", "attention.output": "attn.proj", "mlp.norm": "norm2"}
_OURS |= {"attention.qkv": "attn.qkv", "mlp.hidden": "mlp.fc1", "mlp.output": "mlp.fc2"}


def _is_dinov3(shapes: Shapes) -> bool:
    return {_PERIODS, "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= shapes.keys()


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    width, channels, *patch = shape_of(shapes, "patch_embed.proj.weight", 4)
    gated = "blocks.0.mlp.w3.weight" in shapes
    output = f"blocks.0.mlp.{'w3' if gated else 'fc2'}.weight"
    depth, mlp = count_depth(shapes, r"blocks\.(\d+)\."), shape_of(shapes, output, 2)[1]
    stride = patch[0], patch[1]
    known = {(*shape, mlp): heads for shape, heads in _HEADS.items()}
    biased = "blocks.0.attn.qkv.bias" in shapes
    return ViTSpec(
        depth=depth,
        width=width,
        heads=find_heads(facts, (depth, width, mlp), known),
        mlp=mlp,
        patch=stride,
        image=find_image(facts, stride, None),
        channels=channels,
        classes=0,
        registers=shape_of(shapes, "storage_tokens", 3)[1] if "storage_tokens" in shapes else 0,
        position="none",
        position_resize="timm",
        rotary="centered",
        rotary_theta=_THETA,
        activation="swiglu" if gated else "gelu",
        qkv_bias=biased or "blocks.0.attn.q_bias" in shapes,
        key_bias="blocks.0.attn.q_bias" not in shapes,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in shapes else 0.0,
        norm_eps=1e-5,
    )


def _table(spec: Spec) -> Table:
    options: dict[str, Any] = {"position": "none", "qkv_bias": (True, False), "classes": 0}
    vit = require_vit(spec, "DINOv3", pool="token", rotary="centered", **options)
    return make_table(vit, _rows(vit), "DINOv3", knows=("rotary", "key_bias"))


def _rows(spec: ViTSpec) -> Iterator[Row]:
    yield "class_token", "cls_token"
    yield "registers", "storage_tokens"
    yield from linear_rows("embedding", "patch_embed.proj")
    for layer in range(spec.depth):
        block = f"blocks.{layer}"
        for ours, theirs in _OURS.items():
            yield from linear_rows(f"{block}.{ours}", f"{block}.{theirs}")
        yield f"{block}.attention.qkv_bias.bias", f"{block}.attn.q_bias", f"{block}.attn.v_bias"
        if spec.activation == "swiglu":
            for kind in ("weight", "bias"):
                gate = (f"{block}.mlp.{name}.{kind}" for name in ("w1", "w2"))
                yield f"{block}.mlp.hidden.{kind}", *gate
            yield from linear_rows(f"{block}.mlp.output", f"{block}.mlp.w3")
        for branch in (1, 2):
            yield f"{block}.after{branch}.scale.factor", f"{block}.ls{branch}.gamma"
    yield from linear_rows("norm", "norm")


def _normalize(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop what wraps the names, and the keys' biases where a mask makes them zero."""
    named = {_ROOMS.sub("", key): tensor for key, tensor in theirs.items()}
    tensors: dict[str, Tensor] = {}
    for key, tensor in named.items():
        attention, _, leaf = key.rpartition(".qkv.")
        if leaf == "bias_mask":
            continue
        mask = named.get(f"{attention}.qkv.bias_mask")
        if leaf != "bias" or mask is None:
            tensors[key] = tensor
            continue
        _check_mask(mask, key)
        tensors[f"{attention}.q_bias"], _, tensors[f"{attention}.v_bias"] = tensor.chunk(3)
    periods = named.get(_PERIODS)
    if periods is not None and _is_dinov3({key: tuple(t.shape) for key, t in named.items()}):
        _check_periods(periods)
    return tensors


def _check_mask(mask: Tensor, key: str) -> None:
    if mask.is_meta:
        return
    query, keys, value = mask.float().chunk(3)
    if keys.any() or not (query == 1).all() or not (value == 1).all():
        raise InputError(f"{key}_mask: expected a mask that leaves out the keys' biases only")


def _check_periods(periods: Tensor) -> None:
    """Refuse other rotary frequencies than all published DINOv3 have; 7B's are rounded."""
    if periods.is_meta:
        return
    count = periods.numel()
    expected = _THETA ** (torch.arange(count, dtype=torch.float32) / count)
    if not torch.allclose(periods.float().flatten().cpu(), expected, rtol=0.01):
        raise InputError(f"{_PERIODS}: expected those of a base of {_THETA:g}, as published")


def _left_out(key: str) -> str | None:
    found = (why for pattern, why in _LEFT_OUT.items() if re.fullmatch(pattern, key))
    return next(found, None)


DINOV3 = Format("DINOv3", _is_dinov3, _infer, _table, _left_out, _normalize)
