"""The catalog's specs of timm's and transformers' models against those libraries' own."""

from typing import Any

import pytest
import torch

from tests.parity import peers
from vitrail.models import parse
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.huggingface.huggingface import HF_CLIP
from vitrail.weights.formats.huggingface.huggingface_dinov3 import HF_DINOV3
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.timm.timm_config import read_timm_preprocess
from vitrail.weights.published.catalog_successors import successors

ENTRIES = {entry.source: entry for entry in successors()}
TIMMS = [source for source in ENTRIES if source.startswith("timm:")]


@pytest.mark.parametrize("source", TIMMS)
def test_timm(source: str) -> None:
    """Its entry gives the spec, the number of parameters and the preprocessing of ours."""
    timm = peers.load("timm")
    name = source.removeprefix("timm:")
    with torch.device("meta"):
        theirs = timm.create_model(name)
    shapes = {key: tuple(t.shape) for key, t in TIMM.normalize(theirs.state_dict()).items()}
    said = {k: list(v) if isinstance(v, tuple) else v for k, v in theirs.pretrained_cfg.items()}
    config = {"architecture": name, "global_pool": theirs.global_pool, "pretrained_cfg": said}
    entry = ENTRIES[source]
    assert TIMM.infer(shapes, FileFacts(config)) == parse(entry.model)
    folded = 2 * 192 if "_mci_" in name else 0  # the scales of BatchNorms, which convolutions take
    assert entry.parameters == sum(weight.numel() for weight in theirs.parameters()) - folded
    assert read_timm_preprocess(config) == entry.preprocess
    assert said["license"] == entry.license.lower().replace(" ", "-")
    assert timm.models.get_pretrained_cfg(name).hf_hub_id


SIZES: dict[str, Any] = {
    "vits16": {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6},
    "vitb16": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
}


@pytest.mark.parametrize("size", SIZES)
def test_dinov3_of_transformers(size: str) -> None:
    hf = peers.load("transformers")
    config = hf.DINOv3ViTConfig(**SIZES[size], num_register_tokens=4)
    with torch.device("meta"):
        theirs = hf.DINOv3ViTModel(config)
    shapes = {key: tuple(t.shape) for key, t in HF_DINOV3.normalize(theirs.state_dict()).items()}
    entry = ENTRIES[f"hf:facebook/dinov3-{size}-pretrain-lvd1689m"]
    assert HF_DINOV3.infer(shapes, FileFacts(config.to_dict())) == parse(entry.model)


def test_siglip2_of_transformers() -> None:
    hf = peers.load("transformers")
    with torch.device("meta"):
        theirs = hf.SiglipVisionModel(hf.SiglipVisionConfig(image_size=256))
    entry = ENTRIES["hf:google/siglip2-base-patch16-256"]
    assert entry.parameters == sum(weight.numel() for weight in theirs.parameters())


@pytest.mark.parametrize(("size", "patch"), [("base", 32), ("base", 16), ("large", 14)])
def test_clip_of_transformers(size: str, patch: int) -> None:
    hf = peers.load("transformers")
    large = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    large |= {"num_attention_heads": 16, "projection_dim": 768}
    config = hf.CLIPVisionConfig(patch_size=patch, **(large if size == "large" else {}))
    with torch.device("meta"):
        theirs = hf.CLIPVisionModelWithProjection(config)
    shapes = {key: tuple(t.shape) for key, t in HF_CLIP.normalize(theirs.state_dict()).items()}
    entry = ENTRIES[f"hf:openai/clip-vit-{size}-patch{patch}"]
    assert HF_CLIP.infer(shapes, FileFacts(config.to_dict())) == parse(entry.model)
    assert entry.parameters == sum(weight.numel() for weight in theirs.parameters())
