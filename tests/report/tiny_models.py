"""A tiny model, tiny images and a tiny run, which the report's tests look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.data.transforms.preprocess import default_preprocess
from vitrail.models import build, parse
from vitrail.weights.checkpoint import Activation, Checkpoint, Provenance
from vitrail.weights.model_folder import save_folder

EVIL = "<script>alert('x')</script>"
"""A name of a class, and of a file, that must come out as text."""
TINY = "ViT/4@16,depth=2,width=32,heads=2,mlp=64"
BIT = "BiT-R50x1@32,stages=1-1,width=32"
CLASSES = (EVIL, "$two$", "three")


def save_model(
    folder: Path,
    name: str = TINY,
    classes: tuple[str, ...] | None = CLASSES,
    dtype: torch.dtype = torch.float32,
    activation: Activation = "softmax",
) -> str:
    """Save a model with random weights, and say where."""
    torch.manual_seed(0)
    spec = replace(parse(name), classes=len(classes) if classes else 0)
    model = build(spec)
    bundle = Checkpoint(
        spec=spec,
        tensors={k: torch.randn_like(v).mul(0.3).to(dtype) for k, v in model.state_dict().items()},
        classes=classes,
        activation=activation,
        preprocess=default_preprocess(spec.image, spec.channels),
        provenance=Provenance(
            source="made <here>", sha256="", format="vitrail", changes=("a & b",)
        ),
    )
    save_folder(bundle, folder)
    return str(folder)


def save_images(folder: Path, *names: str, size: tuple[int, int] = (24, 16)) -> list[Path]:
    """Save images (height, width) of noise."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    paths = [folder / name for name in names]
    for path in paths:
        pixels = draw.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, format="PNG")
    return paths


def save_set(folder: Path, classes: tuple[str, ...] = ("a", "b", "c"), count: int = 4) -> str:
    """Save a data set of noise, a folder a class."""
    for name in classes:
        save_images(folder / name, *(f"{name}{n}.png" for n in range(count)))
    return str(folder)
