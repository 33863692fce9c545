"""The two files that stand beside transformers' weights: config.json, preprocessor_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.config import InputError
from vitrail.data.transforms.geometry import size_before_crop
from vitrail.data.transforms.preprocess import Interpolation, Preprocess
from vitrail.models.spec import Size, Spec, ViTSpec
from vitrail.weights.formats.huggingface.huggingface import (
    HF_CLIP,
    HF_DEIT,
    HF_DINOV2,
    HF_IJEPA,
    HF_SIGLIP,
    format_for,
)
from vitrail.weights.formats.huggingface.huggingface_aimv2 import HF_AIMV2, aimv2_config
from vitrail.weights.formats.huggingface.huggingface_beit import HF_BEIT, beit_config
from vitrail.weights.formats.huggingface.huggingface_dinov3 import HF_DINOV3, dinov3_config
from vitrail.weights.formats.huggingface.huggingface_inference import ACTIVATIONS
from vitrail.weights.formats.huggingface.huggingface_yolos import HF_YOLOS, yolos_config

_RESAMPLE: dict[int, Interpolation] = {
    0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "area",
}  # fmt: skip
"""Pillow's numbers."""


def read_hf_classes(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Give the class names of a config.json; None where it has none but LABEL_0 and so on."""
    labels = config.get("id2label") or {}
    if not isinstance(labels, Mapping):
        raise InputError(f"config.json: expected numbers and names in id2label, got {labels!r}")
    by_number = {str(number): str(name) for number, name in labels.items()}
    numbers = [str(number) for number in range(len(labels))]
    if by_number.keys() != set(numbers):
        raise InputError(f"config.json: id2label does not number its {len(labels)} classes from 0")
    names = tuple(by_number[number] for number in numbers)
    return None if not names or names == _made_up(len(names)) else names


def _made_up(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{number}" for number in range(count))


def write_hf_config(spec: Spec, classes: Sequence[str] | None = None) -> dict[str, Any]:
    """Give the config.json with which transformers builds this model."""
    family = format_for(spec)
    family.table(spec)  # refuses what the family does not support
    assert isinstance(spec, ViTSpec), "only ViTs have a table"
    if classes is not None and len(classes) != spec.classes:
        raise InputError(f"{len(classes)} class names for a model of {spec.classes} classes")
    config = _encoder(spec)
    if family is HF_AIMV2:
        return config | aimv2_config(spec)
    if family is HF_DINOV3:
        return config | dinov3_config(spec)
    if family is HF_CLIP and spec.pool == "token":
        name = "CLIPVisionModelWithProjection" if spec.classes else "CLIPVisionModel"
        config |= {"projection_dim": spec.classes} if spec.classes else {}
        return _named("clip_vision_model", name) | config
    labels = classes or _made_up(spec.classes)
    heads: dict[str, Any] = {}
    if labels:
        heads["id2label"] = {str(number): name for number, name in enumerate(labels)}
        heads["label2id"] = {name: number for number, name in enumerate(labels)}
    if family is HF_YOLOS:
        return config | yolos_config(spec)
    if family is HF_BEIT:
        return config | beit_config(spec) | heads
    if family is HF_DINOV2:
        return config | _dino(spec) | heads
    if family is HF_CLIP:
        nested = {"vision_config": {"model_type": "clip_vision_model", **config}}
        return _named("clip", "CLIPForImageClassification") | nested | heads
    if family is HF_SIGLIP:
        second = spec.position_resize == "siglip2"
        kind, model = ("siglip2", "Siglip2") if second else ("siglip", "Siglip")
        config["vision_use_head"] = spec.pool == "map"
        if second:
            config["num_patches"] = spec.grid[0] * spec.grid[1]
            del config["image_size"]
        if not spec.classes:
            return _named(f"{kind}_vision_model", f"{model}VisionModel") | config
        nested = {"vision_config": {"model_type": f"{kind}_vision_model", **config}}
        return _named(kind, f"{model}ForImageClassification") | nested | heads
    if spec.representation:
        config |= {"pooler_output_size": spec.representation, "pooler_act": "tanh"}
    families = {HF_DEIT.name: ("deit", "DeiT"), HF_IJEPA.name: ("ijepa", "IJepa")}
    kind, model = families.get(family.name, ("vit", "ViT"))
    teacher = "WithTeacher" if spec.distilled else ""
    task = f"ForImageClassification{teacher}" if spec.classes else "Model"
    return _named(kind, model + task) | config | heads


def _named(kind: str, model: str) -> dict[str, Any]:
    return {"architectures": [model], "model_type": kind}


def _encoder(spec: ViTSpec) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    square = spec.patch[0] == spec.patch[1] and spec.image[0] == spec.image[1]
    if not square and format_for(spec) in (HF_CLIP, HF_SIGLIP, HF_AIMV2):
        raise InputError(f"transformers' {format_for(spec).name.split()[1]} is square, not {spec}")
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.mlp,
        "hidden_act": names.get(spec.activation, "gelu"),
        "layer_norm_eps": spec.norm_eps,
        "image_size": _short(spec.image),
        "patch_size": _short(spec.patch),
        "num_channels": spec.channels,
        "qkv_bias": spec.qkv_bias,
        "hidden_dropout_prob": spec.dropout,
        "attention_probs_dropout_prob": spec.attention_dropout,
    }


def _short(size: Size) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _dino(spec: ViTSpec) -> dict[str, Any]:
    """Name the model and say its MLP's size as transformers does, by a whole ratio."""
    gated = spec.activation == "swiglu"

    def hidden(ratio: int) -> int:
        return (ratio * spec.width * 2 // 3 + 7) // 8 * 8 if gated else ratio * spec.width

    ratio = next((ratio for ratio in range(1, 65) if hidden(ratio) == spec.mlp), None)
    if ratio is None:
        raise InputError(f"transformers' DINOv2 has no whole mlp_ratio for {spec.mlp=}, of {spec}")
    config = {"mlp_ratio": ratio, "use_swiglu_ffn": gated, "layerscale_value": spec.layer_scale}
    task = "ForImageClassification" if spec.classes else "Model"
    if not spec.registers:
        return _named("dinov2", f"Dinov2{task}") | config | {"use_mask_token": False}
    named = _named("dinov2_with_registers", f"Dinov2WithRegisters{task}")
    return named | config | {"num_register_tokens": spec.registers}


def read_hf_preprocess(config: Mapping[str, Any]) -> Preprocess:
    """Read a preprocessor_config.json; what it does not say is not guessed.

    DeiT's processor stretches to 256x256 and then cuts 224x224: that is `stretch` with a `crop`
    below 1.
    """
    needed = ["size", "resample"]
    needed += ["image_mean", "image_std"] if _does(config, "do_normalize") else []
    needed += ["crop_size"] if _does(config, "do_center_crop", False) else []
    missing = [key for key in needed if config.get(key) is None]
    if missing or not _does(config, "do_resize"):
        what = f"no {', '.join(missing)}" if missing else "do_resize is off"
        raise InputError(f"{what}; mend it, or remove it to do without")
    if config["resample"] not in list(_RESAMPLE):
        raise InputError(f"unknown resample {config['resample']!r}; "
                         f"there are: {_RESAMPLE}")  # fmt: skip
    resized, short = _size(config, "size"), _resizes_short_side(config)
    size = _size(config, "crop_size") if _does(config, "do_center_crop", False) else resized
    crop = min(size) / min(resized)
    if not short and size[0] * resized[1] != size[1] * resized[0]:
        raise InputError(f"it cuts {size} from {resized}, of another shape")
    if short and not _does(config, "do_center_crop", False):
        raise InputError(
            "it resizes the short side and cuts nothing, so that images "
            "keep their shapes: expected do_center_crop with a crop_size"
        )
    if short and size[0] != size[1]:
        raise InputError(
            f"it cuts {size[0]}x{size[1]} from the short side's square; "
            "vitrail cuts a shape from what covers it: expected a square crop_size"
        )
    mean, std = _normalization(config)
    return Preprocess(
        size=size,
        mean=mean,
        std=std,
        interpolation=_RESAMPLE[config["resample"]],
        fit="crop" if short else "stretch",
        crop=crop,
        center="floor" if short else "round",
    )


def _does(config: Mapping[str, Any], step: str, default: bool = True) -> bool:
    value = config.get(step)
    return default if value is None else bool(value)


def _resizes_short_side(config: Mapping[str, Any]) -> bool:
    size = config["size"]
    if isinstance(size, Mapping):
        return "shortest_edge" in size
    kind = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    return "CLIP" in kind or kind.startswith("Bit")  # to others, a bare number is a square


def _size(config: Mapping[str, Any], key: str) -> Size:
    size = config.get(key)
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        sides = (size.get("height", edge), size.get("width", edge))
    else:
        sides = (size, size) if isinstance(size, int) else size
    match sides:
        case (int(height), int(width)) | [int(height), int(width)] if min(height, width) > 0:
            return height, width
    raise InputError(
        f"{key} is {str(size)[:80]!r}, expected a number, height and width, or shortest_edge"
    )


def _normalization(config: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give mean and std of pixels from 0 to 1, whatever range the file means."""
    if not _does(config, "do_normalize"):
        return (0.0,) * 3, (1.0,) * 3
    factor = config.get("rescale_factor") or 1 / 255
    for key, numbers in (
        ("rescale_factor", [factor]),
        ("image_mean", config["image_mean"]),
        ("image_std", config["image_std"]),
    ):
        if not isinstance(numbers, list) or not all(isinstance(x, int | float) for x in numbers):
            raise InputError(f"expected numbers in {key}, got {str(numbers)[:80]!r}")
    scale = 255 * factor if _does(config, "do_rescale") else 255
    scale = 1 if abs(scale - 1) < 1e-6 else scale
    mean, std = (
        tuple(float(x) / scale for x in config[key]) for key in ("image_mean", "image_std")
    )
    return mean, std


def write_hf_preprocess(preprocess: Preprocess) -> dict[str, Any]:
    """Give the preprocessor_config.json whose processor does the same."""
    number = {name: number for number, name in _RESAMPLE.items()}[preprocess.interpolation]
    height, width = preprocess.size
    size: dict[str, int] = {"height": height, "width": width}
    kind = "ViTImageProcessor"
    cut: dict[str, Any] = {}
    if preprocess.fit != "stretch" and height != width:
        raise InputError(f"no processor of transformers cuts {height}x{width} from what covers it")
    if preprocess.fit != "stretch" or preprocess.crop < 1:
        cut = {"do_center_crop": True, "crop_size": size}
        kind = "DeiTImageProcessor"
        large = size_before_crop(preprocess)
        size = {"height": large[0], "width": large[1]}
        if preprocess.fit != "stretch":
            size, kind = {"shortest_edge": min(large)}, "CLIPImageProcessor"
    return {
        "image_processor_type": kind,
        "do_resize": True,
        "size": size,
        "resample": number,
        **cut,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
