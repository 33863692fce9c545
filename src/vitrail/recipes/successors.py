"""Recipes of the paper's successors: AugReg, "better plain ViT", DeiT, MAE, SimMIM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from vitrail.config import Duration, InputError
from vitrail.data.transforms.augment import AUGMENTS, Augment, RandAugment
from vitrail.data.transforms.preprocess import IMAGENET_MEAN, IMAGENET_STD, Fit, Interpolation
from vitrail.models import parse
from vitrail.models.pretraining.mim import MaskConfig, MIMConfig
from vitrail.recipes.adding import WARMUP, add_options, base_of
from vitrail.training.losses import LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.train_config import PreprocessConfig, TrainConfig

_LEVELS = {"ViT-Ti/16": "light1", "ViT-S/32": "light2"}  # big_vision vit_i1k.py, after Figure 4
_LEVELS |= dict.fromkeys(("ViT-S/16", "ViT-B/32", "ViT-B/16", "ViT-L/16"), "medium2")
_CROPPED = 224 / 256
"""Part of the resized side that evaluation keeps: DeiT's, MAE's and big_vision's 256 for 224."""


def _evaluate(
    config: TrainConfig, fit: Fit, interpolation: Interpolation | None, *, imagenet: bool
) -> PreprocessConfig:
    """Configure evaluation as the source does, unless pre-trained weights say how."""
    if config.weights is not None:
        return config.preprocess
    rgb = imagenet and parse(config.model).channels == 3
    return replace(
        config.preprocess,
        fit=fit,
        crop=_CROPPED,
        interpolation=interpolation,
        mean=IMAGENET_MEAN if rgb else None,
        std=IMAGENET_STD if rgb else None,
    )


def _build(config: TrainConfig, **options: Any) -> str:
    """Add options to the model's name; pre-trained weights have what they are built of."""
    return config.model if config.weights is not None else add_options(config.model, **options)


def augreg(
    config: TrainConfig, level: str | None = None, loss: Literal["softmax", "sigmoid"] = "softmax"
) -> TrainConfig:
    """Pre-train on ImageNet as "How to train your ViT?" (arXiv 2106.10270), at one of its levels.

    As big_vision's vit_i1k.py: with softmax until December 2022, since then with `sigmoid`, of
    which the head begins at 1 in 1,000. Default: the level that it found good for the model.
    """
    levels = _LEVELS if loss == "softmax" else {**_LEVELS, "ViT-S/32": "medium1"}
    level = level or levels.get(base_of(config.model), "medium1")
    width = getattr(parse(config.model), "width", 0)
    sigmoid = LossConfig(kind="sigmoid", head_bias=-6.9)  # vit_i1k.py of 2024
    return replace(
        config,
        model=_build(config, representation=width),  # vit_i1k.py: rep_size
        length=Duration(300, "epochs"),  # section 3.4
        batch=4096,  # section 3.4
        augment=AUGMENTS[level],  # section 3.3
        preprocess=_evaluate(config, "small", None, imagenet=False),  # vit_i1k.py: pp
        loss=LossConfig() if loss == "softmax" else sigmoid,
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, clip=1.0),  # section 3.4
        schedule=ScheduleConfig(warmup=WARMUP),  # section 3.4: cosine
    )


def plain(config: TrainConfig, epochs: int = 90) -> TrainConfig:
    """Train on ImageNet as "Better plain ViT baselines" (arXiv 2205.01580): 90, 150 or 300 epochs.

    Its numbers are those of big_vision's vit_s16_i1k.py.
    """
    width = getattr(parse(config.model), "width", 0)
    model = _build(config, pool="gap", position="sincos-2d", representation=width)
    return replace(
        config,
        model=model,
        length=Duration(epochs, "epochs"),
        batch=1024,  # its Table 1: 4096 is worse
        augment=Augment(randaugment=RandAugment(layers=2, magnitude=10), mixup=0.2),
        preprocess=_evaluate(config, "small", None, imagenet=False),
        loss=LossConfig(),
        # big_vision multiplies its decay of 1e-4 by the schedule alone, AdamW by the rate too.
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, clip=1.0),
        schedule=ScheduleConfig(warmup=WARMUP),
    )


def _deit_augment() -> Augment:
    """Augment as timm does with DeiT's settings, `rand-m9-mstd0.5-inc1` among them."""
    return Augment(
        crop="area",
        area=(0.08, 1.0),  # its code: torchvision's crop
        ratio=(3 / 4, 4 / 3),
        randaugment=RandAugment(
            magnitude=9, operations="timm", probability=0.5, magnitude_std=0.5
        ),  # Table 9: 9/0.5
        erase=0.25,  # Table 9
        mixup=0.8,  # Table 9
        cutmix=1.0,  # Table 9
    )


def deit(config: TrainConfig) -> TrainConfig:
    """Train on ImageNet as DeiT (arXiv 2012.12877, Table 9)."""
    lr = 5e-4 * 1024 / 512  # Table 9
    return replace(
        config,
        model=add_options(_build(config, activation="gelu"), stochastic_depth=0.1),  # Table 9
        length=Duration(300, "epochs"),  # Table 9
        batch=1024,  # Table 9
        repeats=3,  # Table 9: repeated augmentation; its code: 3
        augment=_deit_augment(),
        preprocess=_evaluate(config, "crop", "bicubic", imagenet=True),
        loss=LossConfig(smoothing=0.1),  # Table 9
        optim=OptimConfig(lr=lr, weight_decay=0.05, clip=None),  # Table 9
        # Table 9; its code's --warmup-lr and --min-lr, and timm's cosine, which the warm-up hides
        schedule=ScheduleConfig(
            warmup=Duration(5, "epochs"), start=1e-6 / lr, decay_from="start", final=1e-5 / lr
        ),
    )


def mae(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as MAE (arXiv 2111.06377, Table 8 and section 4)."""
    mask = MaskConfig(ratio=0.75, rounding="up")  # section 4.1, its code
    return replace(
        config,
        model=_build(config, position="sincos-2d-mae", activation="gelu"),  # appendix A.1, its code
        task="mae",
        mim=MIMConfig(mask=mask, target="normalized-pixels", pixels="input"),  # Table 1d, its code
        length=Duration(800, "epochs"),  # section 4.1
        batch=4096,  # Table 8
        augment=Augment(crop="area", area=(0.2, 1.0), ratio=(3 / 4, 4 / 3)),  # Table 8, its code
        preprocess=_evaluate(config, "crop", "bicubic", imagenet=True),
        optim=OptimConfig(
            lr=1.5e-4 * 4096 / 256, betas=(0.9, 0.95), weight_decay=0.05, clip=None
        ),  # Table 8
        schedule=ScheduleConfig(warmup=Duration(40, "epochs")),  # Table 8: cosine
    )


def simmim(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as SimMIM does a ViT (arXiv 2111.09886, section 4.1)."""
    patch = getattr(parse(config.model), "stride", (16, 16))[0]
    mask = MaskConfig(
        ratio=0.6, masked=1.0, replaced=0.0, unit=max(1, 32 // patch), rounding="up"
    )  # Table 1, its code
    options: dict[str, Any] = {"layer_scale": 0.1, "activation": "gelu"}
    if ",position" not in config.model:
        options |= {"position": "relative-2d", "position_at": "shared", "key_bias": False}
    return replace(
        config,
        model=add_options(_build(config, **options), stochastic_depth=0.1),  # its code, for ViT-B
        task="masked-patches",
        mim=MIMConfig(
            mask=mask, target="pixels", distance="absolute", pixels="input"
        ),  # section 3.4, its code
        length=Duration(800, "epochs"),  # section 4.1
        batch=2048,  # section 4.1
        augment=Augment(crop="area", area=(0.67, 1.0), ratio=(3 / 4, 4 / 3)),  # section 4.1
        preprocess=_evaluate(config, "crop", "bilinear", imagenet=True),
        optim=OptimConfig(
            lr=1e-4 * 2048 / 512, betas=(0.9, 0.999), weight_decay=0.05, clip=5.0
        ),  # its code
        schedule=ScheduleConfig(
            kind="multistep",  # its code, for ViT-B: epoch 700 of 800
            milestones=(Duration(87.5, "%"),),
            warmup=Duration(10, "epochs"),  # section 4.1
            start=5e-7 / 1e-4,  # its code
        ),
    )


_MAE_FINETUNED = {"ViT-B": (100, 5e-4, 0.65, 0.1), "ViT-L": (50, 1e-3, 0.75, 0.2)}
_MAE_FINETUNED |= {"ViT-H": (50, 1e-3, 0.75, 0.3)}
"""MAE's FINETUNE.md: epochs, rate for 256 images, layer decay, stochastic depth."""


def mae_finetune(config: TrainConfig) -> TrainConfig:
    """Fine-tune what MAE pre-trained, as its FINETUNE.md says."""
    size = base_of(config.model).partition("/")[0]
    if size not in _MAE_FINETUNED:
        there = ", ".join(_MAE_FINETUNED)
        raise InputError(f"MAE's FINETUNE.md has no row for {config.model}; it has {there}")
    epochs, rate, layer_decay, depth = _MAE_FINETUNED[size]
    return _finetune(config, epochs, 5, rate * 1024 / 256, layer_decay, depth, batch=1024)


def simmim_finetune(config: TrainConfig) -> TrainConfig:
    """Fine-tune what SimMIM pre-trained, as its configuration for ViT-B says."""
    config = _finetune(config, 100, 20, 1.25e-3 * 2048 / 512, 0.65, 0.1, batch=2048)
    first = 2.5e-7 / 1.25e-3
    schedule = replace(config.schedule, start=first, decay_from="start", final=first)
    return replace(config, optim=replace(config.optim, clip=5.0), schedule=schedule)


def _finetune(
    config: TrainConfig,
    epochs: int,
    warmup: int,
    lr: float,
    layer_decay: float,
    depth: float,
    *,
    batch: int,
) -> TrainConfig:
    """Fine-tune with DeiT's augmentation and a rate that falls from layer to layer."""
    return replace(
        config,
        model=add_options(config.model, stochastic_depth=depth),
        length=Duration(epochs, "epochs"),
        batch=batch,
        augment=_deit_augment(),
        preprocess=_evaluate(config, "crop", "bicubic", imagenet=True),
        loss=LossConfig(smoothing=0.1),
        optim=OptimConfig(lr=lr, weight_decay=0.05, layer_decay=layer_decay, clip=None),
        schedule=ScheduleConfig(warmup=Duration(warmup, "epochs"), final=1e-6 / lr),
    )
