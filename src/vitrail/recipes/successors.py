"""Recipes of the paper's successors: AugReg, "better plain ViT", DeiT, MAE, SimMIM."""

from __future__ import annotations

from dataclasses import replace

from vitrail.config import Duration
from vitrail.data.transforms.augment import AUGMENTS, Augment, RandAugment
from vitrail.models import parse
from vitrail.models.pretraining.mim import MaskConfig, MIMConfig
from vitrail.recipes.adding import WARMUP, add_options, base_of
from vitrail.training.losses import LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.train_config import TrainConfig

_LEVELS = {"ViT-Ti/16": "light1", "ViT-S/32": "light2"}  # big_vision vit_i1k.py, after Figure 4
_LEVELS |= dict.fromkeys(("ViT-S/16", "ViT-B/32", "ViT-B/16", "ViT-L/16"), "medium2")


def augreg(config: TrainConfig, level: str | None = None) -> TrainConfig:
    """Pre-train on ImageNet as "How to train your ViT?" (arXiv 2106.10270), at one of its levels.

    Default: the level that it found good for the model.
    """
    level = level or _LEVELS.get(base_of(config.model), "medium1")
    return replace(
        config,
        length=Duration(300, "epochs"),  # section 3.4
        batch=4096,  # section 3.4
        augment=AUGMENTS[level],  # section 3.3
        loss=LossConfig(),
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, clip=1.0),  # section 3.4
        schedule=ScheduleConfig(warmup=WARMUP),  # section 3.4: cosine
    )


def plain(config: TrainConfig, epochs: int = 90) -> TrainConfig:
    """Train on ImageNet as "Better plain ViT baselines" (arXiv 2205.01580): 90, 150 or 300 epochs.

    Its numbers are those of big_vision's vit_s16_i1k.py.
    """
    width = getattr(parse(config.model), "width", 0)
    model = add_options(config.model, pool="gap", position="sincos-2d", representation=width)
    return replace(
        config,
        model=model,
        length=Duration(epochs, "epochs"),
        batch=1024,  # its Table 1: 4096 is worse
        augment=Augment(randaugment=RandAugment(layers=2, magnitude=10), mixup=0.2),
        loss=LossConfig(),
        # big_vision multiplies its decay of 1e-4 by the schedule alone, AdamW by the rate too.
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, clip=1.0),
        schedule=ScheduleConfig(warmup=WARMUP),
    )


def deit(config: TrainConfig) -> TrainConfig:
    """Train on ImageNet as DeiT (arXiv 2012.12877, Table 9)."""
    augment = Augment(
        crop="area",
        area=(0.08, 1.0),  # its code: torchvision's crop
        ratio=(3 / 4, 4 / 3),
        randaugment=RandAugment(magnitude=27, operations="torchvision"),  # Table 9: 9 of 10
        erase=0.25,  # Table 9
        mixup=0.8,  # Table 9
        cutmix=1.0,  # Table 9
    )
    return replace(
        config,
        model=add_options(config.model, stochastic_depth=0.1),  # Table 9
        length=Duration(300, "epochs"),  # Table 9
        batch=1024,  # Table 9
        repeats=3,  # Table 9: repeated augmentation; its code: 3
        augment=augment,
        loss=LossConfig(smoothing=0.1),  # Table 9
        optim=OptimConfig(lr=5e-4 * 1024 / 512, weight_decay=0.05, clip=None),  # Table 9
        schedule=ScheduleConfig(warmup=Duration(5, "epochs"), final=0.01),  # Table 9; 1e-5 at last
    )


def mae(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as MAE (arXiv 2111.06377, Table 8 and section 4)."""
    mask = MaskConfig(ratio=0.75)  # section 4.1
    return replace(
        config,
        task="mae",
        mim=MIMConfig(mask=mask, target="normalized-pixels"),  # Table 1d
        length=Duration(800, "epochs"),  # section 4.1
        batch=4096,  # Table 8
        augment=Augment(crop="area", area=(0.2, 1.0), ratio=(3 / 4, 4 / 3)),  # Table 8, its code
        optim=OptimConfig(
            lr=1.5e-4 * 4096 / 256, betas=(0.9, 0.95), weight_decay=0.05, clip=None
        ),  # Table 8
        schedule=ScheduleConfig(warmup=Duration(40, "epochs")),  # Table 8: cosine
    )


def simmim(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as SimMIM does a ViT (arXiv 2111.09886, section 4.1)."""
    patch = getattr(parse(config.model), "stride", (16, 16))[0]
    mask = MaskConfig(ratio=0.6, masked=1.0, replaced=0.0, unit=max(1, 32 // patch))  # Table 1
    return replace(
        config,
        model=add_options(config.model, stochastic_depth=0.1),  # its code, for ViT-B
        task="masked-patches",
        mim=MIMConfig(mask=mask, target="pixels", distance="absolute"),  # section 3.4
        length=Duration(800, "epochs"),  # section 4.1
        batch=2048,  # section 4.1
        augment=Augment(crop="area", area=(0.67, 1.0), ratio=(3 / 4, 4 / 3)),  # section 4.1
        optim=OptimConfig(
            lr=1e-4 * 2048 / 512, betas=(0.9, 0.999), weight_decay=0.05, clip=5.0
        ),  # its code
        schedule=ScheduleConfig(
            kind="multistep",  # its code, for ViT-B: epoch 700 of 800
            milestones=(Duration(87.5, "%"),),
            warmup=Duration(10, "epochs"),  # section 4.1
        ),
    )
