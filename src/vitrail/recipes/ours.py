"""Our own recipes, chosen by measurement."""

from __future__ import annotations

from dataclasses import replace

from vitrail.config import Duration
from vitrail.data.transforms.augment import Augment, RandAugment
from vitrail.models import parse
from vitrail.training.losses import LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.train_config import TrainConfig

_OPTIMIZERS = {
    "all": OptimConfig(kind="sgd", lr=0.01),
    "head": OptimConfig(kind="adamw", lr=5e-3),
    "last": OptimConfig(kind="adamw", lr=1e-3),
    "lora": OptimConfig(kind="adamw", lr=2e-3),
}
"""The optimizer of `finetune-default` by tune.mode, measured on Pets (docs/training.md)."""


def finetune_default(config: TrainConfig) -> TrainConfig:
    """Fine-tune on your own images at the resolution of the weights.

    The optimizer depends on what is trained (`config.tune`). Where all weights are, the head begins
    as a linear probe, so that few epochs suffice. Uneven classes are balanced.
    """
    whole = config.tune.mode == "all" and config.task == "classification"
    probed = whole and config.weights is not None and config.tune.head == "replace"
    return replace(
        config,
        length=Duration(3 if probed else 10, "epochs"),
        batch=32 if probed else 64,
        augment=Augment(area=(0.5 if probed else 0.25, 1.0)),
        loss=LossConfig(),
        optim=_OPTIMIZERS[config.tune.mode],
        schedule=ScheduleConfig(warmup=Duration(10, "%")),
        tune=replace(config.tune, head="probe") if probed else config.tune,
        balance="auto" if config.task == "classification" else config.balance,
    )


def small_data(config: TrainConfig, *, short: bool = False) -> TrainConfig:
    """Train on 1,000 to 50,000 images without pre-trained weights (docs/small-data.md).

    `short` is for fewer than about 30 epochs, which do not overfit: it leaves out what slows
    learning down.
    """
    tiny = max(parse(config.model).image) <= 64
    augment = Augment(crop="pad") if tiny else Augment(area=(0.25, 1.0))
    if not short:
        augment = replace(augment, randaugment=RandAugment(magnitude=10), mixup=0.2)
    return replace(
        config,
        length=Duration(20 if short else 100, "epochs"),
        batch=256 if short else 128,
        augment=augment,
        loss=LossConfig(smoothing=0.1),
        # Measured in docs/small-data.md: Muon, also for a stem's filters, against AdamW.
        optim=OptimConfig(
            kind="muon",
            lr=1e-2 if short else 2e-3,
            momentum=0.95,
            nesterov=True,
            weight_decay=0.05,
        ),
        schedule=ScheduleConfig(warmup=Duration(10, "%")),
    )
