"""transformers' YOLOS, a ViT with detection tokens: registers with positions, here.

Its tables of positions hold the class token, the patches, then the detection tokens, and one tensor
holds those of all later layers. They are cut where our order differs, and joined for writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import UNGATED, count_outputs, require_vit, shape_of
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.huggingface.huggingface_inference import infer_hf_encoder
from vitrail.weights.formats.huggingface.huggingface_names import VIT, normalize_names
from vitrail.weights.formats.huggingface.huggingface_tables import hf_encoder_rows
from vitrail.weights.formats.keymap import Part, Row, Table, Tensors, linear_rows, make_table

_TOKENS = "embeddings.detection_tokens"
_MIDDLE = "encoder.mid_position_embeddings"
_PIECES = ("class", "patches", "detection")
_NAMES = replace(VIT, positions=f"{VIT.positions}[patches]")


def is_yolos(shapes: Shapes) -> bool:
    """Say whether tensors are YOLOS's: a ViT's by transformers' names, with detection tokens."""
    return _TOKENS in shapes and f"{VIT.layer}.0.{VIT.norms[0]}.weight" in shapes


def _infer_yolos(shapes: Shapes, facts: FileFacts) -> Spec:
    given = infer_hf_encoder(shapes, facts, _NAMES, 0)
    given["position_at"] = "every-layer" if _layer(1, "patches") in shapes else "input"
    return ViTSpec(
        **given,
        classes=0,
        representation=count_outputs(shapes, "pooler.dense.weight"),
        registers=shape_of(shapes, _TOKENS, 3)[1],
        register_position=True,
    )


def _layer(number: int, piece: str) -> str:
    return f"{_MIDDLE}[{number}][{piece}]" if number else f"{VIT.positions}[{piece}]"


def _yolos_table(spec: Spec) -> Table:
    project = "transformers' YOLOS"
    options: dict[str, Any] = {"position_at": ("input", "every-layer"), "activation": UNGATED}
    options |= {"qkv_bias": (True, False), "register_position": True, "classes": 0}
    spec = require_vit(spec, project, pool="token", distilled=False, **options)
    rows: list[Row] = [("class_token", "embeddings.cls_token"), ("registers", _TOKENS)]
    rows += hf_encoder_rows(spec, _NAMES, "")
    rows += _position_rows(spec)
    rows += linear_rows("head.hidden", "pooler.dense")
    return make_table(spec, rows, project, knows=("register_position",))


def _position_rows(spec: ViTSpec) -> Iterator[Row]:
    """Give each layer's table in our order: class token, registers, patches."""
    counts = {"class": 1, "detection": spec.registers, "patches": spec.grid[0] * spec.grid[1]}
    for layer in range(spec.depth if spec.position_at == "every-layer" else 1):
        parts = (Part(_layer(layer, piece), (n, spec.width)) for piece, n in counts.items())
        yield f"positions.{layer}.table", *parts


def yolos_config(spec: ViTSpec) -> dict[str, Any]:
    """Give what a config.json says of a YOLOS beyond its sizes."""
    return {
        "architectures": ["YolosModel"],
        "model_type": "yolos",
        "image_size": list(spec.image),
        "num_detection_tokens": spec.registers,
        "use_mid_position_embeddings": spec.position_at == "every-layer",
    }


def _normalize(tensors: Mapping[str, Tensor]) -> Tensors:
    renamed = {key.replace(".interpolation.mid_", ".mid_"): tensors[key] for key in tensors}
    named = normalize_names(renamed)
    tokens, table = named.get(_TOKENS), named.get(VIT.positions)
    if tokens is None or table is None or tokens.ndim != 3 or table.ndim != 3:
        return named
    tables = [named.pop(VIT.positions)[0]]
    if (middle := named.get(_MIDDLE)) is not None and middle.ndim == 4:
        tables += named.pop(_MIDDLE)[:, 0].unbind()
    for layer, rows in enumerate(tables):
        cut = max(len(rows) - tokens.shape[1], 1)
        pieces = (rows[:1], rows[1:cut], rows[cut:])
        named |= {_layer(layer, piece): rows for piece, rows in zip(_PIECES, pieces, strict=True)}
    return named


def _denormalize(tensors: Mapping[str, Tensor], spec: Spec) -> Tensors:
    joined = {key: value for key, value in tensors.items() if "[" not in key}
    count = sum(key.endswith("[class]") for key in tensors)
    tables = [
        torch.cat([tensors[_layer(layer, piece)] for piece in _PIECES])[None]
        for layer in range(count)
    ]
    joined[VIT.positions] = tables[0]
    if len(tables) > 1:
        joined[_MIDDLE] = torch.stack(tables[1:])
    return joined


def _left_out(key: str) -> str | None:
    if key.startswith(("class_labels_classifier.", "bbox_predictor.")):
        return "the detection head, which vitrail does not have"
    return None


HF_YOLOS = Format(
    *("transformers YOLOS", is_yolos, _infer_yolos, _yolos_table),
    *(_left_out, _normalize, _denormalize),
)
