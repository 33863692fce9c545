"""How a run starts: its weights, and what takes steps on them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config import Duration, InputError
from vitrail.data.batches import Batch
from vitrail.data.transforms.preprocess import Preprocess, default_preprocess
from vitrail.distributed import Processes
from vitrail.models import build, parse
from vitrail.models.model import Model
from vitrail.training.checkpoints.sharding import shard_model
from vitrail.training.ema import EMA
from vitrail.training.loop import Intervals, Trainer
from vitrail.training.memory import choose_micro
from vitrail.training.optim import make_optimizer
from vitrail.training.precision import autocast_type
from vitrail.training.tasks import Task
from vitrail.training.train_config import PreprocessConfig, TrainConfig
from vitrail.weights.adapt import adapt_to_model
from vitrail.weights.checkpoint import Checkpoint, Provenance
from vitrail.weights.load import read_checkpoint


def start_weights(config: TrainConfig, classes: int) -> Checkpoint:
    """Fit pre-trained weights to a number of classes, or draw fresh ones."""
    spec = parse(config.model)
    made = Provenance(source=f"run:{config.out}", sha256="", format="vitrail")
    if config.weights is None:
        model = build(spec, classes=classes)
        bundle = Checkpoint(spec=model.spec, tensors=dict(model.state_dict()))
    else:
        bundle = adapt_to_model(read_checkpoint(config.weights), spec, classes=classes)
        made = bundle.provenance or made
    made = replace(made, changes=(*made.changes, f"trained on {config.data}"))
    plain = default_preprocess(bundle.spec.image, bundle.spec.channels)
    preprocess = _change(bundle.preprocess or plain, config.preprocess)
    return replace(bundle, preprocess=preprocess, provenance=made)


def _change(preprocess: Preprocess, config: PreprocessConfig) -> Preprocess:
    """Fit images otherwise, where settings say so."""
    return replace(
        preprocess,
        fit=config.fit or preprocess.fit,
        crop=preprocess.crop if config.crop is None else config.crop,
        interpolation=config.interpolation or preprocess.interpolation,
    )


def make_trainer(
    config: TrainConfig,
    model: Model,
    task: Task,
    images: int,
    processes: Processes,
) -> tuple[Trainer, Intervals]:
    """Make what takes the steps, and count in steps when what happens.

    An epoch has `images` images.
    """
    if config.sharding == "full" and processes.count > 1:
        shard_model(model, processes)

    def steps(duration: Duration, total: int | None = None) -> int:
        return duration.steps(images=images, batch=config.batch, total=total)

    total = steps(config.length)
    if total < 1:
        raise InputError(f"a run of {config.length} has no step; give more")
    trainer = Trainer(
        model,
        task,
        make_optimizer(model, config.optim),
        config.schedule.plan(total=total, images=images, batch=config.batch),
        forward=_wrap(model, task, config, processes),
        lr=config.optim.lr,
        clip=config.optim.clip,
        batch=config.batch,
        micro_batch=_choose_micro(model, config, processes),
        seed=config.seed,
        processes=processes,
        autocast=autocast_type(config.precision, processes.device),
        ema=EMA(model, config.ema) if config.ema else None,
    )
    evaluate, save = (
        max(steps(each, total), int(each.amount > 0))
        for each in (config.eval_every, config.save_every)
    )
    return trainer, Intervals(total=total, evaluate=evaluate, save=save)


def _wrap(model: Model, task: Task, config: TrainConfig, processes: Processes) -> nn.Module:
    """Let the processes average gradients, and compile, where asked."""
    forward: nn.Module = model
    if processes.count > 1 and config.sharding == "none":
        forward = DistributedDataParallel(forward)
        _settle(forward, model, task, processes.device)
    return torch.compile(forward) if config.compile else forward  # type: ignore[return-value]


def _settle(forward: nn.Module, model: Model, task: Task, device: torch.device) -> None:
    """Take a pass, for DDP sorts what it exchanges after the first one.

    Sums of three and more round as they are sorted, and a resumed run is to round as any other.
    """
    none = torch.zeros(2, dtype=torch.long)
    images = torch.zeros(2, *model.spec.image, model.spec.channels, dtype=torch.uint8)
    blank = Batch(images=images, labels=none, weights=torch.ones(2), indices=none)
    task.losses(forward, task.prepare(blank, device)).sum().backward()
    model.zero_grad()


def _choose_micro(model: Model, config: TrainConfig, processes: Processes) -> int:
    """Take what was asked for, or what fits into memory in every process."""
    most = max(1, config.batch // processes.count)
    if config.micro_batch is not None:
        return min(config.micro_batch, most)
    device, checkpointing = processes.device, config.checkpointing
    fit = choose_micro(model.spec, most=most, checkpointing=checkpointing, device=device)
    return int(processes.least(fit))
