"""What papers trained with: functions from a run's settings to those of a recipe.

    config = TrainConfig(data="photos/", model="ViT-B/16", out=Path("runs/photos"))
    vitrail.train(recipes.finetune(config, "pets"))

A recipe sets what its paper says and leaves the rest. What belongs to the model, such as dropout,
it adds to the model's name, where the name does not say it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from vitrail.config import Duration, InputError, suggest
from vitrail.data.transforms.augment import AUGMENTS
from vitrail.recipes.ours import finetune_default, small_data
from vitrail.recipes.paper import (
    TRANSFERS,
    Transfer,
    finetune,
    masked_patches,
    paper_protocol,
    pretrain,
    transfer_of,
)
from vitrail.recipes.successors import augreg, deit, mae, plain, simmim
from vitrail.run import TrainConfig

__all__ = [
    "RECIPES",
    "TRANSFERS",
    "Transfer",
    "apply_recipe",
    "augreg",
    "deit",
    "finetune",
    "finetune_default",
    "mae",
    "masked_patches",
    "paper_protocol",
    "plain",
    "pretrain",
    "shorten_warmup",
    "simmim",
    "small_data",
    "transfer_of",
]

log = logging.getLogger("vitrail")

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

    So a recipe of the paper's scale serves a short run too. An epoch has `images` images.
    """
    warmup = config.schedule.warmup
    if warmup.unit == "%":
        return config
    total, rising = (d.steps(images=images, batch=config.batch) for d in (config.length, warmup))
    if 3 * rising <= total:
        return config
    log.warning("a warm-up of %s is too long for a run of %s: it is 5 %% here", warmup, total)
    return replace(config, schedule=replace(config.schedule, warmup=Duration(5, "%")))
