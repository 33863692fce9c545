"""The paper's own settings: Table 3, Table 4 with its protocol, and Appendix B.1.2."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple

from vitrail.config import Duration, InputError
from vitrail.data.datasets.open import open_data, whole_data
from vitrail.data.split import NoSplitError
from vitrail.data.transforms.augment import Augment
from vitrail.models import parse
from vitrail.models.pretraining.mim import MIMConfig
from vitrail.models.spec import BiTSpec, Size
from vitrail.recipes.adding import WARMUP, add_options, base_of
from vitrail.recipes.protocol import Protocol
from vitrail.training.losses import LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.train_config import TrainConfig

Pretraining = Literal["imagenet", "imagenet21k", "jft"]


class _Row(NamedTuple):
    """A row of Table 3; of two lengths the longer one, as for the published models."""

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
    """Pre-train as the paper does on one of its three datasets (Table 3)."""
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
        model=add_options(
            config.model, dropout=dropout, representation=width
        ),  # section 3.1: tanh layer
        length=Duration(row.epochs, "epochs"),
        batch=4096,  # section 4.1
        augment=Augment(),
        loss=loss,
        optim=OptimConfig(
            kind="adamw", lr=row.lr, betas=(0.9, 0.999), weight_decay=weight_decay, clip=clip
        ),  # section 4.1: Adam with these betas; the decay is decoupled
        schedule=ScheduleConfig(kind=decay, warmup=WARMUP),
    )


def _find_row(table: dict[str, _Row], model: str, data: str) -> _Row:
    base = base_of(model)
    if base not in table:
        there = ", ".join(table)
        raise InputError(f"Table 3 has no row for {base} on {data}; it has {there}")
    return table[base]


class Transfer(NamedTuple):
    """A row of Table 4."""

    steps: int
    rates: tuple[float, ...]
    """Learning rates to choose from on held-out images."""
    rate: float
    """The learning rate that big_vision's transfer.py has for the dataset."""
    held_out: float
    """Fraction of the training split to hold out for that."""
    warmup: int = 500
    """Steps, of transfer.py and the official code."""


_RATES = (0.001, 0.003, 0.01, 0.03)
TRANSFERS = {
    "imagenet": Transfer(20_000, (0.003, 0.01, 0.03, 0.06), 0.03, 0.01),  # Table 4; B.1.1
    "cifar100": Transfer(10_000, _RATES, 0.01, 0.02),  # Table 4; B.1.1
    "cifar10": Transfer(10_000, _RATES, 0.003, 0.02),  # Table 4; B.1.1
    "pets": Transfer(500, _RATES, 0.003, 0.1, 100),  # Table 4; B.1.1
    "flowers": Transfer(500, _RATES, 0.003, 0.1, 100),  # Table 4; B.1.1
    # Table 4: each of the 19 tasks, none held out; nobody says its warm-up, so 5 % as before.
    "vtab": Transfer(2_500, (0.01,), 0.01, 0.1, 125),
}
"""Table 4 by dataset, and what Appendix B.1.1 holds out of each."""
_POLISHED = {"ViT-L/16": 512, "ViT-H/14": 518}  # section 4.1: at which size Table 2 has ImageNet


def paper_finetune(config: TrainConfig, data: str = "vtab") -> TrainConfig:
    """Fine-tune as the paper does on one of its datasets (Table 4)."""
    row = TRANSFERS[data]
    size, ema = _fine_size(config.model), 0.0
    if data == "imagenet" and (side := _POLISHED.get(base_of(config.model))):
        size, ema = (side, side), 0.9999  # section 4.1, of Table 2's ImageNet
    return replace(
        config,
        model=add_options(config.model, image=size),
        ema=ema,
        length=Duration(row.steps, "steps"),
        batch=512,  # section 4.1
        augment=Augment(),
        loss=LossConfig(),
        optim=OptimConfig(kind="sgd", lr=row.rate, momentum=0.9, clip=1.0),  # Table 4
        schedule=ScheduleConfig(kind="cosine", warmup=Duration(row.warmup, "steps")),  # Table 4
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
    """Turn a run into the paper's protocol (section 4.1, Appendix B.1.1).

    `data` is a row of Table 4, by default that of the run's dataset; a dataset without a row gets
    the rates of most rows and holds a tenth out. Results are evaluated on the test split, or on the
    validation split if there is none.
    """
    data = data or transfer_of(config.data)
    row = TRANSFERS[data] if data else Transfer(0, _RATES, 0.0, 0.1)
    if config.val_split == "val":
        with suppress(NoSplitError):
            open_data(whole_data(config.data), split="test")
            config = replace(config, val_split="test")
    return Protocol(config=config, rates=rates or row.rates, held_out=row.held_out, seeds=seeds)


def transfer_of(data: str) -> str | None:
    """Return the row of Table 4 of a dataset, as DATA names it."""
    name = re.split("[:,]", data, maxsplit=1)[0].removesuffix("102")  # flowers102
    return name if name in TRANSFERS else None


def masked_patches(config: TrainConfig) -> TrainConfig:
    """Pre-train without labels as the paper does: predict corrupted patches (Appendix B.1.2)."""
    return replace(
        config,
        task="masked-patches",
        mim=MIMConfig(),  # Appendix B.1.2: half of the patches, their mean colors
        length=Duration(1_000_000, "steps"),  # Appendix B.1.2
        batch=4096,  # Appendix B.1.2
        augment=Augment(),  # vision_transformer, issue 103: as in classification
        optim=OptimConfig(lr=2e-4, betas=(0.9, 0.999), clip=None),  # Appendix B.1.2
        schedule=ScheduleConfig(warmup=WARMUP),  # Appendix B.1.2: cosine
    )
