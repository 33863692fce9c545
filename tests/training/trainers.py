"""Tiny trainers and batches."""

from functools import partial
from typing import Any

import torch

from tests.training.tasks_of import classification
from vitrail.data.batches import TrainBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.builtin.digits import open_digits
from vitrail.data.transforms.augment import Augment, RandAugment
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import Processes
from vitrail.models import build
from vitrail.signals import Signals
from vitrail.training.loop import (
    Trainer,
)
from vitrail.training.optimization.ema import EMA
from vitrail.training.optimization.optim import OptimConfig, make_optimizer
from vitrail.training.optimization.schedule import LRSchedule, rate_at

CPU = torch.device("cpu")
PLAIN = "ViT/4@8,depth=2,width=32,heads=2,mlp=64,channels=1"
NOISY = f"{PLAIN},dropout=0.1,attention_dropout=0.1,stochastic_depth=0.2"
GRAY = Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,), interpolation="bilinear", fit="stretch")
STRONG = Augment(randaugment=RandAugment(), mixup=0.3, cutmix=0.5)
STEPS, BATCH = 6, 12
QUIET = Signals()
ADAM = OptimConfig(eps=1e-5)
"""The bias of keys has no gradient; an epsilon above rounding keeps Adam from making one of it."""


def make(name: str, optim: OptimConfig = ADAM, **options: Any) -> Trainer:
    """Make a trainer of fresh weights, the same each time, none of them zero."""
    torch.manual_seed(3)
    model = build(name, classes=10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.checkpointing = options.pop("checkpointing", False)
    ema = EMA(model, 0.9) if options.pop("ema", False) else None
    given = {"micro_batch": BATCH, "clip": optim.clip, "lr": optim.lr, "batch": BATCH, "seed": 7}
    return Trainer(
        model,
        classification(10, GRAY),
        make_optimizer(model, optim),
        partial(rate_at, plan=LRSchedule(kind="cosine", total=STEPS, warmup=2)),
        forward=model,
        processes=Processes(0, 1, CPU),
        ema=ema,
        **{**given, **options},
    )


def make_batches(augment: Augment, source: ImageDataset | None = None) -> TrainBatches:
    return TrainBatches(
        source or open_digits("train"), augment, GRAY, batch=BATCH, seed=7, mixed=False
    )
