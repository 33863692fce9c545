"""What transformers' formats refuse: files, configs and specs that do not fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.weights.huggingface_cases import (
    CASES,
    CLIP,
    DINO,
    DINOV3,
    MLP,
    SIGLIP,
    VIT,
    make,
    read,
)
from vitrail.config import InputError
from vitrail.models import BiTSpec, Spec
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.huggingface.huggingface import (
    HF_CLIP,
    HF_DEIT,
    HF_DINOV2,
    HF_IJEPA,
    HF_SIGLIP,
    HF_VIT,
)
from vitrail.weights.formats.huggingface.huggingface_dinov3 import HF_DINOV3
from vitrail.weights.formats.huggingface.huggingface_names import normalize_names


def test_a_width_that_says_no_heads_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"width=48,mlp=\d+ has: add its config\.json, or name the"
    ):
        read(HF_VIT, make(CASES["vit"]).state_dict(), {"hidden_size": 48})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "gelu_new2"}, "unknown hidden_act 'gelu_new2'.*did you mean 'gelu_new'"),
        ({"hidden_act": None}, "unknown hidden_act None"),
        ({"hidden_act": ["gelu"]}, "unknown hidden_act"),
        ({"vision_config": 3}, "expected keys and values in vision_config, got 3"),
        ({"num_attention_heads": "4"}, "expected a number for num_attention_heads, got '4'"),
        ({"layer_norm_eps": None}, "expected a number for layer_norm_eps"),
        ({"image_size": [32]}, r"expected a size or two for image_size, got \[32\]"),
        ({"image_size": 40}, r"'vit.embeddings.position_embeddings' has shape \(1, 17, 48\), exp"),
        ({"num_attention_heads": 5}, "width 48 is not a multiple of 5 heads"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(HF_VIT, make(CASES["vit"]).state_dict(), {**MLP, **config})


def test_missing_unknown_and_double_tensors_are_refused() -> None:
    tensors = make(CASES["vit"]).state_dict()
    given = {key: value for key, value in tensors.items() if "layers.1.mlp.fc1.bias" not in key}
    given["vit.mystery"] = torch.zeros(1)
    with pytest.raises(InputError) as error:
        read(HF_VIT, given, MLP)
    assert "missing 'vit.encoder.layer.1.intermediate.dense.bias' (96,)" in str(error.value)
    assert "unknown 'vit.mystery'" in str(error.value)
    with pytest.raises(
        InputError, match=r"missing 'vit\.encoder\.layer\.0\.output\.dense\.weight'"
    ):
        read(HF_VIT, {key: tensors[key] for key in tensors if "layers.0.mlp" not in key}, MLP)
    far = {**tensors, "vit.layers.99999999999.mlp.fc1.bias": torch.zeros(96)}
    with pytest.raises(InputError, match="a layer has number 99999999999 in a file of 41 tensors"):
        read(HF_VIT, far, MLP)
    both = {**normalize_names(tensors), "embeddings.cls_token": tensors["vit.embeddings.cls_token"]}
    with pytest.raises(InputError, match=r"unknown 'embeddings\.cls_token'"):
        read(HF_VIT, both, MLP)


@pytest.mark.parametrize(
    ("form", "spec", "message"),
    [
        (HF_VIT, replace(VIT, pool="gap"), r"pool=gap \(only token\)"),
        (HF_VIT, replace(VIT, position="none"), "position=none"),
        (HF_VIT, replace(VIT, position_at="shared"), "position_at=shared"),
        (HF_VIT, replace(VIT, class_position=False), "class_position=False"),
        (HF_VIT, replace(VIT, patch_bias=False), "patch_bias=False"),
        (HF_VIT, replace(VIT, head_bias=False), "head_bias=False"),
        (HF_VIT, replace(VIT, activation="swiglu"), "activation=swiglu"),
        (HF_VIT, replace(VIT, representation=20), r"does not support head\.hidden\.weight"),
        (HF_VIT, replace(VIT, registers=2), "does not support registers"),
        (HF_VIT, replace(VIT, qk_norm=True), "does not support .*query_norm"),
        (HF_VIT, BiTSpec(stages=(1,), width=32), "a bit model"),
        (HF_DEIT, VIT, "distilled=False"),
        (HF_DEIT, replace(VIT, distilled=True, representation=9), "does not support head.hidden"),
        (HF_DINOV2, VIT, "LayerScale"),
        (HF_DINOV2, replace(DINO, classes=7), r"pool=token \(only token-gap\)"),
        (HF_DINOV2, replace(DINO, pool="token-gap"), r"pool=token-gap \(only token\)"),
        (HF_DINOV3, replace(DINOV3, pool="token-gap"), r"pool=token-gap \(only token\)"),
        (HF_DEIT, replace(VIT, registers=2, register_position=True), r"registers=2 \(only 1\)"),
        (HF_DEIT, replace(VIT, registers=1), "register_position=False"),
        (HF_IJEPA, VIT, r"pool=token \(only gap\)"),
        (HF_IJEPA, replace(VIT, pool="gap", registers=1), "does not support registers"),
        (HF_DINOV3, VIT, "position=learned-1d.*rotary=none|rotary=none.*position=learned-1d"),
        (HF_DINOV3, replace(DINOV3, layer_scale=0.0), "LayerScale"),
        (HF_DINOV3, replace(DINOV3, classes=7), r"does not support head\.output\.weight"),
        (HF_DINOV3, replace(DINOV3, pool="gap", unpooled_class_token=True), "pool=gap"),
        (HF_DINOV3, replace(DINOV3, norm="rms"), "does not support norm=rms"),
        (HF_CLIP, replace(CLIP, pool="gap", head_bias=True), "last_norm=tokens"),
        (HF_CLIP, VIT, "patch_bias=True.*pre_norm=False|pre_norm=False.*patch_bias=True"),
        (HF_CLIP, replace(CLIP, head_bias=True), r"does not support head\.output\.bias"),
        (HF_SIGLIP, VIT, "pool=token"),
        (
            HF_SIGLIP,
            replace(SIGLIP, position_resize="siglip2", channels=1),
            r"channels=1 \(only 3\)",
        ),
        (HF_SIGLIP, replace(SIGLIP, classes=7), r"does not support head\.output\.weight"),
        (HF_SIGLIP, replace(SIGLIP, qkv_bias=False), "qkv_bias=False"),
    ],
)
def test_a_spec_without_a_place_is_refused(form: Format, spec: Spec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        form.table(spec)
