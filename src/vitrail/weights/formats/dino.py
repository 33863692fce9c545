"""facebookresearch's names: DINO and DINOv2 backbones, and MAE's encoder.

A backbone alone that has neither registers, nor a mask token, nor a gate is timm's as well: the
same tensors are the same model there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import UNGATED, heads_of, require_vit
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.keymap import Row, Table, make_table
from vitrail.weights.formats.timm.timm import encoder_rows, is_encoder
from vitrail.weights.formats.timm.timm_inference import infer_encoder

_TO_TIMM = {"register_tokens": "reg_token"}
_TO_TIMM |= {f"mlp.{dino}.": f"mlp.{timm}." for dino, timm in (("w12", "fc1"), ("w3", "fc2"))}
_DINO_HEADS = {**heads_of("Ti S B L"), (40, 1536, 4096): 24}
_MAE_HEADS = heads_of("B L H")
_DINO_ONLY = r"register_tokens|mask_token|blocks\.0\.mlp\.w12\.weight|student\..+"
_DINO_HEAD = r"(head\.(mlp|last_layer)|dino_head|ibot_head)\..+"
_DECODER = r"decoder_\w+(\..+)?"
_ROOMS = re.compile(r"^(teacher\.|module\.|backbone\.|_orig_mod\.)+")
_CHUNK = re.compile(r"^blocks\.\d+\.(\d+)\.")


def _has(shapes: Shapes, pattern: str) -> bool:
    return any(re.fullmatch(pattern, key) for key in shapes)


def _is_mae(shapes: Shapes) -> bool:
    return is_encoder(shapes) and _has(shapes, _DECODER)


def _is_dino(shapes: Shapes) -> bool:
    marked = _has(shapes, f"{_DINO_ONLY}|{_DINO_HEAD}")
    return is_encoder(shapes) and marked and not _is_mae(shapes)


def _dino_table(spec: Spec) -> Table:
    vit = require_vit(spec, "DINO", pool="token", qkv_bias=(True, False))
    names = ("w12", "w3") if vit.activation == "swiglu" else ("fc1", "fc2")
    return make_table(vit, _dino_rows(vit, *names), "DINO")


def _dino_rows(spec: ViTSpec, hidden: str, output: str) -> Iterator[Row]:
    yield from encoder_rows(spec, hidden, output)
    yield "registers", "register_tokens"


def _mae_table(spec: Spec) -> Table:
    options: dict[str, Any] = {"layer_scale": 0.0, "qk_norm": False, "activation": UNGATED}
    vit = require_vit(spec, "MAE", pool="token", qkv_bias=(True, False), **options)
    return make_table(vit, encoder_rows(vit), "MAE")


def _infer_dino(shapes: Shapes, facts: FileFacts) -> Spec:
    """Read a backbone's spec; the projection head of pre-training is not a classifier."""
    named = {_timm_name(key): shape for key, shape in shapes.items()}
    spec = infer_encoder(
        {k: v for k, v in named.items() if not re.match("head", k)}, facts, _DINO_HEADS
    )
    # DINOv2 with registers resizes positions with antialiasing, as timm does; without them
    # otherwise, and so does DINO.
    return replace(spec, position_resize="timm" if spec.registers else "dinov2")


def _timm_name(key: str) -> str:
    for dino, timm in _TO_TIMM.items():
        key = key.replace(dino, timm)
    return key


def _infer_mae(shapes: Shapes, facts: FileFacts) -> Spec:
    """Read the encoder's spec; its fixed sin-cos positions are a table in the file."""
    return replace(infer_encoder(shapes, facts, _MAE_HEADS), position_resize="huggingface")


def _leave_dino(key: str) -> str | None:
    if key == "mask_token":
        return "the mask token, used by pre-training only"
    if re.fullmatch(_DINO_HEAD, key):
        return "the projection head, used by pre-training only"
    if key.startswith("student."):
        return "the student, of which the teacher is the average"
    return None


def _leave_mae(key: str) -> str | None:
    if key == "mask_token" or re.fullmatch(_DECODER, key):
        return "the decoder, used by pre-training only"
    return None


def _normalize(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the teacher of a training checkpoint, without what wraps its names.

    DINOv2 cuts its blocks into chunks for training: blocks.CHUNK.LAYER.
    """
    named = {_ROOMS.sub("", key): key for key in theirs}
    return {_CHUNK.sub(r"blocks.\1.", name): theirs[key] for name, key in named.items()}


DINO = Format("DINO", _is_dino, _infer_dino, _dino_table, _leave_dino, _normalize)
MAE = Format("MAE", _is_mae, _infer_mae, _mae_table, _leave_mae, _normalize)
