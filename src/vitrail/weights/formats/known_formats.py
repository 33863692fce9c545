"""All formats that are read, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from vitrail.config import InputError
from vitrail.data import Preprocess
from vitrail.weights.formats import clip
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.bit_tf import BIT_TF
from vitrail.weights.formats.dino import DINO, MAE
from vitrail.weights.formats.dinov3 import DINOV3
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.google import GOOGLE
from vitrail.weights.formats.huggingface import huggingface_config
from vitrail.weights.formats.huggingface.huggingface import (
    HF_CLIP,
    HF_DEIT,
    HF_DINOV2,
    HF_IJEPA,
    HF_SIGLIP,
    HF_VIT,
)
from vitrail.weights.formats.huggingface.huggingface_aimv2 import HF_AIMV2
from vitrail.weights.formats.huggingface.huggingface_beit import HF_BEIT
from vitrail.weights.formats.huggingface.huggingface_dinov3 import HF_DINOV3
from vitrail.weights.formats.huggingface.huggingface_yolos import HF_YOLOS
from vitrail.weights.formats.open_clip import OPEN_CLIP
from vitrail.weights.formats.timm import timm_config
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.torchvision import TORCHVISION

FORMATS: tuple[Format, ...] = (
    *(GOOGLE, BIGVISION, BIT_TF, MAE, DINOV3, DINO, TIMM),
    *(HF_VIT, HF_DEIT, HF_IJEPA, HF_DINOV2, HF_DINOV3, HF_CLIP, HF_SIGLIP),
    *(HF_AIMV2, HF_BEIT, HF_YOLOS, TORCHVISION, clip.CLIP, OPEN_CLIP),
)
"""MAE's and both DINOs' names are timm's and more, so they come before it."""


def read_preprocess(
    config: Mapping[str, Any], preprocessor: Mapping[str, Any]
) -> Preprocess | None:
    """Take the preprocessing from the files beside the weights, or give None: never a guess."""
    name = "preprocessor_config.json" if preprocessor else "config.json"
    try:
        if "max_num_patches" in preprocessor:  # SigLIP 2 keeps each image's shape
            budget, patch = int(preprocessor["max_num_patches"]), int(preprocessor["patch_size"])
            if budget < 1:
                raise InputError(f"max_num_patches must be at least 1, got {budget}")
            side = isqrt(budget) * patch  # where batches need one size
            fixed = {**preprocessor, "size": {"height": side, "width": side}}
            found = huggingface_config.read_hf_preprocess(fixed)
            return replace(found, patches=budget, patch_size=patch)
        if preprocessor:
            return huggingface_config.read_hf_preprocess(preprocessor)
        return timm_config.read_timm_preprocess(config) or clip.read_open_clip_preprocess(config)
    except InputError as error:
        raise InputError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: its preprocessing can't be read: {error}") from None


def read_classes(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Take the classes' names from the config beside the weights, or give None."""
    return huggingface_config.read_hf_classes(config) or timm_config.read_timm_classes(config)
