"""How a run starts: its sets, its weights, and what takes steps on them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config import Duration, InputError
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Source
from vitrail.data.sources.open import check_trainable, open_data
from vitrail.models import build, parse
from vitrail.models.model import Model
from vitrail.train.average import Average
from vitrail.train.distributed import Processes
from vitrail.train.loop import Rhythm, Trainer
from vitrail.train.memory import choose_micro
from vitrail.train.optim import make_optimiser
from vitrail.train.precision import autocast_type
from vitrail.train.settings import TrainConfig
from vitrail.train.sharding import shard_model
from vitrail.train.tasks import Classify
from vitrail.weights.checkpoint import Bundle, Provenance
from vitrail.weights.load import fit_named, read


def open_sets(config: TrainConfig) -> tuple[Source, Source | None]:
    """Open what is trained and evaluated on."""
    train_set = open_data(config.data, split="train", seed=config.seed)
    if not isinstance(train_set, Source):
        raise InputError(f"{config.data} is a stream, which can't be trained on yet")
    val_set = open_data(config.data, split=config.val, seed=config.seed) if config.val else None
    if val_set is not None and not isinstance(val_set, Source):
        raise InputError(f"{config.data} is a stream, which can't be evaluated on")
    check_trainable(train_set, val_set)
    return train_set, val_set


def start_weights(config: TrainConfig, classes: int) -> Bundle:
    """Fit pre-trained weights to a number of classes, or draw fresh ones."""
    spec = parse(config.model)
    made = Provenance(source=f"run:{config.out}", sha256="", format="vitrail")
    if config.weights is None:
        model = build(spec, classes=classes)
        bundle = Bundle(spec=model.spec, tensors=dict(model.state_dict()))
    else:
        bundle = fit_named(read(config.weights), spec, classes=classes)
        made = bundle.provenance or made
    made = replace(made, changes=(*made.changes, f"trained on {config.data}"))
    plain = _plain_preprocess(bundle.spec.image, bundle.spec.channels)
    return replace(bundle, preprocess=bundle.preprocess or plain, provenance=made)


def _plain_preprocess(size: tuple[int, int], channels: int) -> Preprocess:
    """Give what the paper's models take: the whole picture, from -1 to 1."""
    half = (0.5,) * channels
    return Preprocess(size=size, mean=half, std=half, interpolation="bilinear", fit="stretch")


def make_trainer(
    config: TrainConfig,
    model: Model,
    train_set: Source,
    preprocess: Preprocess,
    processes: Processes,
) -> tuple[Trainer, Rhythm]:
    """Make what takes the steps, and count in steps when what happens."""
    images = len(train_set)
    if config.sharding == "full" and processes.count > 1:
        shard_model(model, processes)

    def steps(duration: Duration, total: int | None = None) -> int:
        return duration.steps(images=images, batch=config.batch, total=total)

    total = steps(config.length)
    if total < 1:
        raise InputError(f"a run of {config.length} has no step; give more")
    trainer = Trainer(
        model,
        Classify(config.loss, len(train_set.classes), preprocess),
        make_optimiser(model, config.optim),
        config.schedule.plan(total=total, images=images, batch=config.batch),
        forward=_wrap(model, config, processes),
        lr=config.optim.lr,
        clip=config.optim.clip,
        batch=config.batch,
        micro=_choose_micro(model, config, processes),
        seed=config.seed,
        processes=processes,
        autocast=autocast_type(config.precision, processes.device),
        average=Average(model, config.average) if config.average else None,
    )
    evaluate, save = (steps(each, total) for each in (config.evaluate, config.save))
    return trainer, Rhythm(total=total, evaluate=evaluate, save=save)


def _wrap(model: Model, config: TrainConfig, processes: Processes) -> nn.Module:
    """Let the processes average gradients, and compile, where asked."""
    forward: nn.Module = model
    if processes.count > 1 and config.sharding == "none":
        forward = DistributedDataParallel(forward)
        _settle(forward, model, processes.device)
    return torch.compile(forward) if config.compile else forward  # type: ignore[return-value]


def _settle(forward: nn.Module, model: Model, device: torch.device) -> None:
    """Take a pass, for DDP sorts what it exchanges after the first one.

    Sums of three and more round as they are sorted, and a resumed run is to round as any other.
    """
    blank = torch.zeros(2, model.spec.channels, *model.spec.image, device=device)
    forward(blank).sum().backward()
    model.zero_grad()


def _choose_micro(model: Model, config: TrainConfig, processes: Processes) -> int:
    """Take what was asked for, or what fits into memory in every process."""
    most = max(1, config.batch // processes.count)
    if config.micro is not None:
        return min(config.micro, most)
    device, checkpointing = processes.device, config.checkpointing
    fit = choose_micro(model.spec, most=most, checkpointing=checkpointing, device=device)
    return int(processes.least(fit))
