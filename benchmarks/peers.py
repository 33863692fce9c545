"""The contestants: the same Vision Transformer, as five libraries build it.

All have the spec's depth, width, heads, MLP, patch and classes, exact GELU and no dropout. The
first four have the same parameters; vit-pytorch's has no qkv bias, normalizes a patch before and
after its projection, and writes attention out. The others use the fused kernel: timm by default,
transformers when asked, torchvision inside `nn.MultiheadAttention`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models import build
from vitrail.models.spec import ViTSpec

OURS = "vitrail"
AGAIN = "vitrail again"
"""A second instance of ours: how far it seems from the first is the noise."""


def build_contestant(name: str, spec: ViTSpec) -> nn.Module:
    """Build a contestant, from images to logits, its weights drawn as all the others' are."""
    if name not in (OURS, AGAIN):
        mend_torchvision()  # all of the peers import it
    model = CONTESTANTS[name](spec)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # no one's initial zeros may make a number easier, or subnormal
            nn.init.normal_(parameter, std=0.02)
    return model


def versions() -> dict[str, str]:
    """Say which versions of torch and the contestants are installed."""
    found = {}
    for package in ("torch", "vitrail", "timm", "transformers", "torchvision", "vit-pytorch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


class _Logits(nn.Module):
    """A transformers classifier that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def _timm(spec: ViTSpec) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=spec.image,
        patch_size=spec.patch,
        num_classes=spec.classes,
        embed_dim=spec.width,
        depth=spec.depth,
        num_heads=spec.heads,
        mlp_ratio=spec.mlp / spec.width,
    )


def _transformers(spec: ViTSpec) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    options: dict[str, Any] = {
        "image_size": spec.image[0],
        "patch_size": spec.patch[0],
        "num_labels": spec.classes,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.mlp,
        "attn_implementation": "sdpa",
    }
    return _Logits(ViTForImageClassification(ViTConfig(**options)))


def _torchvision(spec: ViTSpec) -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=spec.image[0],
        patch_size=spec.patch[0],
        num_classes=spec.classes,
        hidden_dim=spec.width,
        num_layers=spec.depth,
        num_heads=spec.heads,
        mlp_dim=spec.mlp,
    )


def _vit_pytorch(spec: ViTSpec) -> nn.Module:
    from vit_pytorch import ViT

    return ViT(
        image_size=spec.image,
        patch_size=spec.patch,
        num_classes=spec.classes,
        dim=spec.width,
        depth=spec.depth,
        heads=spec.heads,
        dim_head=spec.width // spec.heads,
        mlp_dim=spec.mlp,
        pool="cls",
    )


@functools.cache
def mend_torchvision() -> torch.library.Library | None:
    """Let torchvision's CUDA wheel import beside a CPU build of torch: declare what it asks for."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library  # its declarations live as long as it does
    except ImportError:
        return None  # a peer may do without
    return None


CONTESTANTS: dict[str, Callable[[ViTSpec], nn.Module]] = {
    OURS: build,
    AGAIN: build,
    "timm": _timm,
    "transformers": _transformers,
    "torchvision": _torchvision,
    "vit-pytorch": _vit_pytorch,
}
