"""Tiny models of timm, and their equality with ours."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models import ViT
from vitrail.weights.files.tensor_files import weights_in_memory
from vitrail.weights.load import read_weights
from vitrail.weights.sources.resolved import Resolved

TINY: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}


def read(name: str, model: nn.Module, arguments: dict[str, Any]) -> ViT:
    """Read timm's weights with the config that its hub folders have."""
    said = {"input_size": [3, *arguments["img_size"]]}
    config = {"architecture": name, "model_args": arguments, "pretrained_cfg": said}
    file = weights_in_memory(model.state_dict(), name)
    found = Resolved(f"timm:{name}", Path(name), json.loads(json.dumps(config)))
    ours = read_weights(file, found, hashed=False).build()
    assert isinstance(ours, ViT)
    return ours


def images(size: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(3), dtype=dtype)


def assert_equal(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert ((ours - theirs).abs().max() / theirs.abs().max()).item() <= tolerance
