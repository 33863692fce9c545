"""The demonstration: a small model of each family, built and run on a drawn picture."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from vitrail.models import build

MODELS = ("ViT-Ti/16", "ViT-Ti/16@384x256", "R+ViT-Ti/16", "BiT-R50x1", "AxialViT-Ti/16")


def draw_picture(height: int, width: int) -> Tensor:
    """Draw coloured rings on a gradient, as one picture (1, 3, height, width) from -1 to 1."""
    y = torch.linspace(-1, 1, height)[:, None].expand(height, width)
    x = torch.linspace(-1, 1, width).expand(height, width)
    rings = torch.sin(12 * (x.square() + y.square()).sqrt())
    return torch.stack([rings, x, y])[None]


def run() -> list[dict[str, Any]]:
    """Run each model once to warm up and once timed; give a row for each."""
    rows = []
    for name in MODELS:
        torch.manual_seed(0)
        model = build(name).eval()
        picture = draw_picture(*model.spec.image)
        with torch.inference_mode():
            model(picture)
            start = time.perf_counter()
            logits = model(picture)
            seconds = time.perf_counter() - start
            features = model.features(picture)
        rows.append(
            {
                "name": name,
                "parameters": sum(p.numel() for p in model.parameters()),
                "tokens": model.spec.tokens,
                "features": features.shape[1],
                "logits": logits.shape[1],
                "milliseconds": round(1000 * seconds, 1),
            }
        )
    return rows
