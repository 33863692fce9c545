"""transformers' BEiT and data2vec: relative positions as a bias, no bias of keys."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import (
    UNGATED,
    count_outputs,
    require,
    require_vit,
    shape_of,
)
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.huggingface.huggingface_inference import infer_hf_encoder, read_number
from vitrail.weights.formats.huggingface.huggingface_names import VIT, normalize_names
from vitrail.weights.formats.huggingface.huggingface_tables import hf_encoder_rows
from vitrail.weights.formats.keymap import Row, Table, linear_rows, make_table

_NAMES = replace(VIT, scales=("lambda_1", "lambda_2"))
_TABLE = "relative_position_bias.relative_position_bias_table"
_SHARED = f"encoder.{_TABLE}"


def _each(layer: int) -> str:
    return f"{VIT.layer}.{layer}.attention.attention.{_TABLE}"


def is_beit(shapes: Shapes) -> bool:
    """Say whether tensors are BEiT's: a ViT's by transformers' names, without a bias of keys."""
    roots = ("", "beit.")
    query, key, _ = (f"{VIT.layer}.0.{name}.bias" for name in VIT.attention)
    return any(r + query in shapes and r + key not in shapes for r in roots) and any(
        f"{r}embeddings.cls_token" in shapes for r in roots
    )


def _infer_beit(shapes: Shapes, facts: FileFacts) -> Spec:
    root = "" if "embeddings.cls_token" in shapes else "beit."
    kinds = {
        "absolute positions": root + VIT.positions,
        "relative positions of each layer": root + _each(0),
        "shared relative positions": root + _SHARED,
    }
    found = [kind for kind, key in kinds.items() if key in shapes]
    if len(found) > 1:
        raise InputError(f"a BEiT with {' and '.join(found)}: vitrail has one kind at a time")
    absolute = "absolute positions" in found
    biases = [shape_of(shapes, kinds[kind], 2) for kind in found if not absolute]
    config = facts.config
    if biases and "image_size" not in config and facts.named is None:
        side = (isqrt(biases[0][0] - 3) + 1) // 2
        patch = shape_of(shapes, f"{root}{VIT.patch}.weight", 4)[2]
        facts = facts.with_config({**config, "image_size": side * patch})
    names = _NAMES if absolute else replace(_NAMES, positions="")
    given = infer_hf_encoder(shapes, facts, names, 1)
    if biases:
        given |= {"position": "relative-2d", "heads": biases[0][1]}
        given["position_at"] = "shared" if root + _SHARED in shapes else "every-layer"
        _check_square(given["image"])
    elif not absolute:
        given["position"] = "none"
    scaled = f"{root}{VIT.layer}.0.lambda_1" in shapes
    scale = float(read_number(config, "layer_scale_init_value", 0.1)) or 0.1
    mean = f"{root}pooler.layernorm.weight" in shapes
    if mean:
        given |= {"pool": "gap", "unpooled_class_token": True, "last_norm": "pooled"}
    elif f"{root}layernorm.weight" not in shapes:
        given["last_norm"] = "none"
    classes = count_outputs(shapes, "classifier.weight")
    return ViTSpec(**given, classes=classes, key_bias=False, layer_scale=scale * scaled)


def _check_square(image: tuple[int, int]) -> None:
    if image[0] != image[1]:
        raise InputError(
            f"a BEiT for {image[0]}x{image[1]} images: transformers reads its relative positions "
            "with rows and columns exchanged; only square ones are the same model elsewhere"
        )


def _beit_table(spec: Spec) -> Table:
    project = "transformers' BEiT"
    options: dict[str, Any] = {"position": ("none", "learned-1d", "relative-2d")}
    options |= {"position_at": ("input", "every-layer", "shared"), "activation": UNGATED}
    spec = require_vit(spec, project, key_bias=False, pool=("token", "gap"), **options)
    relative = spec.position == "relative-2d"
    require(spec, project, head_bias=True, rotary="none")
    if spec.pool == "gap":
        require(spec, project, unpooled_class_token=True, last_norm="pooled")
    else:
        require(spec, project, last_norm=("tokens", "none"))
    if relative:
        _check_square(spec.image)
    else:
        require(spec, project, position_at="input")
    root = "beit." if spec.classes else ""
    rows: list[Row] = [("class_token", f"{root}embeddings.cls_token")]
    rows += hf_encoder_rows(spec, _NAMES, root)
    if relative and spec.position_at == "shared":
        rows.append(("positions.0.table", root + _SHARED))
    elif relative:
        rows += [(f"positions.{n}.table", root + _each(n)) for n in range(spec.depth)]
    rows += linear_rows("pooled_norm", f"{root}pooler.layernorm")
    rows += linear_rows("head.output", "classifier")
    return make_table(spec, rows, project, knows=("key_bias", "unpooled_class_token", "last_norm"))


def beit_config(spec: ViTSpec) -> dict[str, Any]:
    """Give what a config.json says of a BEiT beyond its sizes and labels."""
    return {
        "architectures": ["BeitForImageClassification" if spec.classes else "BeitModel"],
        "model_type": "beit",
        "use_absolute_position_embeddings": spec.position == "learned-1d",
        "use_relative_position_bias": spec.position_at == "every-layer",
        "use_shared_relative_position_bias": spec.position_at == "shared",
        "use_mean_pooling": spec.last_norm != "tokens",
        "use_mask_token": False,
        "layer_scale_init_value": spec.layer_scale,
        "drop_path_rate": spec.stochastic_depth,
    }


def _left_out(key: str) -> str | None:
    if key.endswith("relative_position_index"):
        return "the positions' numbers, no weights"
    if key.endswith("embeddings.mask_token") or key.startswith("lm_head."):
        return "used by pre-training only"
    if key.removeprefix("beit.").startswith(("decode_head.", "auxiliary_head.", "fpn")):
        return "the segmentation head, which vitrail does not have"
    return None


HF_BEIT = Format("transformers BEiT", is_beit, _infer_beit, _beit_table, _left_out, normalize_names)
