"""Hugging Face transformers: ViT, DeiT, DINOv2, and the image towers of CLIP and SigLIP."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.config import InputError, suggest
from vitrail.models import Spec, ViTSpec
from vitrail.models.spec import Activation, Size
from vitrail.weights.formats.conventions import (
    count_depth,
    find_image,
    known_heads,
    require_vit,
    shape_of,
)
from vitrail.weights.formats.format import Format, Shapes
from vitrail.weights.formats.huggingface.huggingface_names import (
    CLIP,
    DINO,
    GATED,
    SIGLIP,
    VIT,
    Names,
    denormalize,
    normalize,
)
from vitrail.weights.formats.keymap import Part, Row, Shape, Table, dense, make_table

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "quick_gelu": "quick-gelu",
}
"""What we call a config.json's `hidden_act`."""


def _encoder_rows(spec: ViTSpec, names: Names, root: str) -> Iterator[Row]:
    rows: Shape = (spec.positioned + spec.grid[0] * spec.grid[1], spec.width)
    flat = names.positions.endswith(".weight")
    yield "positions.0.table", Part(root + names.positions, rows if flat else (1, *rows))
    yield from dense("embedding", root + names.patch)
    for number in range(spec.depth):
        ours, theirs = f"blocks.{number}", f"{root}{names.layer}.{number}"
        yield from dense(f"{ours}.attention.norm", f"{theirs}.{names.norms[0]}")
        for leaf in ("weight", "bias"):
            parts = (f"{theirs}.{part}.{leaf}" for part in names.attention)
            yield f"{ours}.attention.qkv.{leaf}", *parts
        yield from dense(f"{ours}.attention.output", f"{theirs}.{names.output}")
        yield from dense(f"{ours}.mlp.norm", f"{theirs}.{names.norms[1]}")
        yield from dense(f"{ours}.mlp.hidden", f"{theirs}.{names.mlp[0]}")
        yield from dense(f"{ours}.mlp.output", f"{theirs}.{names.mlp[1]}")
        if names in (DINO, GATED):
            for branch in (1, 2):
                scale = f"{theirs}.layer_scale{branch}.lambda1"
                yield f"{ours}.after{branch}.scale.factor", scale
    yield from dense("norm", root + names.last)


_GELUS = ("gelu", "gelu-tanh", "quick-gelu")


def _vit_table(spec: Spec) -> Table:
    project = "transformers' ViT"
    spec = require_vit(spec, project, pool=("token",), activation=_GELUS, qkv_bias=(True, False))
    root = "vit." if spec.classes else ""
    rows = [("class_token", f"{root}embeddings.cls_token"), *_encoder_rows(spec, VIT, root)]
    if spec.classes:
        require_vit(spec, project, head_bias=(True,), qkv_bias=(True, False))
        rows += dense("head.output", "classifier")
    else:
        rows += dense("head.hidden", "pooler.dense")
    return make_table(spec, rows, project)


def _deit_table(spec: Spec) -> Table:
    project = "transformers' DeiT"
    options: dict[str, tuple[Any, ...]] = {"activation": _GELUS, "qkv_bias": (True, False)}
    spec = require_vit(spec, project, distilled=(True,), head_bias=(True,), **options)
    root = "deit." if spec.classes else ""
    rows: list[Row] = [
        ("class_token", f"{root}embeddings.cls_token"),
        ("distillation_token", f"{root}embeddings.distillation_token"),
        *_encoder_rows(spec, VIT, root),
        *dense("head.output", "cls_classifier"),
        *dense("distillation_head.output", "distillation_classifier"),
    ]
    return make_table(spec, rows, project)


def _dino_table(spec: Spec) -> Table:
    project = "transformers' DINOv2"
    spec = require_vit(spec, project, pool=("token",), qkv_bias=(True, False))
    if not spec.layer_scale:
        raise InputError(f"{project} has LayerScale in every block, which {spec} has not")
    rows: list[Row] = [
        ("class_token", "embeddings.cls_token"),
        ("registers", "embeddings.register_tokens"),
        *_encoder_rows(spec, GATED if spec.activation == "swiglu" else DINO, ""),
    ]
    return make_table(spec, rows, project)


def _clip_table(spec: Spec) -> Table:
    project, root = "transformers' CLIP", "vision_model."
    options: dict[str, tuple[Any, ...]] = {"pool": ("token",), "patch_bias": (False,)}
    spec = require_vit(spec, project, pre_norm=(True,), activation=_GELUS, **options)
    token = Part(f"{root}embeddings.class_embedding", (spec.width,))
    rows: list[Row] = [
        ("class_token", token),
        *dense("pre_norm", f"{root}pre_layrnorm"),
        *_encoder_rows(spec, CLIP, root),
        ("head.output.weight", "visual_projection.weight"),
    ]
    return make_table(spec, rows, project)


def _siglip_table(spec: Spec) -> Table:
    project, root = "transformers' SigLIP", "vision_model."
    spec = require_vit(
        spec, project, pool=("gap", "map"), activation=_GELUS, class_position=(True, False)
    )
    rows = list(_encoder_rows(spec, SIGLIP, root))
    if spec.pool == "gap":
        require_vit(spec, project, head_bias=(True,), class_position=(True, False))
        rows += dense("head.output", "classifier")
    head, project_in = f"{root}head", f"{root}head.attention.in_proj"
    rows.append(("pooling.probe", f"{head}.probe"))
    for part in ("query", "key_value"):
        rows += [(f"pooling.{part}.{x}", f"{project_in}_{x}[{part}]") for x in ("weight", "bias")]
    rows += dense("pooling.output", f"{head}.attention.out_proj")
    rows += dense("pooling.mlp.norm", f"{head}.layernorm")
    rows += dense("pooling.mlp.hidden", f"{head}.mlp.fc1")
    rows += dense("pooling.mlp.output", f"{head}.mlp.fc2")
    return make_table(spec, rows, project)


_MODEL_TYPES = (
    *("vit", "vit_mae", "vit_msn", "deit", "dinov2", "dinov2_with_registers"),
    *("clip", "clip_vision_model", "siglip", "siglip_vision_model"),
)
"""The families of transformers that our models reproduce."""


def _infer(shapes: Shapes, config: Mapping[str, Any], names: Names, tokens: int) -> dict[str, Any]:
    """Read what all families say alike; `tokens` of them have a position before the patches."""
    kind = config.get("model_type")
    if kind is not None and kind not in _MODEL_TYPES:
        raise InputError(
            f"config.json: model_type {str(kind)[:60]!r} is not among the models of transformers "
            f"that vitrail reproduces: {', '.join(_MODEL_TYPES)}"
        )
    named, config = config, config.get("vision_config", config)
    if not isinstance(config, Mapping):
        raise InputError(f"config.json: expected keys and values in vision_config, got {config!r}")
    first = next(key for key in shapes if key.endswith(f"{names.patch}.weight"))
    root = first.removesuffix(f"{names.patch}.weight")
    layer = f"{root}{names.layer}.0"
    width, channels, *patch = shape_of(shapes, first, 4)
    activation = config.get("hidden_act", names.activation)
    if activation not in list(ACTIVATIONS):
        hint = suggest(str(activation), ACTIVATIONS)
        raise InputError(
            f"unknown hidden_act {activation!r}; there are: {', '.join(ACTIVATIONS)}{hint}"
        )
    rows = shapes.get(root + names.positions, ())[-2:]
    if len(rows) != 2:
        raise InputError(f"missing {root + names.positions!r}, or misshapen: {rows}")
    depth = count_depth(shapes, rf"{re.escape(root + names.layer)}\.(\d+)\.")
    mlp = shape_of(shapes, f"{layer}.{names.mlp[1]}.weight", 2)[1]
    return {
        "depth": depth,
        "width": width,
        "heads": named.get("vitrail_heads") or _heads(config, depth, width, mlp),
        "mlp": mlp,
        "patch": (patch[0], patch[1]),
        "image": _image({**named, **config}, (patch[0], patch[1]), rows[0] - tokens),
        "channels": channels,
        "activation": "swiglu" if names is GATED else ACTIVATIONS[activation],
        "qkv_bias": f"{layer}.{names.attention[0]}.bias" in shapes,
        "norm_eps": float(_number(config, "layer_norm_eps", names.eps)),
        "position_resize": "huggingface",
    }


def _number(config: Mapping[str, Any], key: str, default: float = 0) -> Any:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InputError(f"config.json: expected a number for {key}, got {value!r}")
    return value


def _heads(config: Mapping[str, Any], depth: int, width: int, mlp: int) -> int:
    """Read the heads; a config that leaves them out means the default of all these families."""
    heads = config.get("num_attention_heads", 12 if "model_type" in config else 0)
    if type(heads) is not int or heads < 0:
        raise InputError(f"config.json: expected a number for num_attention_heads, got {heads!r}")
    return heads or known_heads(depth, width, mlp)


def _image(config: Mapping[str, Any], patch: Size, patches: int) -> Size:
    """Give the resolution, cut to whole patches as SigLIP's convolution cuts 384 to 27 x 14."""
    size = config.get("image_size")
    if size is None:
        return find_image(config, patch, patches)
    sides = [size, size] if isinstance(size, int) else size
    if not isinstance(sides, list | tuple) or [type(side) for side in sides] != [int, int]:
        raise InputError(f"config.json: expected a size or two for image_size, got {size!r}")
    return sides[0] // patch[0] * patch[0], sides[1] // patch[1] * patch[1]


def _outputs(shapes: Shapes, key: str) -> int:
    return shape_of(shapes, key, 2)[0] if key in shapes else 0


def _infer_vit(shapes: Shapes, config: Mapping[str, Any]) -> Spec:
    given = _infer(shapes, config, VIT, 1)
    classes = _outputs(shapes, "classifier.weight")
    hidden = 0 if classes else _outputs(shapes, "pooler.dense.weight")
    if hidden and config.get("pooler_act", "tanh") != "tanh":
        raise InputError(f"the pooler's activation is {config['pooler_act']!r}; ours is tanh alone")
    return ViTSpec(**given, classes=classes, representation=hidden)


def _infer_deit(shapes: Shapes, config: Mapping[str, Any]) -> Spec:
    if "classifier.weight" in shapes:
        raise InputError(
            "a DeiT with a distillation token and one classifier, which our models do not have: "
            "give one with cls_classifier and distillation_classifier, or with neither"
        )
    given = _infer(shapes, config, VIT, 2)
    return ViTSpec(**given, classes=_outputs(shapes, "cls_classifier.weight"), distilled=True)


def _infer_dino(shapes: Shapes, config: Mapping[str, Any]) -> Spec:
    if "classifier.weight" in shapes:
        raise InputError(
            "a DINOv2 with a classifier, which reads the class token beside the patches' mean; "
            "vitrail's heads read one of them: save the backbone alone (model.dinov2)"
        )
    gated = f"{GATED.layer}.0.{GATED.mlp[0]}.weight" in shapes
    given = _infer(shapes, config, GATED if gated else DINO, 1)
    registers = "embeddings.register_tokens"
    if registers in shapes:
        given["registers"] = shape_of(shapes, registers, 3)[1]
        given["position_resize"] = "timm"  # transformers antialiases in this variant alone
    scale = float(_number(config, "layerscale_value", 1.0)) or 1.0
    return ViTSpec(**given, classes=0, layer_scale=scale)


def _infer_clip(shapes: Shapes, config: Mapping[str, Any]) -> Spec:
    given = _infer(shapes, config, CLIP, 1)
    classes = _outputs(shapes, "visual_projection.weight")
    return ViTSpec(**given, classes=classes, pre_norm=True, patch_bias=False, head_bias=False)


def _infer_siglip(shapes: Shapes, config: Mapping[str, Any]) -> Spec:
    given = _infer(shapes, config, SIGLIP, 0)
    classes = _outputs(shapes, "classifier.weight")
    pooled = "vision_model.head.probe" in shapes and not classes
    return ViTSpec(**given, classes=classes, pool="map" if pooled else "gap")


def _has(shapes: Shapes, names: Names, roots: tuple[str, ...], *keys: str) -> bool:
    """Say whether an encoder, under one of the names it starts with, has all these tensors."""
    needed = (f"{names.patch}.weight", names.positions, *keys)
    return any(all(root + key in shapes for key in needed) for root in roots)


def _is_vit(shapes: Shapes) -> bool:
    layer = f"{VIT.layer}.0.{VIT.norms[0]}.weight"
    return _has(shapes, VIT, ("", "vit."), "embeddings.cls_token", layer) and not _is_deit(shapes)


def _is_deit(shapes: Shapes) -> bool:
    layer = f"{VIT.layer}.0.{VIT.norms[0]}.weight"
    return _has(shapes, VIT, ("", "vit.", "deit."), "embeddings.distillation_token", layer)


def _is_dino(shapes: Shapes) -> bool:
    return _has(shapes, DINO, ("",), "embeddings.cls_token", f"{DINO.layer}.0.layer_scale1.lambda1")


def _is_clip(shapes: Shapes) -> bool:
    layer = f"{CLIP.layer}.0.{CLIP.norms[0]}.weight"
    return _has(shapes, CLIP, ("vision_model.",), "embeddings.class_embedding", layer)


def _is_siglip(shapes: Shapes) -> bool:
    layer = f"{SIGLIP.layer}.0.{SIGLIP.norms[0]}.weight"
    return _has(shapes, SIGLIP, ("vision_model.",), layer) and not _is_clip(shapes)


def _left_out(key: str) -> str | None:
    room, leaf = key.partition(".")[0], key.rpartition(".")[2]
    if leaf == "mask_token" or room == "decoder":
        return "used by pre-training only"
    if room in ("text_model", "text_projection", "logit_scale", "logit_bias"):
        return "the text tower"
    if leaf == "position_ids":
        return "the positions' numbers, no weights"
    if ".pooler." in f".{key}":
        return "a pooler, which the classifier does not read"
    if key.startswith("vision_model.head."):
        return "attention pooling, which the classifier does not read"
    return None


HF_VIT = Format("transformers ViT", _is_vit, _infer_vit, _vit_table, _left_out, normalize)
HF_DEIT = Format("transformers DeiT", _is_deit, _infer_deit, _deit_table, _left_out, normalize)
HF_DINOV2 = Format("transformers DINOv2", _is_dino, _infer_dino, _dino_table, _left_out, normalize)
HF_CLIP = Format("transformers CLIP", _is_clip, _infer_clip, _clip_table, _left_out, normalize)
HF_SIGLIP = Format(
    "transformers SigLIP",
    _is_siglip,
    _infer_siglip,
    _siglip_table,
    _left_out,
    normalize,
    denormalize,
)


def format_for(spec: Spec) -> Format:
    """Choose the family of transformers that has a place for a spec; its table may still refuse."""
    if not isinstance(spec, ViTSpec):
        return HF_VIT
    if spec.layer_scale:
        return HF_DINOV2
    if spec.pool != "token":
        return HF_SIGLIP
    return HF_CLIP if spec.pre_norm else HF_DEIT if spec.distilled else HF_VIT
