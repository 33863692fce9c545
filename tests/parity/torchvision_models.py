"""A tiny ViT of torchvision."""

from dataclasses import replace
from typing import Any

import torch

from tests.parity import peers
from vitrail.models import ViTSpec

torchvision = peers.load("torchvision.models.vision_transformer")
BASE = replace(peers.TINY, position_resize="torchvision")


def torchvision_vit(spec: ViTSpec, dtype: torch.dtype) -> Any:
    peer = torchvision.VisionTransformer(
        image_size=spec.image[0],
        patch_size=spec.patch[0],
        num_layers=spec.depth,
        num_heads=spec.heads,
        hidden_dim=spec.width,
        mlp_dim=spec.mlp,
        num_classes=spec.classes,
        representation_size=spec.representation or None,
    )
    return peers.randomize(peer, dtype)
