"""Commands that train: from fresh weights, and from pre-trained ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitrail.cli.options import File, Image, Json, optional
from vitrail.machine import keep_freed_memory
from vitrail.result import Result, print_result

MORE = """\
Every other setting is a flag too, such as --balance auto, --augment medium1 or
--optim.momentum 0.95; docs/settings.md lists all. The sections are augment,
preprocess, mim, loss, optim, schedule, tune, fewshot, loader, cache and parts.
--fewshot DATA measures few-shot accuracy while training. Flags overrule the
--config file, which overrules the recipe."""
"""What the help ends with."""


@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """What a person names daily, of both commands."""

    out: Annotated[Path | None, optional("RUN")] = None
    """The run's folder. Default: runs/ and the name of the data, with a number if that is taken.
    Run the same command again to resume."""
    recipe: Annotated[str | None, optional("NAME")] = None
    """Recipe to start from, such as small-data, finetune:pets, pretrain, augreg:medium1, deit.
    Default: none (finetune: finetune-default)."""
    steps: Annotated[int | None, optional("N")] = None
    """Length in steps. Default: the recipe's."""
    epochs: Annotated[float | None, optional("N")] = None
    """Length in epochs. Default: the recipe's."""
    minutes: Annotated[float | None, optional("N")] = None
    """Length as a time: a few real steps plan epochs, and for finetune image size and --tune."""
    more: Annotated[str | None, optional("TIME")] = None
    """Continue the finished run in --out for so long, such as '5 epochs'; the schedule restarts."""
    test: Annotated[str | None, optional("DATA")] = None
    """Images that the kept model is scored on once, at the end; they choose nothing."""
    group: Annotated[str | None, optional("NAME")] = None
    """Hold out whole groups: a column of a CSV file, or a pattern of the images' names."""
    folds: Annotated[int | None, optional("N")] = None
    """Train so many times, with another part of the training images held out each time."""
    batch: Annotated[int | None, optional("N")] = None
    """Images per step, over all processes. Default: the recipe's."""
    lr: Annotated[float | None, optional("X")] = None
    """Base learning rate. Default: the recipe's."""
    seed: Annotated[int | None, optional("N")] = None
    """Seed of initialization, order and augmentation. Default: 0."""
    image: Image = None
    """Resolution, 384 or 384x512. Default: the model's own, or the recipe's."""
    config: File = None
    """Settings as YAML, TOML or JSON, such as another run's config.yaml."""
    restart: bool = False
    """Start again, and remove what the run has left in RUN."""
    no_report: bool = False
    """Write no report.html into RUN at the end."""
    no_calibration: bool = False
    """Do not calibrate the model on the validation images at the end."""
    dry_run: bool = False
    """Only estimate the run: steps, memory, FLOPs, and time from a few real steps."""
    json: Json = False


Flags = Annotated[CommonFlags, tyro.conf.arg(name="")]
TrainingData = Annotated[
    tyro.conf.Positional[str],
    optional(
        "DATA",
        "A folder, or csv:FILE, cifar10:DIR, imagenet:DIR, hf:NAME, wds:PATTERN, digits, … "
        "Default: the data of --config.",
    ),
]
Model = Annotated[str | None, optional("NAME")]
Settings = tyro.conf.Suppress[Sequence[tuple[str, str]]]
"""Other settings as they were typed, and their texts, gathered by `main`."""


def train(
    flags: Flags,
    data: TrainingData = "",
    *,
    model: Model = None,
    task: Annotated[str | None, optional("NAME")] = None,
    settings: Settings = (),
) -> None:
    """Train a model from fresh weights, on labels or without any.

    Example: vitrail train photos/ --model ViT-S/16 --recipe small-data --out runs/photos

    Args:
        model: The model's name, such as ViT-S/16 or ViT-B/16@384.
        task: What is learned: classification, regression (where DATA has targets), masked-patches,
            mae, or the import path of a task of your own. Each has its own recipe.
    """
    keep_freed_memory()
    words = {**_words(flags, settings), "model": model, "task": task}
    if flags.dry_run:
        from vitrail.run_estimate import estimate

        return _print(estimate(data, **words), flags)
    from vitrail.run import train

    return _print(train(data, **_ends(flags), **words), flags)


def finetune(
    flags: Flags,
    data: TrainingData = "",
    *,
    weights: Annotated[str | None, optional("SOURCE")] = None,
    model: Model = None,
    tune: Annotated[
        Literal["all", "head", "last", "lora"] | None, optional("{all,head,last,lora}")
    ] = None,
    protocol: Annotated[Literal["paper"] | None, optional("{paper}")] = None,
    rates: Annotated[tuple[float, ...], optional("X")] = (),
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 3,
    settings: Settings = (),
) -> None:
    """Train a pre-trained model on other images, with a new head.

    Example: vitrail finetune photos/ --minutes 10

    Args:
        weights: Where to start from: timm:…, hf:…, google:…, file:…, run:…, or a path. Default: the
            weights of --config, or the best free ones for this machine and the time.
        model: The model's name, to check the weights and to change resolution or dropout. Default:
            the weights' own.
        tune: Which weights are trained: all, the head, the last block, or low-rank updates (LoRA).
            Default: all.
        protocol: Choose the learning rate on held-out images, then train on all, several times.
        rates: Learning rates for the protocol to choose from. Default: the paper's.
        seeds: Number of final runs, whose mean and std the protocol reports.
    """
    keep_freed_memory()
    words = {
        **_words(flags, settings),
        "weights": weights,
        "model": model,
        "tune": tune,
        "protocol": protocol,
        "rates": rates,
        "seeds": seeds,
    }
    if flags.dry_run:
        from vitrail.run_estimate import estimate_finetuning

        return _print(estimate_finetuning(data, **words), flags)
    from vitrail.run import finetune

    return _print(finetune(data, **_ends(flags), **words), flags)


def _words(flags: CommonFlags, settings: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the flags as the functions take them; refuse those that there are not."""
    from vitrail.run_settings import check_setting

    for typed, _ in settings:
        check_setting(typed, (field.name for field in fields(CommonFlags)))
    names = ("out", "recipe", "steps", "epochs", "minutes", "more", "group", "folds", "batch")
    names += ("lr", "seed", "image", "test")
    words = {name: getattr(flags, name) for name in names}
    paths = {typed.replace("-", "_"): text for typed, text in settings}
    return {**words, "config_file": flags.config, "settings": paths}


def _ends(flags: CommonFlags) -> dict[str, bool]:
    """Return how the run begins and ends, as the functions take it."""
    return {
        "restart": flags.restart,
        "report": not flags.no_report,
        "calibrate": not flags.no_calibration,
    }


def _print(result: Result, flags: CommonFlags) -> None:
    """Print a result; of several processes, the first one does."""
    if os.environ.get("RANK", "0") == "0":
        print_result(result, json=flags.json)
