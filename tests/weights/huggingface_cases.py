"""transformers' models that the tests read and write, tiny and random."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.parity import peers
from tests.parity.transformers_tiny import patchify
from vitrail.models import Spec, ViTSpec, build
from vitrail.weights.formats.format import FileFacts, Format
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
from vitrail.weights.formats.keymap import read_table
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.torchvision import TORCHVISION

hf = peers.load("transformers")

FORMATS = [
    HF_VIT,
    HF_DEIT,
    HF_IJEPA,
    HF_DINOV2,
    HF_DINOV3,
    HF_CLIP,
    HF_SIGLIP,
    TIMM,
    TORCHVISION,
    HF_AIMV2,
    HF_BEIT,
    HF_YOLOS,
]
SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
MLP = {**SIZES, "intermediate_size": 96}
VIT = replace(peers.TINY, norm_eps=1e-12, position_resize="huggingface")
DINO = replace(VIT, classes=0, norm_eps=1e-6, layer_scale=1.0, mlp=192)
DINOV3 = replace(
    DINO, mlp=96, norm_eps=1e-5, position="none", rotary="centered", rotary_theta=100.0,
    registers=3, key_bias=False,
)  # fmt: skip
CLIP = replace(
    VIT,
    classes=6,
    norm_eps=1e-5,
    activation="quick-gelu",
    pre_norm=True,
    patch_bias=False,
    head_bias=False,
)
BEIT = replace(VIT, classes=0, key_bias=False, layer_scale=0.1)
MEAN: dict[str, Any] = {"pool": "gap", "unpooled_class_token": True, "last_norm": "pooled"}
SIGLIP = replace(VIT, classes=0, norm_eps=1e-6, activation="gelu-tanh", pool="map")


@dataclass(frozen=True)
class Case:
    model: str
    config: Callable[[], Any]
    format: Format
    spec: ViTSpec
    result: str
    """Field of the model's output that our model gives."""


def text_sizes() -> dict[str, int]:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    return {**sizes, "intermediate_size": 8, "bos_token_id": 0, "eos_token_id": 1}


CASES = {
    "vit": Case(
        "ViTForImageClassification",
        lambda: hf.ViTConfig(**MLP, num_labels=7),
        HF_VIT,
        VIT,
        "logits",
    ),
    "vit not square": Case(
        "ViTForImageClassification",
        lambda: hf.ViTConfig(
            **MLP | {"image_size": [24, 40], "hidden_act": "gelu_pytorch_tanh"},
            num_labels=7,
            qkv_bias=False,
            layer_norm_eps=1e-6,
        ),
        HF_VIT,
        replace(VIT, image=(24, 40), activation="gelu-tanh", qkv_bias=False, norm_eps=1e-6),
        "logits",
    ),
    "vit with pooler": Case(
        "ViTModel",
        lambda: hf.ViTConfig(**MLP, pooler_output_size=20),
        HF_VIT,
        replace(VIT, classes=0, representation=20),
        "pooler_output",
    ),
    "deit": Case(
        "DeiTForImageClassificationWithTeacher",
        lambda: hf.DeiTConfig(**MLP, num_labels=7),
        HF_DEIT,
        replace(VIT, distilled=True),
        "logits",
    ),
    "dinov2": Case(
        "Dinov2Model", lambda: hf.Dinov2Config(**SIZES), HF_DINOV2, DINO, "pooler_output"
    ),
    "dinov2 with registers and swiglu": Case(
        "Dinov2WithRegistersModel",
        lambda: hf.Dinov2WithRegistersConfig(**SIZES, num_register_tokens=3, use_swiglu_ffn=True),
        HF_DINOV2,
        replace(DINO, registers=3, activation="swiglu", mlp=128, position_resize="timm"),
        "pooler_output",
    ),
    "dinov2 classifier": Case(
        "Dinov2ForImageClassification",
        lambda: hf.Dinov2Config(**SIZES, num_labels=7),
        HF_DINOV2,
        replace(DINO, classes=7, pool="token-gap"),
        "logits",
    ),
    "dinov2 classifier with registers": Case(
        "Dinov2WithRegistersForImageClassification",
        lambda: hf.Dinov2WithRegistersConfig(**SIZES, num_register_tokens=3, num_labels=7),
        HF_DINOV2,
        replace(DINO, classes=7, pool="token-gap", registers=3, position_resize="timm"),
        "logits",
    ),
    "deit with one head": Case(
        "DeiTForImageClassification",
        lambda: hf.DeiTConfig(**MLP, num_labels=7),
        HF_DEIT,
        replace(VIT, registers=1, register_position=True),
        "logits",
    ),
    "i-jepa": Case(
        "IJepaForImageClassification",
        lambda: hf.IJepaConfig(**MLP, num_labels=7),
        HF_IJEPA,
        replace(VIT, pool="gap"),
        "logits",
    ),
    "dinov3": Case(
        "DINOv3ViTModel",
        lambda: hf.DINOv3ViTConfig(**MLP, num_register_tokens=3),
        HF_DINOV3,
        DINOV3,
        "pooler_output",
    ),
    "dinov3 with swiglu": Case(
        "DINOv3ViTModel",
        lambda: hf.DINOv3ViTConfig(
            **MLP | {"image_size": [32, 48]}, use_gated_mlp=True, hidden_act="silu", key_bias=True
        ),
        HF_DINOV3,
        replace(DINOV3, image=(32, 48), activation="swiglu", key_bias=True, registers=0),
        "pooler_output",
    ),
    "beit": Case(
        "BeitForImageClassification",
        lambda: hf.BeitConfig(**MLP, num_labels=7, use_relative_position_bias=True),
        HF_BEIT,
        replace(BEIT, classes=7, position="relative-2d", position_at="every-layer", **MEAN),
        "logits",
    ),
    "beit with shared positions": Case(
        "BeitModel",
        lambda: hf.BeitConfig(**MLP, use_shared_relative_position_bias=True),
        HF_BEIT,
        replace(BEIT, position="relative-2d", position_at="shared", **MEAN),
        "pooler_output",
    ),
    "beit with a class token": Case(
        "BeitForImageClassification",
        lambda: hf.BeitConfig(
            **MLP,
            num_labels=7,
            use_mean_pooling=False,
            layer_scale_init_value=0.0,
            use_absolute_position_embeddings=True,
        ),
        HF_BEIT,
        replace(BEIT, classes=7, layer_scale=0.0),
        "logits",
    ),
    "yolos": Case(
        "YolosModel",
        lambda: hf.YolosConfig(**MLP | {"image_size": [24, 40]}, num_detection_tokens=5),
        HF_YOLOS,
        replace(
            VIT,
            image=(24, 40),
            classes=0,
            representation=48,
            registers=5,
            register_position=True,
            position_at="every-layer",
        ),
        "pooler_output",
    ),
    "clip classifier": Case(
        "CLIPForImageClassification",
        lambda: hf.CLIPConfig(vision_config=MLP, text_config=text_sizes(), num_labels=7),
        HF_CLIP,
        replace(
            CLIP, classes=7, head_bias=True, pool="gap", unpooled_class_token=True, last_norm="none"
        ),
        "logits",
    ),
    "clip": Case(
        "CLIPVisionModelWithProjection",
        lambda: hf.CLIPVisionConfig(**MLP, projection_dim=6),
        HF_CLIP,
        CLIP,
        "image_embeds",
    ),
    "clip without projection": Case(
        "CLIPVisionModel",
        lambda: hf.CLIPVisionConfig(**MLP, hidden_act="gelu"),
        HF_CLIP,
        replace(CLIP, classes=0, activation="gelu"),
        "pooler_output",
    ),
    "siglip": Case(
        "SiglipVisionModel",
        lambda: hf.SiglipVisionConfig(**MLP),
        HF_SIGLIP,
        SIGLIP,
        "pooler_output",
    ),
    "aimv2": Case(
        "Aimv2VisionModel",
        lambda: hf.Aimv2VisionConfig(**MLP, use_head=False),
        HF_AIMV2,
        replace(
            VIT,
            classes=0,
            pool="gap",
            norm="rms",
            patch_norm=True,
            dense_bias=False,
            qkv_bias=False,
            activation="swiglu",
            norm_eps=1e-5,
        ),
        "mean",
    ),
    "siglip 2": Case(
        "Siglip2VisionModel",
        lambda: hf.Siglip2VisionConfig(**MLP, num_patches=16),
        HF_SIGLIP,
        replace(SIGLIP, position_resize="siglip2"),
        "pooler_output",
    ),
    "siglip 2 classifier": Case(
        "Siglip2ForImageClassification",
        lambda: hf.Siglip2Config(
            vision_config={**MLP, "num_patches": 16}, text_config=text_sizes(), num_labels=7
        ),
        HF_SIGLIP,
        replace(SIGLIP, classes=7, pool="gap", position_resize="siglip2"),
        "logits",
    ),
    "siglip classifier": Case(
        "SiglipForImageClassification",
        lambda: hf.SiglipConfig(vision_config=MLP, text_config=text_sizes(), num_labels=7),
        HF_SIGLIP,
        replace(SIGLIP, classes=7, pool="gap"),
        "logits",
    ),
}
NAMES = pytest.mark.parametrize("name", CASES)


def make(case: Case) -> Any:
    return peers.randomize(getattr(hf, case.model)(case.config()), torch.float32)


def save(peer: Any, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Let transformers write its folder; give the tensors and the config.json in it."""
    peer.save_pretrained(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in tensors.items()}


def recognized(tensors: Mapping[str, Tensor]) -> list[Format]:
    return [form for form in FORMATS if form.recognizes(shapes_of(form.normalize(tensors)))]


def read(
    form: Format, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[Spec, dict[str, Tensor], dict[str, str]]:
    named = form.normalize(tensors)
    spec = form.infer(shapes_of(named), FileFacts(config))
    return spec, *read_table(form.table(spec), named, form.left_out)


def ask(spec: Spec, ours: Mapping[str, Tensor]) -> Tensor:
    model = build(spec)
    model.load_state_dict(dict(ours))
    with torch.no_grad():
        return model.eval()(peers.images(spec, torch.float32))


def ask_peer(case: Case, peer: Any) -> Tensor:
    x = peers.images(case.spec, torch.float32)
    given = patchify(x) if case.model.startswith("Siglip2") else {"pixel_values": x}
    with torch.no_grad():
        output = peer(**given)
        mean = case.result == "mean"
        return output.last_hidden_state.mean(1) if mean else getattr(output, case.result)


def assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key
