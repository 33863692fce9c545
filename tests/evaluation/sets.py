"""A tiny model and a few images on disk, for tests of whole evaluations."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import build
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.model_folder import save_folder

CLASSES = ("a", "b", "c")
TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"
PLAIN = Preprocess(
    size=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear", fit="stretch"
)


def save_tiny(
    folder: Path, classes: Sequence[str] | None = CLASSES, *, outputs: int = 3, seed: int = 0
) -> Path:
    """Save a model with random weights, its head too."""
    torch.manual_seed(seed)
    model = build(TINY, classes=outputs)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_()
    bundle = Checkpoint(
        spec=model.spec,
        tensors=dict(model.state_dict()),
        classes=None if classes is None else tuple(classes),
        preprocess=PLAIN,
    )
    save_folder(bundle, folder)
    return folder


def write_images(root: Path, classes: Sequence[str] = CLASSES, *, broken: bool = True) -> Path:
    """Write a few random images for each class, 13 of three, and one file that is no image."""
    generator = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(4 + number % 2):
            pixels = generator.integers(0, 256, (9, 11, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    if broken:
        (root / classes[1] / "broken.png").write_bytes(b"no image")
    return root
