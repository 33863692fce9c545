"""Recipes: functions that apply the settings of a paper to a run's settings.

    config = TrainConfig(data="photos/", model="ViT-B/16", out=Path("runs/photos"))
    vitrail.train(recipes.paper_finetune(config, "pets"))

A recipe sets what its paper says and leaves the rest. Options of the model, such as dropout, are
added to the model's name unless the name has them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vitrail.config import Duration, InputError, merge, suggest
from vitrail.data.transforms.augment import AUGMENTS
from vitrail.recipes.ours import finetune_default, small_data
from vitrail.recipes.paper import (
    TRANSFERS,
    Transfer,
    masked_patches,
    paper_finetune,
    paper_protocol,
    pretrain,
    transfer_of,
)
from vitrail.recipes.successors import (
    augreg,
    deit,
    mae,
    mae_finetune,
    plain,
    simmim,
    simmim_finetune,
)
from vitrail.training.train_config import TrainConfig

__all__ = [
    "RECIPES",
    "TRANSFERS",
    "Transfer",
    "apply_recipe",
    "augreg",
    "deit",
    "finetune_default",
    "fit_batch",
    "mae",
    "mae_finetune",
    "masked_patches",
    "paper_finetune",
    "paper_protocol",
    "plain",
    "pretrain",
    "shorten_warmup",
    "simmim",
    "simmim_finetune",
    "small_data",
    "transfer_of",
]

log = logging.getLogger("vitrail")

_STEPS, _SMALL = 4, 16  # steps of an epoch that a cut batch leaves, and what is not cut below

RECIPES: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "finetune-default": finetune_default,
    "small-data": small_data,
    "small-data:short": partial(small_data, short=True),
    "pretrain": pretrain,
    "pretrain:imagenet21k": partial(pretrain, data="imagenet21k"),
    "pretrain:jft": partial(pretrain, data="jft"),
    "finetune": paper_finetune,
    **{f"finetune:{data}": partial(paper_finetune, data=data) for data in TRANSFERS},
    "augreg": augreg,
    **{f"augreg:{level}": partial(augreg, level=level) for level in AUGMENTS},
    "augreg:sigmoid": partial(augreg, loss="sigmoid"),
    "plain": plain,
    **{f"plain:{epochs}": partial(plain, epochs=epochs) for epochs in (90, 150, 300)},
    "deit": deit,
    "masked-patches": masked_patches,
    "mae": mae,
    "simmim": simmim,
    "mae-finetune": mae_finetune,
    "simmim-finetune": simmim_finetune,
}
"""Recipes by the name that --recipe takes."""


def apply_recipe(config: TrainConfig, name: str, *changes: Mapping[str, Any]) -> TrainConfig:
    """Apply the recipe of that name to settings that `changes` (for `merge`) will be applied to.

    The recipe chooses by what they say of `tune` and `weights`.
    """
    if name not in RECIPES:
        hint = suggest(name, RECIPES) or f"; there are: {', '.join(RECIPES)}"
        raise InputError(f"unknown recipe {name!r}{hint}")
    read = ({key: each[key] for key in ("tune", "weights") if key in each} for each in changes)
    return RECIPES[name](merge(config, *read))


def shorten_warmup(config: TrainConfig, *, images: int) -> TrainConfig:
    """Shorten a warm-up of more than a third of the run to 5 % of it, and say so.

    So a recipe of the paper's scale works for a short run too. An epoch has `images` images.
    """
    warmup = config.schedule.warmup
    if warmup.unit == "%":
        return config
    total, rising = (d.steps(images=images, batch=config.batch) for d in (config.length, warmup))
    if 3 * rising <= total:
        return config
    log.warning(
        "a warm-up of %s is too long for a run of %s steps; it is shortened to 5 %%", warmup, total
    )
    return replace(config, schedule=replace(config.schedule, warmup=Duration(5, "%")))


def fit_batch(config: TrainConfig, *, images: int, scale_lr: bool) -> TrainConfig:
    """Cut a recipe's batch that is larger than the training split to a quarter of it; say so.

    The learning rate is scaled with it: linearly for SGD, by the square root for the others.
    """
    if config.batch <= images:
        return config
    most = 2 ** int(math.log2(max(images // _STEPS, min(images, _SMALL))))
    factor = most / config.batch
    factor = factor if config.optim.kind == "sgd" else math.sqrt(factor)
    lr = float(f"{config.optim.lr * factor:.3g}") if scale_lr else config.optim.lr
    scaled = f" and the learning rate from {config.optim.lr:g} to {lr:g}" if scale_lr else ""
    log.warning(
        "the recipe's batch of %s is cut to %s for %s training images%s; --batch %s keeps it",
        *(f"{config.batch:,}", f"{most:,}", f"{images:,}", scaled, config.batch),
    )
    return replace(config, batch=most, optim=replace(config.optim, lr=lr))
