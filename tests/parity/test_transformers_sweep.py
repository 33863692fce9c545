"""transformers' ViT-like classes with tiny random weights: equal, or refused with a reason.

Each is saved by transformers and read from its folder. A model that is read and gives other outputs
than transformers' is the one outcome that must not be.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import peers
from tests.parity.transformers_tiny import (
    ABSOLUTE,
    BOXES,
    RELATIVE,
    SHARED,
    TEXT,
    TINY,
    TOKEN,
    TOWERS,
    hf,
    make,
    patchify,
)
from vitrail.config import InputError
from vitrail.models import ViT
from vitrail.weights.conversion.convert import convert
from vitrail.weights.load import read_checkpoint

DECODER = {f"decoder_{key}": value for key, value in TEXT.items()}
INDICES = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}
RESNET = {"embedding_size": 64, "hidden_sizes": [128, 256], "depths": [1, 1], "num_labels": 5}

EQUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", TINY),
    "ViT, pooler": ("ViTModel", TINY),
    "ViT, other pooler": ("ViTModel", {**TINY, "pooler_output_size": 20}),
    "ViT, no qkv bias": ("ViTForImageClassification", {**TINY, "qkv_bias": False}),
    "ViT, tanh GELU": ("ViTForImageClassification", {**TINY, "hidden_act": "gelu_pytorch_tanh"}),
    "ViT, gelu_new": ("ViTForImageClassification", {**TINY, "hidden_act": "gelu_new"}),
    "ViT, quick GELU": ("ViTForImageClassification", {**TINY, "hidden_act": "quick_gelu"}),
    "ViT, epsilon": ("ViTForImageClassification", {**TINY, "layer_norm_eps": 0.1}),
    "ViT, wide images": ("ViTForImageClassification", {**TINY, "image_size": [32, 48]}),
    "ViT, gray images": ("ViTForImageClassification", {**TINY, "num_channels": 1}),
    "ViT, eight heads": ("ViTForImageClassification", {**TINY, "num_attention_heads": 8}),
    "ViT, masked images": ("ViTForMaskedImageModeling", {**TINY, "encoder_stride": 8}),
    "DeiT, two heads": ("DeiTForImageClassificationWithTeacher", TINY),
    "DeiT, encoder": ("DeiTModel", TINY),
    "DeiT, masked images": ("DeiTForMaskedImageModeling", {**TINY, "encoder_stride": 8}),
    "MAE": ("ViTMAEModel", {**TINY, "mask_ratio": 0.0}),
    "MAE with decoder": ("ViTMAEForPreTraining", {**TINY, **DECODER, "mask_ratio": 0.0}),
    "MSN": ("ViTMSNModel", TINY),
    "MSN, classifier": ("ViTMSNForImageClassification", TINY),
    "DINOv2": ("Dinov2Model", TINY),
    "DINOv2, gated": ("Dinov2Model", {**TINY, "use_swiglu_ffn": True}),
    "DINOv2, LayerScale": ("Dinov2Model", {**TINY, "layerscale_value": 0.1}),
    "DINOv2, backbone": ("Dinov2Backbone", TINY),
    "DINOv2, registers": ("Dinov2WithRegistersModel", {**TINY, "num_register_tokens": 3}),
    "DINOv2, gated, registers": ("Dinov2WithRegistersModel", {**TINY, "use_swiglu_ffn": True}),
    "DINOv2, classifier": ("Dinov2ForImageClassification", TINY),
    "DINOv2, gated, classifier": (
        *("Dinov2ForImageClassification", {**TINY, "use_swiglu_ffn": True}),
    ),
    "registers, classifier": (
        *("Dinov2WithRegistersForImageClassification", {**TINY, "num_register_tokens": 3}),
    ),
    "BEiT": ("BeitModel", {**TINY, **RELATIVE}),
    "BEiT, no positions": ("BeitModel", TINY),
    "BEiT, class token": ("BeitModel", {**TINY, **RELATIVE, **TOKEN}),
    "BEiT, absolute": ("BeitModel", {**TINY, **ABSOLUTE}),
    "BEiT, classifier": ("BeitForImageClassification", {**TINY, **RELATIVE}),
    "BEiT, shared": ("BeitForImageClassification", {**TINY, **SHARED, **TOKEN}),
    "BEiT, no LayerScale": (
        *("BeitForImageClassification", {**TINY, **ABSOLUTE, "layer_scale_init_value": 0.0}),
    ),
    "BEiT, masked images": (
        *("BeitForMaskedImageModeling", {**TINY, **SHARED, "use_mask_token": True}),
    ),
    "BEiT, masked images, two norms": ("BeitForMaskedImageModeling", {**TINY, **SHARED, **TOKEN}),
    "BEiT, segments": ("BeitForSemanticSegmentation", {**TINY, **RELATIVE, **INDICES}),
    "data2vec": ("Data2VecVisionModel", {**TINY, **RELATIVE}),
    "data2vec, classifier": ("Data2VecVisionForImageClassification", {**TINY, **RELATIVE}),
    "data2vec, token": ("Data2VecVisionForImageClassification", {**TINY, **SHARED, **TOKEN}),
    "DINOv3": ("DINOv3ViTModel", {**TINY, "num_register_tokens": 3}),
    "DINOv3, no registers": ("DINOv3ViTModel", TINY),
    "DINOv3, gated": ("DINOv3ViTModel", {**TINY, "use_gated_mlp": True, "hidden_act": "silu"}),
    "DINOv3, gated by GELU": ("DINOv3ViTModel", {**TINY, "use_gated_mlp": True}),
    "DINOv3, all biases": ("DINOv3ViTModel", {**TINY, "key_bias": True}),
    "DINOv3, no qkv bias": ("DINOv3ViTModel", {**TINY, "query_bias": False, "value_bias": False}),
    "DINOv3, no dense bias": ("DINOv3ViTModel", {**TINY, "proj_bias": False, "mlp_bias": False}),
    "DINOv3, other theta": ("DINOv3ViTModel", {**TINY, "rope_theta": 20.0}),
    "DINOv3, wide images": ("DINOv3ViTModel", {**TINY, "image_size": [32, 48]}),
    "DINOv3, backbone": ("DINOv3ViTBackbone", {**TINY, "num_register_tokens": 3}),
    "I-JEPA": ("IJepaModel", TINY),
    "I-JEPA, classifier": ("IJepaForImageClassification", TINY),
    "DeiT, one head": ("DeiTForImageClassification", TINY),
    "YOLOS": ("YolosModel", {**TINY, **BOXES}),
    "YOLOS, positions at the input": (
        *("YolosModel", {**TINY, **BOXES, "use_mid_position_embeddings": False}),
    ),
    "YOLOS, boxes": ("YolosForObjectDetection", {**TINY, **BOXES}),
    "CLIP": ("CLIPVisionModel", TINY),
    "CLIP, classifier": ("CLIPForImageClassification", TOWERS),
    "MetaCLIP 2": ("MetaClip2VisionModel", TINY),
    "MetaCLIP 2, projection": ("MetaClip2VisionModelWithProjection", TINY),
    "MetaCLIP 2, classifier": ("MetaClip2ForImageClassification", TOWERS),
    "AltCLIP": ("AltCLIPVisionModel", TINY),
    "CLIP, projection": ("CLIPVisionModelWithProjection", TINY),
    "CLIP, exact GELU": ("CLIPVisionModelWithProjection", {**TINY, "hidden_act": "gelu"}),
    "CLIP, both towers": ("CLIPModel", TOWERS),
    "SigLIP": ("SiglipVisionModel", TINY),
    "SigLIP, no head": ("SiglipVisionModel", {**TINY, "vision_use_head": False}),
    "SigLIP, exact GELU": ("SiglipVisionModel", {**TINY, "hidden_act": "gelu"}),
    "SigLIP, classifier": ("SiglipForImageClassification", TOWERS),
    "SigLIP, both towers": ("SiglipModel", TOWERS),
    "AIMv2": ("Aimv2VisionModel", {**TINY, "use_head": False}),
    "AIMv2, biases": (
        *("Aimv2VisionModel",),
        {**TINY, "use_head": False, "qkv_bias": True, "mlp_bias": True, "rms_norm_eps": 0.1},
    ),
    "AIMv2, attention pooling": ("Aimv2VisionModel", TINY),
    "AIMv2, pooling, biases": ("Aimv2VisionModel", {**TINY, "qkv_bias": True, "mlp_bias": True}),
    "AIMv2, native resolution": ("Aimv2VisionModel", {**TINY, "is_native": True}),
    "AIMv2, gated by GELU": ("Aimv2VisionModel", {**TINY, "hidden_act": "gelu"}),
    "AIMv2, both towers": ("Aimv2Model", TOWERS),
    "SigLIP 2": ("Siglip2VisionModel", {**TINY, "num_patches": 16}),
    "SigLIP 2, no head": ("Siglip2VisionModel", {**TINY, "vision_use_head": False}),
    "SigLIP 2, classifier": ("Siglip2ForImageClassification", TOWERS),
}
_OTHER = r"model_type '{}' is not among the models of transformers that vitrail reproduces"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "ViT, ReLU": ("ViTForImageClassification", {**TINY, "hidden_act": "relu"}, "hidden_act 'relu'"),
    "ViT, pooler's ReLU": ("ViTModel", {**TINY, "pooler_act": "relu"}, "pooler's activation"),
    "BEiT, both relative positions": (
        *("BeitModel", {**TINY, **RELATIVE, "use_shared_relative_position_bias": True}),
        "relative positions of each layer and shared relative positions",
    ),
    "BEiT, absolute and relative": (
        *("BeitModel", {**TINY, **RELATIVE, "use_absolute_position_embeddings": True}),
        "absolute positions and relative positions of each layer",
    ),
    "BEiT, wide images": (
        *("BeitModel", {**TINY, **RELATIVE, "image_size": [32, 48]}),
        "rows and columns exchanged",
    ),
    "DINOv3, gated by ReLU": (
        *("DINOv3ViTModel", {**TINY, "use_gated_mlp": True, "hidden_act": "relu"}),
        "a gated MLP's hidden_act 'relu'",
    ),
    "DINOv3, ReLU": ("DINOv3ViTModel", {**TINY, "hidden_act": "relu"}, "hidden_act 'relu'"),
    "DINOv3, query bias alone": (
        *("DINOv3ViTModel", {**TINY, "value_bias": False}),
        "query_bias=True, key_bias=False, value_bias=False",
    ),
    "DINOv3, MLP without bias": (
        *("DINOv3ViTModel", {**TINY, "mlp_bias": False}),
        "o_proj.bias",
    ),
    "BLIP": ("BlipVisionModel", TINY, _OTHER.format("blip_vision_model")),
    "InternVL": ("InternVLVisionModel", TINY, _OTHER.format("internvl_vision")),
    "MLCD": ("MLCDVisionModel", TINY, _OTHER.format("mlcd_vision_model")),
    "VideoMAE": ("VideoMAEModel", TINY, _OTHER.format("videomae")),
    "AST": ("ASTModel", TINY, _OTHER.format("audio-spectrogram-transformer")),
    "ViT hybrid": ("ViTHybridModel", TINY, _OTHER.format("vit-hybrid")),
    "BiT": ("BitModel", RESNET, _OTHER.format("bit")),
    "BiT, classifier": ("BitForImageClassification", RESNET, _OTHER.format("bit")),
}


def first_token(name: str = "base_model") -> Callable[[Any, Tensor], Tensor]:
    return lambda model, x: getattr(model, name)(x).last_hidden_state[:, 0]


def encode_all_patches(model: Any, x: Tensor) -> Tensor:
    order = torch.arange(16.0).repeat(len(x), 1)  # which patches MAE keeps, and their order
    return model.base_model(x, noise=order).last_hidden_state[:, 0]


def encode_with_last_norm(model: Any, x: Tensor) -> Tensor:
    tokens = model.beit(x).last_hidden_state
    apart = isinstance(model.beit.layernorm, torch.nn.Identity)
    return (model.layernorm(tokens) if apart else tokens)[:, 0]


THEIRS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "ViTForMaskedImageModeling": first_token(),
    "DeiTModel": first_token(),
    "DeiTForMaskedImageModeling": first_token(),
    "BeitForMaskedImageModeling": encode_with_last_norm,
    "BeitForSemanticSegmentation": first_token(),
    "Data2VecVisionModel": first_token(),
    "YolosForObjectDetection": first_token(),
    "ViTMAEModel": encode_all_patches,
    "ViTMAEForPreTraining": encode_all_patches,
    "ViTMSNModel": first_token(),
    "CLIPModel": lambda model, x: model.get_image_features(pixel_values=x).pooler_output,
    "Aimv2Model": lambda model, x: model.get_image_features(pixel_values=x).pooler_output,
    "SiglipModel": lambda model, x: model.vision_model(x).pooler_output,
    "Dinov2Backbone": lambda model, x: model(x).feature_maps[-1].flatten(2).mean(2),
    "DINOv3ViTBackbone": lambda model, x: model(x).feature_maps[-1].flatten(2).mean(2),
}
"""What is compared of classes whose output is not logits, a projection or a pooler's."""


def run_theirs(kind: str, model: Any, x: Tensor) -> Tensor:
    if kind in THEIRS:
        return THEIRS[kind](model, x)
    output = model(**patchify(x)) if kind.startswith("Siglip2") else model(pixel_values=x)
    keys = ("logits", "image_embeds", "pooler_output")
    found = [output[key] for key in keys if output.get(key) is not None]
    return found[0] if found else output.last_hidden_state.mean(1)


def run_ours(kind: str, model: ViT, x: Tensor) -> Tensor:
    if kind.endswith("Backbone"):
        return model.tokens(x)[:, model.spec.prefix :].mean(1)
    return model.features(x) if kind.startswith("DeiTModel") or "Masked" in kind else model(x)


@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str, tmp_path: Path) -> None:
    kind, options = EQUAL[name]
    theirs = make(kind, options, seed=zlib.crc32(name.encode()))
    theirs.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(str(tmp_path))
    ours = checkpoint.build()
    assert isinstance(ours, ViT)
    x = peers.images(checkpoint.spec, torch.float32)
    with torch.no_grad():
        peers.assert_near(run_ours(kind, ours, x), run_theirs(kind, theirs, x), 1e-5, name)


WRITTEN = [
    *("ViT", "DeiT, one head", "DeiT, two heads", "I-JEPA, classifier", "YOLOS"),
    *("DINOv2, gated, classifier", "registers, classifier", "DINOv3", "DINOv3, gated by GELU"),
    *("BEiT, classifier", "BEiT, shared", "CLIP, projection", "CLIP, classifier", "SigLIP"),
    *("SigLIP 2", "SigLIP 2, classifier", "AIMv2, pooling, biases", "AIMv2, native resolution"),
]


@pytest.mark.parametrize("name", WRITTEN)
def test_written_for_transformers_again(name: str, tmp_path: Path) -> None:
    """What is read is written back, and transformers computes the same with it."""
    kind, options = EQUAL[name]
    theirs = make(kind, options, seed=1 + zlib.crc32(name.encode()))
    theirs.save_pretrained(tmp_path / "theirs")
    convert(str(tmp_path / "theirs"), tmp_path / "again", "hf")
    (named,) = json.loads((tmp_path / "again" / "config.json").read_text())["architectures"]
    assert named == kind
    again = getattr(hf, named).from_pretrained(tmp_path / "again").eval()
    x = peers.images(read_checkpoint(str(tmp_path / "theirs")).spec, torch.float32)
    with torch.no_grad():
        assert torch.equal(run_theirs(kind, again, x), run_theirs(kind, theirs, x))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    kind, options, reason = REFUSED[name]
    make(kind, options).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=reason) as caught:
        read_checkpoint(str(tmp_path))
    assert "\n" not in str(caught.value)
