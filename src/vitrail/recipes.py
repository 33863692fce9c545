"""What papers trained with: functions from a run's settings to those of a recipe.

    config = TrainConfig(data="photos/", model="ViT-B/16", out=Path("runs/photos"))
    vitrail.train(recipes.finetune(config, "pets"))

A recipe sets what its paper says and leaves the rest. What belongs to the model, such as dropout,
it adds to the model's name, where the name does not say it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from vitrail.config import Duration, InputError, suggest
from vitrail.data.augment import AUGMENTS, Augment, RandAugment
from vitrail.data.sources.open import open_data
from vitrail.data.split import NoSplitError
from vitrail.models import parse
from vitrail.models.corruption import MaskConfig
from vitrail.models.masked import PretextConfig
from vitrail.models.spec import BiTSpec, Size
from vitrail.run import TrainConfig
from vitrail.run.protocol import Protocol
from vitrail.train.optim import OptimConfig
from vitrail.train.schedule import ScheduleConfig
from vitrail.train.tasks import LossConfig

log = logging.getLogger("vitrail")

Pretraining = Literal["imagenet", "imagenet21k", "jft"]
_WARMUP = Duration(10_000, "steps")  # Table 3, and the official code of its successors


class _Row(NamedTuple):
    """A row of Table 3: where it has two lengths, the longer one, as the published models."""

    epochs: int
    lr: float


_JFT = {
    "ViT-B/32": _Row(7, 8e-4),  # Table 3
    "ViT-B/16": _Row(7, 8e-4),  # Table 3
    "ViT-L/32": _Row(7, 6e-4),  # Table 3
    "ViT-L/16": _Row(14, 4e-4),  # Table 3: 7 or 14 epochs
    "ViT-H/14": _Row(14, 3e-4),  # Table 3
    "BiT-R50x1": _Row(7, 1e-3),  # Table 3
    "BiT-R50x2": _Row(7, 1e-3),  # Table 3
    "BiT-R101x1": _Row(7, 8e-4),  # Table 3
    "BiT-R152x1": _Row(7, 6e-4),  # Table 3
    "BiT-R152x2": _Row(7, 6e-4),  # Table 3
    "R50+ViT-B/32": _Row(7, 8e-4),  # Table 3
    "R50+ViT-B/16": _Row(7, 8e-4),  # Table 3
    "R50+ViT-L/32": _Row(7, 2e-4),  # Table 3
    "R50+ViT-L/16": _Row(14, 4e-4),  # Table 3: 7 or 14 epochs
}
_IMAGENET21K = {
    "ViT-B/32": _Row(90, 1e-3),  # Table 3
    "ViT-B/16": _Row(90, 1e-3),  # Table 3
    "ViT-L/32": _Row(90, 1e-3),  # Table 3: 30 or 90 epochs
    "ViT-L/16": _Row(90, 1e-3),  # Table 3: 30 or 90 epochs
}


def pretrain(config: TrainConfig, data: Pretraining = "imagenet") -> TrainConfig:
    """Pre-train as the paper does on one of its three sets (Table 3)."""
    decay: Literal["linear", "cosine"] = "linear"
    clip, loss = None, LossConfig(kind="sigmoid")  # vision_transformer, issue 34
    if data == "jft":
        row, weight_decay, dropout = _find_row(_JFT, config.model, data), 0.1, 0.0  # Table 3
    elif data == "imagenet21k":
        row = _find_row(_IMAGENET21K, config.model, data)
        weight_decay, dropout = 0.03, 0.1  # Table 3
    else:
        if isinstance(parse(config.model), BiTSpec):
            raise InputError(f"Table 3 has no row for {config.model} on imagenet, only for ViTs")
        row, weight_decay, dropout = _Row(300, 3e-3), 0.3, 0.1  # Table 3
        decay, clip, loss = "cosine", 1.0, LossConfig()  # Table 3, and section 4.1's text
    width = getattr(parse(config.model), "width", 0)
    return replace(
        config,
        model=_add(config.model, dropout=dropout, representation=width),  # section 3.1: tanh layer
        length=Duration(row.epochs, "epochs"),
        batch=4096,  # section 4.1
        augment=Augment(),
        loss=loss,
        optim=OptimConfig(
            kind="adamw", lr=row.lr, betas=(0.9, 0.999), weight_decay=weight_decay, clip=clip
        ),  # section 4.1: Adam with these betas; the decay is decoupled
        schedule=ScheduleConfig(kind=decay, warmup=_WARMUP),
    )


def _find_row(table: dict[str, _Row], model: str, data: str) -> _Row:
    base = _base(model)
    if base not in table:
        there = ", ".join(table)
        raise InputError(f"Table 3 has no row for {base} on {data}; it has {there}")
    return table[base]


def _base(model: str) -> str:
    """Strip a model's name of resolution and options."""
    return parse(model).name.partition(",")[0].partition("@")[0]


class Transfer(NamedTuple):
    """How a set is fine-tuned on."""

    steps: int
    rates: tuple[float, ...]
    """Learning rates of which the best on held-out pictures is taken."""
    rate: float
    """The one that big_vision's transfer.py names for the set."""
    held_out: float
    """Part of the training split that they are."""


_RATES = (0.001, 0.003, 0.01, 0.03)
TRANSFERS = {
    "imagenet": Transfer(20_000, (0.003, 0.01, 0.03, 0.06), 0.03, 0.01),  # Table 4; B.1.1
    "cifar100": Transfer(10_000, _RATES, 0.01, 0.02),  # Table 4; B.1.1
    "cifar10": Transfer(10_000, _RATES, 0.003, 0.02),  # Table 4; B.1.1
    "pets": Transfer(500, _RATES, 0.003, 0.1),  # Table 4; B.1.1
    "flowers": Transfer(500, _RATES, 0.003, 0.1),  # Table 4; B.1.1
    "vtab": Transfer(2_500, (0.01,), 0.01, 0.1),  # Table 4: each of the 19 tasks, none held out
}
"""Table 4 by data set, and what Appendix B.1.1 holds out of each."""
_POLISHED = {"ViT-L/16": 512, "ViT-H/14": 518}  # section 4.1: at which size Table 2 has ImageNet


def finetune(config: TrainConfig, data: str = "vtab") -> TrainConfig:
    """Fine-tune as the paper does on one of its sets (Table 4)."""
    row = TRANSFERS[data]
    warmup = min(500, row.steps // 20)  # the official code's 500, of 10,000 steps or more
    size, average = _fine_size(config.model), 0.0
    if data == "imagenet" and (side := _POLISHED.get(_base(config.model))):
        size, average = (side, side), 0.9999  # section 4.1, of Table 2's ImageNet
    return replace(
        config,
        model=_add(config.model, image=size),
        average=average,
        length=Duration(row.steps, "steps"),
        batch=512,  # section 4.1
        augment=Augment(),
        loss=LossConfig(),
        optim=OptimConfig(kind="sgd", lr=row.rate, momentum=0.9, clip=1.0),  # Table 4
        schedule=ScheduleConfig(kind="cosine", warmup=Duration(warmup, "steps")),  # Table 4
        evaluate=Duration(10, "%"),
        save=Duration(10, "%"),
    )


def _fine_size(model: str) -> Size:
    """Choose the resolution of fine-tuning."""
    patch = getattr(parse(model), "patch", None)
    side = (
        518 if patch == (14, 14) else 384
    )  # Table 4; for H/14, which 384 does not fit, section 4.1
    return side, side


def paper_protocol(
    config: TrainConfig,
    data: str | None = None,
    *,
    rates: tuple[float, ...] | None = None,
    seeds: int = 3,
) -> Protocol:
    """Make a run into the paper's protocol (section 4.1, Appendix B.1.1).

    `data` is a row of Table 4, by default the one of the run's set; a set that has none gets the
    rates of most rows and a tenth held out. What is reported is measured on the test split where
    there is one, else on the validation split.
    """
    data = data or transfer_of(config.data)
    row = TRANSFERS[data] if data else Transfer(0, _RATES, 0.0, 0.1)
    if config.val == "val":
        with suppress(NoSplitError):
            open_data(config.data, split="test")
            config = replace(config, val="test")
    return Protocol(config=config, rates=rates or row.rates, held_out=row.held_out, seeds=seeds)


def transfer_of(data: str) -> str | None:
    """Say which row of Table 4 a set has, as DATA names it."""
    name = data.partition(":")[0].removesuffix("102")  # flowers102
    return name if name in TRANSFERS else None


_LEVELS = {"ViT-Ti/16": "light1", "ViT-S/32": "light2"}  # big_vision vit_i1k.py, after Figure 4
_LEVELS |= dict.fromkeys(("ViT-S/16", "ViT-B/32", "ViT-B/16", "ViT-L/16"), "medium2")


def augreg(config: TrainConfig, level: str | None = None) -> TrainConfig:
    """Pre-train on ImageNet as "How to train your ViT?" (arXiv 2106.10270), at one of its levels.

    Without a level, at the one that it found good for the model.
    """
    level = level or _LEVELS.get(_base(config.model), "medium1")
    return replace(
        config,
        length=Duration(300, "epochs"),  # section 3.4
        batch=4096,  # section 3.4
        augment=AUGMENTS[level],  # section 3.3
        loss=LossConfig(),
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, clip=1.0),  # section 3.4
        schedule=ScheduleConfig(warmup=_WARMUP),  # section 3.4: cosine
    )


def plain(config: TrainConfig, epochs: int = 90) -> TrainConfig:
    """Train on ImageNet as "Better plain ViT baselines" (arXiv 2205.01580): 90, 150 or 300 epochs.

    Its numbers are those of big_vision's vit_s16_i1k.py.
    """
    width = getattr(parse(config.model), "width", 0)
    model = _add(config.model, pool="gap", position="sincos-2d", representation=width)
    return replace(
        config,
        model=model,
        length=Duration(epochs, "epochs"),
        batch=1024,  # its Table 1: 4096 is worse
        augment=Augment(randaugment=RandAugment(layers=2, magnitude=10), mixup=0.2),
        loss=LossConfig(),
        # big_vision multiplies its decay of 1e-4 by the schedule alone, AdamW by the rate too.
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, clip=1.0),
        schedule=ScheduleConfig(warmup=_WARMUP),
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
        model=_add(config.model, stochastic_depth=0.1),  # Table 9
        length=Duration(300, "epochs"),  # Table 9
        batch=1024,  # Table 9
        repeats=3,  # Table 9: repeated augmentation; its code: 3
        augment=augment,
        loss=LossConfig(smoothing=0.1),  # Table 9
        optim=OptimConfig(lr=5e-4 * 1024 / 512, weight_decay=0.05, clip=None),  # Table 9
        schedule=ScheduleConfig(warmup=Duration(5, "epochs"), final=0.01),  # Table 9; 1e-5 at last
    )


def finetune_default(config: TrainConfig) -> TrainConfig:
    """Fine-tune on a person's own pictures, at the resolution that the weights have."""
    return replace(
        config,
        length=Duration(10, "epochs"),
        batch=64,
        augment=Augment(area=(0.25, 1.0)),
        loss=LossConfig(),
        optim=OptimConfig(kind="sgd", lr=0.01, momentum=0.9, clip=1.0),
        schedule=ScheduleConfig(warmup=Duration(10, "%")),
        evaluate=Duration(10, "%"),
        save=Duration(10, "%"),
    )


def small_data(config: TrainConfig, *, short: bool = False) -> TrainConfig:
    """Train on 1,000 to 50,000 pictures without pre-trained weights (docs/small-data.md).

    `short` is for less than some 30 epochs, in which nothing is over-learnt: it leaves out what
    makes learning slower.
    """
    tiny = max(parse(config.model).image) <= 64
    augment = Augment(crop="pad") if tiny else Augment(area=(0.25, 1.0))
    if not short:
        augment = replace(augment, randaugment=RandAugment(magnitude=10), mixup=0.2)
    return replace(
        config,
        length=Duration(20 if short else 100, "epochs"),
        batch=128,
        augment=augment,
        loss=LossConfig(smoothing=0.1),
        # After one epoch of CIFAR-10 a ViT of 0.8 M parameters had 49.5 % with Muon, 38.9 % with
        # AdamW at 1e-3. After 1.5 core-minutes a hybrid had 34.9 % so, 35.0 % with a batch of 256
        # at 3e-3 (one run each).
        optim=OptimConfig(kind="muon", lr=2e-3, momentum=0.95, nesterov=True, weight_decay=0.05),
        schedule=ScheduleConfig(warmup=Duration(10, "%")),
        evaluate=Duration(5, "%"),
        save=Duration(5, "%"),
    )


def masked_patches(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as the paper does: predict corrupted patches (Appendix B.1.2)."""
    return replace(
        config,
        task="masked-patches",
        pretext=PretextConfig(),  # Appendix B.1.2: half of the patches, their mean colours
        length=Duration(1_000_000, "steps"),  # Appendix B.1.2
        batch=4096,  # Appendix B.1.2
        augment=Augment(),  # vision_transformer, issue 103: as in classification
        optim=OptimConfig(lr=2e-4, betas=(0.9, 0.999), clip=None),  # Appendix B.1.2
        schedule=ScheduleConfig(warmup=_WARMUP),  # Appendix B.1.2: cosine
        evaluate=Duration(5, "%"),
        save=Duration(1, "%"),
    )


def mae(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as MAE (arXiv 2111.06377, Table 8 and section 4)."""
    mask = MaskConfig(ratio=0.75)  # section 4.1
    return replace(
        config,
        task="mae",
        pretext=PretextConfig(mask=mask, target="normalised-pixels"),  # Table 1d
        length=Duration(800, "epochs"),  # section 4.1
        batch=4096,  # Table 8
        augment=Augment(crop="area", area=(0.2, 1.0), ratio=(3 / 4, 4 / 3)),  # Table 8, its code
        optim=OptimConfig(
            lr=1.5e-4 * 4096 / 256, betas=(0.9, 0.95), weight_decay=0.05, clip=None
        ),  # Table 8
        schedule=ScheduleConfig(warmup=Duration(40, "epochs")),  # Table 8: cosine
        evaluate=Duration(5, "%"),
        save=Duration(1, "%"),
    )


def simmim(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as SimMIM does a ViT (arXiv 2111.09886, section 4.1)."""
    patch = getattr(parse(config.model), "stride", (16, 16))[0]
    mask = MaskConfig(ratio=0.6, masked=1.0, replaced=0.0, unit=max(1, 32 // patch))  # Table 1
    return replace(
        config,
        task="masked-patches",
        pretext=PretextConfig(mask=mask, target="pixels", distance="absolute"),  # section 3.4
        length=Duration(800, "epochs"),  # section 4.1
        batch=2048,  # section 4.1
        augment=Augment(crop="area", area=(0.67, 1.0), ratio=(3 / 4, 4 / 3)),  # section 4.1
        optim=OptimConfig(
            lr=1e-4 * 2048 / 512, betas=(0.9, 0.999), weight_decay=0.05, clip=5.0
        ),  # its code
        schedule=ScheduleConfig(warmup=Duration(10, "epochs")),  # section 4.1
        evaluate=Duration(5, "%"),
        save=Duration(1, "%"),
    )


RECIPES: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "finetune-default": finetune_default,
    "small-data": small_data,
    "small-data:short": partial(small_data, short=True),
    "pretrain": pretrain,
    "pretrain:imagenet21k": partial(pretrain, data="imagenet21k"),
    "pretrain:jft": partial(pretrain, data="jft"),
    "finetune": finetune,
    **{f"finetune:{data}": partial(finetune, data=data) for data in TRANSFERS},
    "augreg": augreg,
    **{f"augreg:{level}": partial(augreg, level=level) for level in AUGMENTS},
    "plain": plain,
    **{f"plain:{epochs}": partial(plain, epochs=epochs) for epochs in (90, 150, 300)},
    "deit": deit,
    "masked-patches": masked_patches,
    "mae": mae,
    "simmim": simmim,
}
"""Recipes by the name that --recipe takes."""


def apply_recipe(config: TrainConfig, name: str) -> TrainConfig:
    """Apply the recipe of that name."""
    if name not in RECIPES:
        hint = suggest(name, RECIPES) or f"; there are: {', '.join(RECIPES)}"
        raise InputError(f"unknown recipe {name!r}{hint}")
    return RECIPES[name](config)


def shorten_warmup(config: TrainConfig, *, images: int) -> TrainConfig:
    """Make a warm-up that would take more than a third of the run 5 % of it, and say so.

    So a recipe of the paper's scale serves a short run too. An epoch has `images` pictures.
    """
    warmup = config.schedule.warmup
    if warmup.unit == "%":
        return config
    total, rising = (d.steps(images=images, batch=config.batch) for d in (config.length, warmup))
    if 3 * rising <= total:
        return config
    log.warning("a warm-up of %s is too long for a run of %s: it is 5 %% here", warmup, total)
    return replace(config, schedule=replace(config.schedule, warmup=Duration(5, "%")))


def _add(model: str, **options: Any) -> str:
    """Add options to a model's name, but what the name says itself, or its family has not."""
    spec = parse(model)
    said = {option.partition("=")[0] for option in model.split(",")[1:]}
    said |= {"image"} if "@" in model else set()
    free = {field.name for field in fields(spec)} - said
    return str(replace(spec, **{key: value for key, value in options.items() if key in free}))
