"""Hugging Face transformers: ViT, DeiT, DINOv2, and the image towers of CLIP and SigLIP."""

from __future__ import annotations

from typing import Any

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.formats.conventions import (
    count_outputs,
    section,
    shape_of,
)
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.huggingface.huggingface_aimv2 import HF_AIMV2
from vitrail.weights.formats.huggingface.huggingface_beit import HF_BEIT, is_beit
from vitrail.weights.formats.huggingface.huggingface_dinov3 import HF_DINOV3
from vitrail.weights.formats.huggingface.huggingface_inference import infer_hf_encoder, read_number
from vitrail.weights.formats.huggingface.huggingface_names import (
    CLIP,
    DINO,
    DINO_ROOTS,
    GATED,
    SIGLIP,
    SIGLIP2,
    VIT,
    Names,
    denormalize_names,
    normalize_names,
)
from vitrail.weights.formats.huggingface.huggingface_tables import (
    clip_table,
    deit_table,
    dino_table,
    ijepa_table,
    siglip_table,
    vit_table,
)
from vitrail.weights.formats.huggingface.huggingface_yolos import HF_YOLOS, is_yolos


def _infer_vit(shapes: Shapes, facts: FileFacts) -> Spec:
    given = infer_hf_encoder(shapes, facts, VIT, 1)
    classes = count_outputs(shapes, "classifier.weight")
    hidden = 0 if classes else count_outputs(shapes, "pooler.dense.weight")
    if hidden and (act := facts.config.get("pooler_act", "tanh")) != "tanh":
        raise InputError(f"the pooler's activation is {act!r}; ours is tanh alone")
    return ViTSpec(**given, classes=classes, representation=hidden)


def _infer_deit(shapes: Shapes, facts: FileFacts) -> Spec:
    given = infer_hf_encoder(shapes, facts, VIT, 2)
    if classes := count_outputs(shapes, "classifier.weight"):  # no head reads the second token
        return ViTSpec(**given, classes=classes, registers=1, register_position=True)
    return ViTSpec(**given, classes=count_outputs(shapes, "cls_classifier.weight"), distilled=True)


def _infer_dino(shapes: Shapes, facts: FileFacts) -> Spec:
    gated = any(key.endswith(f"{GATED.layer}.0.{GATED.mlp[0]}.weight") for key in shapes)
    given = infer_hf_encoder(shapes, facts, GATED if gated else DINO, 1)
    registers = next((key for key in shapes if key.endswith("embeddings.register_tokens")), None)
    if registers is not None:
        given["registers"] = shape_of(shapes, registers, 3)[1]
        given["position_resize"] = "timm"  # transformers antialiases in this variant alone
    scale = float(read_number(facts.config, "layerscale_value", 1.0)) or 1.0
    if classes := count_outputs(shapes, "classifier.weight"):
        given["pool"] = "token-gap"
    return ViTSpec(**given, classes=classes, layer_scale=scale)


def _infer_clip(shapes: Shapes, facts: FileFacts) -> Spec:
    given = infer_hf_encoder(shapes, facts, CLIP, 1)
    given |= {"pre_norm": True, "patch_bias": False}
    if classes := count_outputs(shapes, "classifier.weight"):
        mean: dict[str, Any] = {"pool": "gap", "unpooled_class_token": True, "last_norm": "none"}
        return ViTSpec(**given, **mean, classes=classes)
    classes = count_outputs(shapes, "visual_projection.weight")
    return ViTSpec(**given, classes=classes, head_bias=False)


def _infer_ijepa(shapes: Shapes, facts: FileFacts) -> Spec:
    given = infer_hf_encoder(shapes, facts, VIT, 0)
    return ViTSpec(**given, classes=count_outputs(shapes, "classifier.weight"), pool="gap")


def _infer_siglip(shapes: Shapes, facts: FileFacts) -> Spec:
    if _is_siglip2(shapes):  # any image_size in its config is read by nobody
        config = {key: facts.config[key] for key in facts.config if key != "image_size"}
        vision = section(config, "vision_config")
        if vision:
            config["vision_config"] = {k: vision[k] for k in vision if k != "image_size"}
        given = infer_hf_encoder(shapes, facts.with_config(config), SIGLIP2, 0)
        given["position_resize"] = "siglip2"
    else:
        given = infer_hf_encoder(shapes, facts, SIGLIP, 0)
    classes = count_outputs(shapes, "classifier.weight")
    pooled = "vision_model.head.probe" in shapes and not classes
    return ViTSpec(**given, classes=classes, pool="map" if pooled else "gap")


def _has(shapes: Shapes, names: Names, roots: tuple[str, ...], *keys: str) -> bool:
    """Say whether an encoder, under one of the names it starts with, has all these tensors."""
    needed = (f"{names.patch}.weight", names.positions, *keys)
    return any(all(root + key in shapes for key in needed) for root in roots)


def _is_vit(shapes: Shapes) -> bool:
    layer = f"{VIT.layer}.0.{VIT.norms[0]}.weight"
    found = _has(shapes, VIT, ("", "vit."), "embeddings.cls_token", layer)
    return found and not (_is_deit(shapes) or is_beit(shapes) or is_yolos(shapes))


def _is_deit(shapes: Shapes) -> bool:
    layer = f"{VIT.layer}.0.{VIT.norms[0]}.weight"
    return _has(shapes, VIT, ("", "vit.", "deit."), "embeddings.distillation_token", layer)


def _is_ijepa(shapes: Shapes) -> bool:
    layer = f"{VIT.layer}.0.{VIT.norms[0]}.weight"
    tokens = any(key.endswith("embeddings.cls_token") for key in shapes)
    return _has(shapes, VIT, ("", "ijepa."), layer) and not tokens


def _is_dino(shapes: Shapes) -> bool:
    scale = f"{DINO.layer}.0.layer_scale1.lambda1"
    return _has(shapes, DINO, ("", *DINO_ROOTS), "embeddings.cls_token", scale)


def _is_clip(shapes: Shapes) -> bool:
    layer = f"{CLIP.layer}.0.{CLIP.norms[0]}.weight"
    return _has(shapes, CLIP, ("vision_model.",), "embeddings.class_embedding", layer)


def _is_siglip(shapes: Shapes) -> bool:
    layer = f"{SIGLIP.layer}.0.{SIGLIP.norms[0]}.weight"
    found = _has(shapes, SIGLIP, ("vision_model.",), layer) or _is_siglip2(shapes)
    return found and not _is_clip(shapes)


def _is_siglip2(shapes: Shapes) -> bool:
    layer = f"{SIGLIP.layer}.0.{SIGLIP.norms[0]}.weight"
    return _has(shapes, SIGLIP2, ("vision_model.",), layer)


def _left_out(key: str) -> str | None:
    room, leaf = key.partition(".")[0], key.rpartition(".")[2]
    if leaf == "mask_token" or room == "decoder":
        return "used by pre-training only"
    if room in ("text_model", "text_projection", "logit_scale", "logit_bias"):
        return "the text tower"
    if leaf == "position_ids":
        return "the positions' numbers, no weights"
    if ".pooler." in f".{key}":
        return "a pooler, which no classifier reads"
    if key.startswith("vision_model.post_layernorm."):
        return "the last norm, which the classifier does not read"
    if key.startswith("vision_model.head."):
        return "attention pooling, which the classifier does not read"
    return None


HF_VIT = Format("transformers ViT", _is_vit, _infer_vit, vit_table, _left_out, normalize_names)
HF_DEIT = Format("transformers DeiT", _is_deit, _infer_deit, deit_table, _left_out, normalize_names)
HF_IJEPA = Format(
    "transformers I-JEPA", _is_ijepa, _infer_ijepa, ijepa_table, _left_out, normalize_names
)
HF_DINOV2 = Format(
    "transformers DINOv2", _is_dino, _infer_dino, dino_table, _left_out, normalize_names
)
HF_CLIP = Format("transformers CLIP", _is_clip, _infer_clip, clip_table, _left_out, normalize_names)
HF_SIGLIP = Format(
    "transformers SigLIP",
    _is_siglip,
    _infer_siglip,
    siglip_table,
    _left_out,
    normalize_names,
    lambda tensors, spec: denormalize_names(tensors),
)


def format_for(spec: Spec) -> Format:
    """Choose the family of transformers that has a place for a spec; its table may still refuse."""
    if not isinstance(spec, ViTSpec):
        return HF_VIT
    if spec.rotary != "none":
        return HF_DINOV3
    if spec.norm == "rms":
        return HF_AIMV2
    if not spec.key_bias:
        return HF_BEIT
    if spec.layer_scale:
        return HF_DINOV2
    if spec.pre_norm:
        return HF_CLIP
    if spec.pool != "token":
        return HF_IJEPA if spec.pool == "gap" and spec.activation == "gelu" else HF_SIGLIP
    if spec.register_position and not spec.classes:
        return HF_YOLOS
    return HF_DEIT if spec.distilled or spec.register_position else HF_VIT
