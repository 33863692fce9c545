"""timm's config.json: the architecture, its arguments, preprocessing and names of classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Interpolation, Preprocess
from vitrail.models import BiTSpec, HybridSpec, Spec, ViTSpec
from vitrail.models.spec import Activation, Size
from vitrail.models.vit_spec import QUIET
from vitrail.weights.formats.conventions import section
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.timm.timm_eva import (
    has_split_gate,
    is_eva,
    shape_arguments,
    write_eva_arguments,
)
from vitrail.weights.formats.timm.timm_relative import write_relative_arguments

_ARCHITECTURES = {  # by our names; with {} for timm's two sizes, which are @224 and @384
    "ViT-Ti/16": "vit_tiny_patch16_{}",
    "ViT-S/32": "vit_small_patch32_{}",
    "ViT-S/16": "vit_small_patch16_{}",
    "ViT-S/8": "vit_small_patch8_224",
    "ViT-B/32": "vit_base_patch32_{}",
    "ViT-B/16": "vit_base_patch16_{}",
    "ViT-B/8": "vit_base_patch8_224",
    "ViT-L/32": "vit_large_patch32_{}",
    "ViT-L/16": "vit_large_patch16_{}",
    "ViT-L/14": "vit_large_patch14_224",
    "ViT-H/14": "vit_huge_patch14_224",
    "ViT-g/14": "vit_giant_patch14_224",
    "ViT-G/14": "vit_gigantic_patch14_224",
    "ViT-Ti/16,distilled=true": "deit_tiny_distilled_patch16_224",
    "ViT-S/16,distilled=true": "deit_small_distilled_patch16_224",
    "ViT-B/16,distilled=true": "deit_base_distilled_patch16_{}",
    "R+ViT-Ti/16": "vit_tiny_r_s16_p8_{}",
    "R26+ViT-S/32": "vit_small_r26_s32_{}",
    "R26+ViT-B/32": "vit_base_r26_s32_224",
    "R50+ViT-B/16": "vit_base_r50_s16_{}",
    "R50+ViT-L/32": "vit_large_r50_s32_{}",
    "Hybrid-B/2,class_position=false,stem=mobileclip,stem_width=192": "vit_base_mci_224",
    **{
        f"BiT-R{size}": f"resnetv2_{size}_bit"
        for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
    },
}
_SIZES = ((224, 224), (384, 384))

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
}
"""timm's names of the non-linearities that we share."""

_INTERPOLATIONS: dict[str, Interpolation] = {  # its "box" is our "area" for whole factors only
    "nearest": "nearest",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "lanczos": "lanczos",
}


def architecture_of(spec: Spec) -> str | None:
    """Give timm's name of a model, whatever its number of classes; None where it has none."""
    if isinstance(spec, BiTSpec):
        name = BiTSpec(stages=spec.stages, width=spec.width, heads=spec.heads).name
        return _ARCHITECTURES.get(name)
    if spec.activation != "gelu" or spec.image not in _SIZES:
        return None
    unsaid = ("channels", "activation", "position_resize", "norm_eps")
    free: dict[str, Any] = {**{field: getattr(ViTSpec, field) for field in unsaid}, **QUIET}
    if isinstance(spec, HybridSpec):
        free |= {"stem_norm_eps": HybridSpec.stem_norm_eps, "standardize": HybridSpec.standardize}
    found = _ARCHITECTURES.get(replace(spec, **free).name.replace("@384", ""))
    if found is None or not (spec.image == _SIZES[0] or "{}" in found):
        return None
    return found.format(spec.image[0])


def write_timm_config(
    spec: Spec, preprocess: Preprocess | None, classes: Sequence[str] | None
) -> dict[str, Any]:
    """Write what timm needs to build a model of these weights, as its hub folders say it.

    A ViT without a name of timm's is another one with all its arguments given. A hybrid or BiT
    without a name has no `architecture`: timm has no arguments for their shapes.
    """
    named = architecture_of(spec)
    arguments: dict[str, Any] = {} if spec.channels == 3 else {"in_chans": spec.channels}
    if named is None and type(spec) is ViTSpec:
        named, arguments = _write_arguments(spec)
    config: dict[str, Any] = {"architecture": named} if named else {}
    config |= {"num_classes": spec.classes, "num_features": spec.pooled}
    config["global_pool"] = "avg" if isinstance(spec, BiTSpec) else _pool(spec)
    if arguments:
        config["model_args"] = arguments
    if classes is not None:
        config["label_names"] = list(classes)
    published = {"input_size": [spec.channels, *spec.image], "num_classes": spec.classes}
    config["pretrained_cfg"] = {
        **published,
        **(_write_preprocess(preprocess) if preprocess else {}),
    }
    config["pretrained_cfg"] |= _ends(spec)
    return config


def _write_arguments(spec: ViTSpec) -> tuple[str, dict[str, Any]]:
    if spec.position == "relative-mlp":
        return write_relative_arguments(spec)
    return write_eva_arguments(spec) if is_eva(spec) else (_nearest(spec), _arguments(spec))


def _pool(spec: ViTSpec) -> str:
    return "avg" if spec.pool == "gap" else spec.pool


def _ends(spec: Spec) -> dict[str, Any]:
    """Name the first and the last layer, which timm adapts to other channels and classes."""
    if isinstance(spec, BiTSpec):
        return {"first_conv": "stem.conv", "classifier": "head.fc"}
    first = "patch_embed.proj"
    if isinstance(spec, HybridSpec):
        first = f"patch_embed.backbone{'.stem' if spec.stages else ''}.conv"
        first = "patch_embed.backbone.0.conv" if spec.stem == "mobileclip" else first
    return {"first_conv": first, "classifier": ["head", "head_dist"] if spec.distilled else "head"}


def _nearest(spec: ViTSpec) -> str:
    """Choose the architecture that has what no argument can say: gate, epsilon, second token."""
    differential = spec.attention == "differential"
    if spec.block == "parallel":
        plain = "vit_base_patch16_xp_224" if spec.norm == "rms" else "vit_pwee_patch16_reg1_gap_256"
        return "vit_dpwee_patch16_reg1_gap_256" if differential else plain
    if differential or spec.branches > 1:
        return "vit_dwee_patch16_reg1_gap_256" if differential else "vit_small_patch16_18x2_224"
    if spec.patch_norm:
        return "aimv2_large_patch14_224"
    if spec.activation == "swiglu":
        return "vit_giant_patch14_dinov2"
    if spec.pre_norm:
        return "vit_base_patch16_clip_224"
    if spec.norm == "rms":
        return "test_vit4"
    if spec.norm_place == "post":
        return "vit_base_patch16_rpn_224"
    if spec.norm_eps == 1e-5:
        return "beit3_base_patch16_224"
    return "deit_tiny_distilled_patch16_224" if spec.distilled else "vit_tiny_patch16_224"


def _arguments(spec: ViTSpec) -> dict[str, Any]:
    gated = spec.activation == "swiglu"
    arguments: dict[str, Any] = {
        **shape_arguments(spec),
        # Half a unit more than the hidden size, because timm rounds the product down.
        "mlp_ratio": (spec.mlp * (2 if gated and not has_split_gate(spec) else 1) + 0.5)
        / spec.width,
        "proj_bias": spec.dense_bias,
        "qkv_bias": spec.qkv_bias,
        "qk_norm": spec.qk_norm,
        "init_values": spec.layer_scale or None,
        "pos_embed": "none" if spec.position == "none" else "learn",
        "pre_norm": spec.pre_norm,
    }
    if not spec.distilled:  # whose class fixes the rest
        arguments |= {
            "global_pool": _pool(spec),
            "class_token": spec.class_tokens > 0,
            "no_embed_class": spec.positioned < spec.prefix,
            "reg_tokens": spec.registers,
            "fc_norm": spec.last_norm == "pooled",
            "final_norm": spec.last_norm != "none",
            "pool_include_prefix": spec.pool_prefix,
            "scale_attn_norm": spec.sub_norm == "both",
            "scale_mlp_norm": spec.sub_norm != "none",
        }
    if not gated:
        theirs = {ours: name for name, ours in ACTIVATIONS.items()}
        arguments["act_layer"] = theirs[spec.activation]
    return arguments


def _write_preprocess(preprocess: Preprocess) -> dict[str, Any]:
    if preprocess.interpolation not in _INTERPOLATIONS:
        raise InputError(f"timm has no interpolation {preprocess.interpolation!r}")
    stretch = preprocess.fit == "stretch"
    if stretch:
        for side in preprocess.size:
            theirs, ours = _stretched(side, preprocess.crop)
            if theirs != ours:
                what = f"timm stretches to {theirs[0]} and cuts {side}, not from {ours[0]}"
                raise InputError(f"{what}: it does not support crop={preprocess.crop}")
    return {
        "input_size": [len(preprocess.mean), *preprocess.size],
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop,
        "crop_mode": "squash" if stretch else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def _stretched(side: int, crop: float) -> tuple[tuple[int, int], tuple[int, int]]:
    """Give the side that a stretched image has before its crop, and the crop's place: both ways.

    timm rounds the one down and the other to even; transformers, whose way ours is, otherwise.
    """
    theirs, ours = math.floor(side / crop), round(side / crop + 1e-6)
    return (theirs, round((theirs - side) / 2)), (ours, (ours - side) // 2)


def read_timm_preprocess(config: Mapping[str, Any]) -> Preprocess | None:
    """Read the evaluation transform; None where the config says none that we have.

    We have neither borders (`crop_mode` "border"), nor timm's rounding of a crop after squashing.
    """
    published = section(config, "pretrained_cfg") or config
    if not {"input_size", "mean", "std", "interpolation"} <= published.keys():
        return None
    crop, mode = published.get("crop_pct") or 0.875, published.get("crop_mode") or "center"
    squashed = mode == "squash"
    interpolation = _INTERPOLATIONS.get(str(published["interpolation"]))
    if interpolation is None or not (mode == "center" or squashed):
        return None
    _, height, width = map(int, published["input_size"])
    preprocess = Preprocess(
        size=(height, width),
        mean=tuple(map(float, published["mean"])),
        std=tuple(map(float, published["std"])),
        interpolation=interpolation,
        fit="stretch" if squashed else "crop",
        crop=float(crop),
    )
    if flexible := re.match(r"naflexvit_.*patch(\d+)", architecture_named(config)):
        patch = int(flexible[1])  # whose input_size says how many patches it is evaluated with
        budget = height // patch * (width // patch)
        preprocess = replace(preprocess, patches=budget, patch_size=patch)
    pairs = [_stretched(side, preprocess.crop) for side in preprocess.size if squashed]
    return None if any(theirs != ours for theirs, ours in pairs) else preprocess


def read_timm_classes(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Read the names of the classes, where a config has one for each."""
    names = config.get("label_names") or section(config, "pretrained_cfg").get("label_names")
    if isinstance(names, Mapping):  # by number, where JSON has made text of it
        by_number = {str(number): str(name) for number, name in names.items()}
        numbers = [str(number) for number in range(len(names))]
        whole = by_number.keys() == set(numbers)
        return tuple(by_number[number] for number in numbers) if whole else None
    if not isinstance(names, list | tuple | None):
        raise InputError(f"config.json: expected names in label_names, got {names!r}")
    return tuple(map(str, names)) if names else None


def image_of(facts: FileFacts) -> Size | None:
    """Give the resolution that a config, or the model's given name, says."""
    config = facts.config
    published = section(config, "pretrained_cfg") or config
    size = model_arguments(config).get("img_size") or published.get("input_size")
    if size is None:
        return facts.named.image if facts.named else None
    sides = (size, size) if isinstance(size, int) else size[-2:] if isinstance(size, list) else ()
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise InputError(f"config.json: {size!r} is not a size; write [channels, height, width]")
    return sides[0], sides[1]


def model_arguments(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the arguments of timm's constructor that a config adds to its architecture's."""
    return section(config, "model_args")


def architecture_named(config: Mapping[str, Any]) -> str:
    """Give the architecture that a config names, without a tag; empty where it names none."""
    return str(config.get("architecture") or "").partition(".")[0]
