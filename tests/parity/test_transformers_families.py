"""Families of transformers that are read from folders: float64, other sizes, gradients.

The sweep compares float32 logits at the config's own size.
"""

import re
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
    TINY,
    TOKEN,
    TOWERS,
    make,
    patchify,
)
from vitrail.models import ViT
from vitrail.models.spec import Size
from vitrail.weights.load import read_checkpoint

BIASES = {"qkv_bias": True, "mlp_bias": True}
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "DINOv3": ("DINOv3ViTModel", {**TINY, "num_register_tokens": 3}, False),
    "DINOv3, gated": (
        *("DINOv3ViTModel", {**TINY, "use_gated_mlp": True, "hidden_act": "silu"}),
        False,
    ),
    "DINOv2, classifier": ("Dinov2ForImageClassification", TINY, False),
    "DINOv2, registers, classifier": (
        *("Dinov2WithRegistersForImageClassification", {**TINY, "num_register_tokens": 3}),
        False,
    ),
    "BEiT": ("BeitForImageClassification", {**TINY, **RELATIVE}, False),
    "BEiT, absolute": ("BeitForImageClassification", {**TINY, **ABSOLUTE}, False),
    "data2vec": ("Data2VecVisionForImageClassification", {**TINY, **SHARED, **TOKEN}, True),
    "YOLOS": ("YolosModel", {**TINY, **BOXES}, False),
    "I-JEPA": ("IJepaForImageClassification", TINY, True),
    "DeiT, one head": ("DeiTForImageClassification", TINY, True),
    "CLIP, classifier": ("CLIPForImageClassification", TOWERS, True),
    "SigLIP 2": ("Siglip2VisionModel", {**TINY, "num_patches": 16}, False),
    "AIMv2": (
        *("Aimv2VisionModel", {**TINY, **BIASES, "use_head": False}),
        False,
    ),
    "AIMv2, pooling": ("Aimv2VisionModel", {**TINY, **BIASES}, False),
    "AIMv2, native": ("Aimv2VisionModel", {**TINY, **BIASES, "is_native": True}, False),
    "DINOv3, gated by GELU": ("DINOv3ViTModel", {**TINY, "use_gated_mlp": True}, False),
    "MetaCLIP 2": ("MetaClip2VisionModelWithProjection", TINY, True),
}
"""The class, its config, and whether it must be asked to resize its positions."""
ONE_SIZE = ("CLIP, classifier", "AIMv2", "AIMv2, pooling")
"""Those that transformers runs at their own size alone."""
FLOAT32_NORMS = 1e-6
"""transformers computes AIMv2's norms in float32, whatever the model's type."""
FLOAT32_ANGLES = 1e-7
"""transformers rounds DINOv3's angles to float32 in another order than DINOv3 and timm do."""
ROUNDED = {"DINOv3": FLOAT32_ANGLES, "AIMv2": FLOAT32_NORMS}


def run_both(
    name: str, size: Size, dtype: torch.dtype, folder: Path
) -> tuple[ViT, Any, Tensor, Tensor]:
    kind, options, asks = CASES[name]
    theirs = make(kind, options).to(dtype)
    theirs.save_pretrained(folder)
    ours = read_checkpoint(str(folder)).build().to(dtype)
    assert isinstance(ours, ViT)
    x = peers.images(ours.spec, dtype, size)
    given = patchify(x) if kind.startswith("Siglip2") else {"pixel_values": x}
    output = theirs(**given, **({"interpolate_pos_encoding": True} if asks else {}))
    keys = ("logits", "image_embeds", "pooler_output")
    found = [output[key] for key in keys if output.get(key) is not None]
    return ours, theirs, ours(x), found[0] if found else output.last_hidden_state.mean(1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [(32, 32), (48, 48), (64, 24)])
@peers.PRECISIONS
def test_equal_at_any_size(
    name: str, size: Size, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    if name in ONE_SIZE and size != (32, 32):
        pytest.skip("transformers does not resize its positions")
    _, _, ours, theirs = run_both(name, size, dtype, tmp_path)
    resized = dict.fromkeys(("SigLIP 2", "DINOv2"), peers.FLOAT32_RESIZE)
    tolerance = max(tolerance, {**ROUNDED, **resized}.get(name.partition(",")[0], 0.0))
    peers.assert_near(ours.detach(), theirs.detach(), tolerance, name)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_equal(name: str, tmp_path: Path) -> None:
    model, peer, ours, theirs = run_both(name, (32, 32), torch.float64, tmp_path)
    weights = torch.linspace(-100, 100, ours.shape[1], dtype=ours.dtype)
    tolerance = ROUNDED.get(name.partition(",")[0], 1e-9)
    (ours @ weights).sum().backward()
    (theirs @ weights).sum().backward()
    bias = model.blocks[0].get_parameter("mlp.hidden.bias").grad
    names = r"layers?\.0\..*(fc1|up_proj|intermediate\.dense)\.bias"
    wanted = next(p.grad for name, p in peer.named_parameters() if re.search(names, name))
    assert bias is not None
    peers.assert_near(bias[-len(wanted) :], wanted, tolerance, "gradient of the first MLP")
    total = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    expected = sum(p.grad.square().sum() for p in peer.parameters() if p.grad is not None)
    assert abs(float(total / expected) - 1) < tolerance, "squared norm of all gradients"
