"""Stand-ins for published weights, so that a stranger's clone runs what needs them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.parity import peers


def save_timm_tiny(folder: Path) -> Path:
    """Write a ViT-Ti/16 of random weights as timm's hub folder has the published one."""
    timm = peers.load("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224")
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 1000,
        "num_features": 192,
        "global_pool": "token",
        "pretrained_cfg": {
            "tag": "augreg_in21k_ft_in1k",
            "input_size": [3, 224, 224],
            "fixed_input_size": True,
            "interpolation": "bicubic",
            "crop_pct": 0.9,
            "crop_mode": "center",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "num_classes": 1000,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": "apache-2.0",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
