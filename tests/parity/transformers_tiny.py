"""Tiny models of transformers' many ViT-like classes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import peers

hf = peers.load("transformers")
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "mlp_ratio": 2,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
    "projection_dim": 7,
}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 50_000,
}
TOWERS = {"vision_config": TINY, "text_config": TEXT, "num_labels": 5, "projection_dim": 7}
RELATIVE = {"use_relative_position_bias": True}
SHARED = {"use_shared_relative_position_bias": True}
ABSOLUTE = {"use_absolute_position_embeddings": True}
BOXES = {"image_size": [32, 48], "num_detection_tokens": 5}
TOKEN = {"use_mean_pooling": False}


def make(kind: str, options: dict[str, Any], seed: int = 0) -> Any:
    """Build a model with random weights; skip what this version of transformers doesn't have."""
    if not hasattr(hf, kind):
        pytest.skip(f"transformers {hf.__version__} has no {kind}")
    model_class = getattr(hf, kind)
    return peers.randomize(model_class(model_class.config_class(**options)), torch.float32, seed)


def patchify(x: Tensor) -> dict[str, Tensor]:
    """Cut images to flat patches of 8x8 pixels, channels last, as SigLIP 2's processor does."""
    rows, columns = x.shape[2] // 8, x.shape[3] // 8
    patches = x.unflatten(3, (columns, 8)).unflatten(2, (rows, 8)).permute(0, 2, 4, 3, 5, 1)
    count = rows * columns
    return {
        "pixel_values": patches.reshape(len(x), count, -1),
        "pixel_attention_mask": torch.ones(len(x), count, dtype=torch.long),
        "spatial_shapes": torch.tensor([[rows, columns]] * len(x)),
    }
