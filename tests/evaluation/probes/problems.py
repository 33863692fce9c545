"""Small classification problems with features, made or real."""

from pathlib import Path

import numpy as np
import torch

from tests.data.sets import encode
from tests.golden import reader
from vitrail.evaluation.features.image_features import Features


def problem(
    seed: int, *, shots: int, classes: int, width: int, test: int = 40, noise: float = 1.0
) -> tuple[Features, Features]:
    """Draw features around a center for each class: one constant, the others of any scale."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(classes, width))
    scales = 10.0 ** generator.integers(-2, 3, size=width)
    names = tuple(f"c{number}" for number in range(classes))

    def draw(labels: np.ndarray, name: str) -> Features:
        values = centers[labels] + noise * generator.normal(size=(len(labels), width))
        values = (values * scales + generator.normal(size=width)).astype(np.float32)
        values[:, 0] = 1.5
        numbers = np.array([f"{name}{place}" for place in range(len(labels))])
        return Features(name=name, classes=names, values=values, labels=labels, names=numbers)

    train = draw(np.repeat(np.arange(classes), shots), "train")
    return train, draw(generator.integers(classes, size=test), "test")


def tensors(features: Features) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(features.values), torch.from_numpy(features.labels)


def pets(split: str) -> Features:
    """Read the real ViT-Ti/16's features of images of pets, and what they are of."""
    golden = reader.arrays("features/pets-features")
    parts = [golden[f"{split}_{name}"] for name in ("values", "labels", "names")]
    classes = tuple(golden["classes"].tolist())
    values, labels, names = parts
    return Features(name=split, classes=classes, values=values, labels=labels, names=names)


COLORS = {"blue": 2, "green": 1, "red": 0}


def write_colors(root: Path, classes: dict[str, int] = COLORS, count: int = 10) -> Path:
    """Write noisy images of one color per class, for a random model to tell apart."""
    rng = np.random.default_rng(0)
    for name, channel in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 120, (12, 12, 3), np.uint8)
            pixels[..., channel] += 80
            (root / name / f"{number}.png").write_bytes(encode(pixels))
    return root
