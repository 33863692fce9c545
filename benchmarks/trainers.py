"""Who trains in training.py: our loop and loader, the peers' models with theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from data import AREA, MEAN, RATIO, STD, TORCHVISIONS
from peers import AGAIN, OURS, build_contestant
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.config import Duration
from vitrail.data.batches import TrainBatches
from vitrail.data.cache import CacheConfig
from vitrail.data.dataset import ImageDataset
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.distributed import process_group
from vitrail.models import parse
from vitrail.models.spec import ViTSpec
from vitrail.run import TrainConfig
from vitrail.signals import Signals
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training_run import TrainingRun

Turn = Callable[[], None]
"""Take a turn's steps, and leave nothing behind that runs on."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and on how many images a step."""

    model: str
    batch: int
    steps: int
    """Of a turn."""
    size: tuple[int, int]
    """Height and width of the images that are painted."""
    cached: bool
    """Whether images are held decoded, as small sets are."""

    @property
    def spec(self) -> ViTSpec:
        """The model's record."""
        spec = parse(self.model)
        assert isinstance(spec, ViTSpec)
        return spec


CLASSES = 8
CASES = {
    "jpeg": Case(
        model=f"ViT-Ti/16,activation=gelu,classes={CLASSES}",
        batch=32,
        steps=2,
        size=(375, 500),
        cached=False,
    ),
    "small": Case(
        model=f"ViT/4@32,depth=6,width=192,heads=3,mlp=768,activation=gelu,classes={CLASSES}",
        batch=64,
        steps=4,
        size=(32, 32),
        cached=True,
    ),
}


def our_config(case: Case, folder: Path, out: Path, steps: int) -> TrainConfig:
    """Set a run up that does what the peers do, and no more."""
    return TrainConfig(
        data=f"folder:{folder}",
        model=case.model,
        out=out,
        val_split="",
        length=Duration(steps, "steps"),
        batch=case.batch,
        micro_batch=case.batch,
        augment=TORCHVISIONS,
        optim=OptimConfig(kind="adamw", lr=1e-4, clip=None),
        loader=LoaderConfig(workers=torch.get_num_threads()),
        cache=CacheConfig(limit=float(case.cached)),
        precision="float32",
        loggers=(),
    )


def prepare_ours(case: Case, folder: Path) -> Turn:
    """Build our loop: the trainer and the loader of a run."""
    config = our_config(case, folder, folder / "run", 10**6)
    with process_group(None) as processes:
        session = TrainingRun(config, processes)
    source = session.train_set
    assert isinstance(source, ImageDataset)
    batches = TrainBatches(
        source, config.augment, session.task.preprocess, batch=case.batch, seed=0, mixed=False
    )
    steps, signals = count(), Signals()

    def turn() -> None:
        numbers = list(islice(steps, case.steps))
        for step, batch in zip(
            numbers, Loader(batches.__getitem__, numbers, config.loader), strict=True
        ):
            session.trainer.step(step, batch, signals)

    return turn


class _Images(Dataset[tuple[Any, int]]):
    """A folder of classes as the peers' users write it; small images are held as pixels."""

    def __init__(self, folder: Path, *, cached: bool) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.cached = [np.asarray(_open(file)) for file in self.files] if cached else None
        self.transform: Callable[[Any], Any] = lambda image: image

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        held = self.cached
        image = _open(self.files[index]) if held is None else Image.fromarray(held[index])
        return self.transform(image), self.classes.index(self.files[index].parent.name)


def _open(file: Path) -> Image.Image:
    return Image.open(file).convert("RGB")


def prepare_peer(contestant: str, case: Case, folder: Path) -> Turn:
    """Build a peer's model and its way to load: timm's own loader, torch's for the others."""
    model = build_contestant(contestant, case.spec).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    images = _Images(folder, cached=case.cached)
    load = _timm_loader if contestant == "timm" else _plain_loader
    loader = load(images, case)

    def turn() -> None:
        for inputs, labels in loader:
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return turn


def _timm_loader(images: _Images, case: Case) -> Iterable[tuple[Tensor, Tensor]]:
    from timm.data.loader import create_loader

    options: dict[str, Any] = {"scale": AREA, "ratio": RATIO, "interpolation": "bilinear"}
    options |= {"color_jitter": None, "mean": MEAN, "std": STD, "persistent_workers": True}
    return create_loader(
        images,  # pyright: ignore[reportArgumentType]
        case.spec.image[0],
        case.batch,
        is_training=True,
        num_workers=torch.get_num_threads(),
        pin_memory=False,
        device=torch.device("cpu"),
        **options,
    )


def _plain_loader(images: _Images, case: Case) -> Iterable[tuple[Tensor, Tensor]]:
    from torchvision.transforms import (
        Compose,
        InterpolationMode,
        Normalize,
        RandomHorizontalFlip,
        RandomResizedCrop,
        ToTensor,
    )

    crop = RandomResizedCrop(case.spec.image, AREA, RATIO, InterpolationMode.BILINEAR)
    images.transform = Compose([crop, RandomHorizontalFlip(), ToTensor(), Normalize(MEAN, STD)])
    return DataLoader(
        images,
        case.batch,
        shuffle=True,
        num_workers=torch.get_num_threads(),
        persistent_workers=True,
        drop_last=True,
    )


CONTESTANTS: dict[str, Callable[[Case, Path], Turn]] = {
    OURS: prepare_ours,
    AGAIN: prepare_ours,
    **{peer: partial(prepare_peer, peer) for peer in ("timm", "transformers", "torchvision")},
}
