"""Images of noise with labels by a coin, and runs that learn them by heart: only a leak beats it.

No honest accuracy differs from 50 % by more than chance; on images that were trained on it is 100.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.runs import train
from vitrail.config import Duration
from vitrail.data.cache import CacheConfig
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.run_result import Run

TINY = "ViT/4@8,depth=1,width=32,heads=2,mlp=64"
HONEST = 0.8
"""Above this an accuracy shows a leak; below it is within chance on some 40 images."""


def write_noise(folder: Path, each: int, *, start: int = 0, seed: int = 0) -> Path:
    """Write images of noise: as many for each of two classes, numbered from `start`."""
    rng = np.random.default_rng([seed, start])
    for name in ("heads", "tails"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(start, start + each):
            pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def learn_by_heart(data: Path | str, out: Path, *, steps: int = 60, **settings: Any) -> Run:
    """Train until all training images are known."""
    plain = {
        "augment": Augment(crop="whole", flip=0.0),
        "optim": OptimConfig(lr=1e-2, weight_decay=0.0),
        "loader": LoaderConfig(workers=0),
        "cache": CacheConfig(limit=0.1),
        "eval_every": Duration(steps, "steps"),
        **settings.pop("settings", {}),
    }
    words: dict[str, Any] = {"model": TINY, "batch": 100, "steps": steps, "loggers": (), **settings}
    return train(str(data), out=out, settings=plain, **words)
