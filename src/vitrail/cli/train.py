"""Commands that train: from fresh weights, and from pre-trained ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitrail.cli.data import Data
from vitrail.cli.options import Json
from vitrail.cli.plans import print_outcome, print_plan, print_protocol_plan
from vitrail.config import InputError, merge, override, read_file, suggest
from vitrail.console import print_json, print_line

if TYPE_CHECKING:
    from vitrail.protocol import Protocol
    from vitrail.run import TrainConfig

MORE = """\
Every other setting is a flag too, such as --ema 0.9999, --augment medium1 or
--optim.momentum 0.95; docs/training.md lists all. The sections are augment,
preprocess, mim, loss, optim, schedule, tune, loader and cache. Flags overrule
the --config file, which overrules the recipe."""
"""What the help ends with."""


@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """What a person names daily, of both commands."""

    out: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """The run's folder; the same command again goes on where the last one stopped."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Settings to begin with, such as small-data, finetune:pets, pretrain, augreg:medium1, deit."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """How long, in steps."""
    epochs: Annotated[float | None, tyro.conf.arg(metavar="N")] = None
    """How long, in passes over the images."""
    batch: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Images a step, over all processes."""
    lr: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Base learning rate."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Seed of fresh weights, order and augmentation."""
    image: Annotated[str | None, tyro.conf.arg(metavar="HxW")] = None
    """The images' size for the model, 384 or 384x512; the model's own unless given."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Settings as YAML, TOML or JSON, such as another run's config.yaml."""
    restart: bool = False
    """Begin again, and forget what is in RUN."""
    dry_run: bool = False
    """Only say what the run would be: steps, memory, work, and time by a few real steps."""
    json: Json = False


Flags = Annotated[CommonFlags, tyro.conf.arg(name="")]
Model = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Settings = tyro.conf.Suppress[Sequence[tuple[str, str]]]
"""Other settings by path and text, which `main` gathers."""


def train(
    data: Data,
    flags: Flags,
    *,
    model: Model = None,
    task: Literal["classification", "masked-patches", "mae"] = "classification",
    settings: Settings = (),
) -> None:
    """Train a model from fresh weights, on labels or without any.

    Example: vitrail train photos/ --model ViT-S/16 --recipe small-data --out runs/photos

    Args:
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, wds:PATTERN, digits, shapes, …
        model: The model's name, such as ViT-S/16 or ViT-B/16@384.
        task: What is learnt: labels, or the patches that the model is not shown; its own recipe
            is taken unless another is given.
    """
    recipe = flags.recipe or (None if task == "classification" else task)
    if task != "classification":
        settings = (("task", task), *settings)
    _run(resolve(data, flags, settings, model=model, recipe=recipe), flags)


def finetune(
    data: Data,
    flags: Flags,
    *,
    weights: Annotated[str, tyro.conf.arg(metavar="SOURCE")],
    model: Model = None,
    tune: Literal["all", "head", "last", "lora"] | None = None,
    protocol: Literal["paper"] | None = None,
    rates: Annotated[tuple[float, ...], tyro.conf.arg(metavar="X")] = (),
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 3,
    settings: Settings = (),
) -> None:
    """Train a pre-trained model on other images, with a new head.

    Example: vitrail finetune photos/ --weights timm:vit_small_patch16_224.augreg_in21k --out run

    Args:
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, wds:PATTERN, digits, shapes, …
        weights: Where to start from: timm:…, hf:…, google:…, file:…, run:…, or a path.
        model: The model's name, to check the weights and to change resolution or dropout; what
            the weights are unless given.
        tune: What is trained: all, the head, the last block, or low-rank updates.
        protocol: Choose the learning rate on held-out images, then train on all, several times.
        rates: The learning rates that the protocol chooses from, unless those of the paper.
        seeds: The protocol's runs on all images, whose mean and std it reports.
    """
    row = None
    if protocol is not None:
        from vitrail.recipes import transfer_of

        row = transfer_of(flags.recipe.partition(":")[2] if flags.recipe else data)
    recipe = flags.recipe or (f"finetune:{row}" if row else "finetune-default")
    tuned = () if tune is None else (("tune.mode", tune),)
    settings = (*tuned, *settings)
    config = resolve(data, flags, settings, model=model, recipe=recipe, weights=weights)
    if protocol is None:
        if rates:
            raise InputError("--rates are of --protocol paper; without it, give one --lr")
        return _run(config, flags)
    if flags.lr is not None or any(path == "optim.lr" for path, _ in settings):
        raise InputError("the protocol chooses the learning rate: give --rates instead of --lr")
    from vitrail.recipes import paper_protocol

    return _follow(paper_protocol(config, row, rates=rates or None, seeds=seeds), flags)


def resolve(
    data: str,
    flags: CommonFlags,
    settings: Sequence[tuple[str, str]] = (),
    *,
    model: str | None = None,
    recipe: str | None = None,
    weights: str | None = None,
) -> TrainConfig:
    """Gather a run's settings: defaults, then the recipe, then the file, then the command line."""
    from vitrail.recipes import apply_recipe
    from vitrail.run import TrainConfig

    file = read_file(flags.config) if flags.config else {}
    said = _check_file(TrainConfig(data=data, model="", out=flags.out), file, flags.config)
    weights = weights or said.weights
    name = _name_model(model or said.model, weights, flags.image)
    config = TrainConfig(data=data, model=name, out=flags.out, weights=weights)
    if recipe is not None:
        config = apply_recipe(config, recipe)
    planned = config.schedule.warmup
    given = {"data": data, "model": config.model, "out": str(flags.out), "weights": weights}
    config = merge(merge(config, {**file, **given}), _daily_settings(flags))
    config = _set_all(config, settings)
    return _fit_warmup(config) if config.schedule.warmup == planned else config


def _check_file(config: TrainConfig, file: dict[str, Any], path: Path | None) -> TrainConfig:
    """Read a file's settings; what is wrong in it is told with its name."""
    try:
        return merge(config, file)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _name_model(model: str, weights: str | None, image: str | None) -> str:
    """Say which model is trained, and at which resolution."""
    from vitrail.models.names import at_size, parse_size

    if not model and weights is None:
        raise InputError("no model; give --model, such as ViT-S/16, or a --config that names one")
    if not model:
        from vitrail.weights.load import read_checkpoint

        model = read_checkpoint(weights or "", hashed=False).spec.name
    return at_size(model, parse_size(image)) if image else model


def _daily_settings(flags: CommonFlags) -> dict[str, Any]:
    if flags.steps is not None and flags.epochs is not None:
        raise InputError("give --steps or --epochs, not both")
    found: dict[str, Any] = {
        "batch": flags.batch,
        "seed": flags.seed,
        "length": None if flags.steps is None else f"{flags.steps} steps",
        "optim": None if flags.lr is None else {"lr": flags.lr},
    }
    if flags.epochs is not None:
        found["length"] = f"{flags.epochs} epochs"
    return {key: value for key, value in found.items() if value is not None}


def _set_all(config: TrainConfig, settings: Sequence[tuple[str, str]]) -> TrainConfig:
    """Change settings one by one; what does not go with another's old value comes after it."""
    while settings:
        refused: list[tuple[str, str]] = []
        errors: list[InputError] = []
        for path, text in settings:
            try:
                config = _set(config, path, text)
            except InputError as error:
                refused.append((path, text))
                errors.append(error)
        if len(refused) == len(settings):
            raise errors[0]
        settings = refused
    return config


def _set(config: TrainConfig, path: str, text: str) -> TrainConfig:
    """Change one setting, as --path text says."""
    from vitrail.data.transforms.augment import parse_augment

    known = {field.name for field in (*fields(config), *fields(CommonFlags))}
    if path.partition(".")[0] not in known:
        hint = suggest(f"--{path}", (f"--{name.replace('_', '-')}" for name in known))
        raise InputError(f"unknown option --{path}{hint} (see --help)")
    if path == "augment":
        return replace(config, augment=parse_augment(text))
    return override(config, path, text)


def _fit_warmup(config: TrainConfig) -> TrainConfig:
    """Shorten a recipe's warm-up where the run is far shorter than the recipe's."""
    from vitrail.data.datasets.open import open_data
    from vitrail.recipes import shorten_warmup
    from vitrail.run.session import count_images

    images = 0
    if config.schedule.warmup.unit == "%":
        return config
    if "epochs" in (config.length.unit, config.schedule.warmup.unit):
        images = count_images(open_data(config.data, split="train"))
    return config if images is None else shorten_warmup(config, images=images)


def _run(config: TrainConfig, flags: CommonFlags) -> None:
    """Train, or plan to, and print what came of it."""
    first = os.environ.get("RANK", "0") == "0"  # of several processes, one speaks
    if flags.dry_run:
        from vitrail.estimate import plan

        planned = plan(config)
        if first:
            print_json(asdict(planned)) if flags.json else print_plan(planned)
        return
    from vitrail.report import leave_report
    from vitrail.run import describe
    from vitrail.run import train as run

    done = run(config, restart=flags.restart)
    if not first:
        return
    leave_report(done.folder)
    if flags.json:
        said = asdict(done)
        print_json({"run": str(said.pop("folder")), **said})
    else:
        print_line(f"{done.folder}: {describe(done)}")


def _follow(protocol: Protocol, flags: CommonFlags) -> None:
    """Follow a protocol, or plan to, and print what came of it."""
    first = os.environ.get("RANK", "0") == "0"
    if flags.dry_run:
        from vitrail.estimate import plan_protocol

        planned = plan_protocol(protocol)
        if first:
            print_json(asdict(planned)) if flags.json else print_protocol_plan(planned)
        return
    from vitrail.protocol import follow

    done = follow(protocol, restart=flags.restart, say=lambda text: sys.stderr.write(f"{text}\n"))
    if first:
        print_outcome(done, json=flags.json)
