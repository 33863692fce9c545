"""All formats that are read, in the order in which a file's tensors are held against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.data import Preprocess
from vitrail.weights.formats import clip
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.bit_tf import BIT_TF
from vitrail.weights.formats.dino import DINO, MAE
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.google import GOOGLE
from vitrail.weights.formats.huggingface import huggingface_config
from vitrail.weights.formats.huggingface.huggingface import (
    HF_CLIP,
    HF_DEIT,
    HF_DINOV2,
    HF_SIGLIP,
    HF_VIT,
)
from vitrail.weights.formats.timm import timm_config
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.torchvision import TORCHVISION

FORMATS: tuple[Format, ...] = (
    *(GOOGLE, BIGVISION, BIT_TF, MAE, DINO, TIMM),
    *(HF_VIT, HF_DEIT, HF_DINOV2, HF_CLIP, HF_SIGLIP, TORCHVISION, clip.CLIP),
)
"""MAE's and DINO's names are timm's and more, so they come before it."""


def read_preprocess(
    config: Mapping[str, Any], preprocessor: Mapping[str, Any]
) -> Preprocess | None:
    """Take the preprocessing from the files beside the weights, or give None: never a guess."""
    if preprocessor:
        return huggingface_config.read_preprocess(preprocessor)
    return timm_config.read_preprocess(config) or clip.read_preprocess(config)


def read_classes(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Take the classes' names from the config beside the weights, or give None."""
    return huggingface_config.read_classes(config) or timm_config.read_classes(config)
