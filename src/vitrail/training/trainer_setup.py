"""A run's model and what takes its steps, made from its settings; when what else happens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config import Duration, InputError
from vitrail.data.batches import Batch
from vitrail.distributed import Processes
from vitrail.models import build
from vitrail.models.init import seeded
from vitrail.models.model import Model
from vitrail.training.checkpoints.sharding import shard_model
from vitrail.training.loop import Trainer
from vitrail.training.memory import choose_micro
from vitrail.training.optimization.ema import EMA
from vitrail.training.optimization.optim import make_optimizer
from vitrail.training.optimization.precision import autocast_type
from vitrail.training.optimization.schedule import rate_at
from vitrail.training.optimization.step_intervals import Intervals
from vitrail.training.parts import Parts
from vitrail.training.peft import adapt
from vitrail.training.task import DeviceBatch, Task
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint

log = logging.getLogger("vitrail")

_EVALUATIONS = 10  # at most, unless asked for
_COST = 0.05  # of a run's computation that they may take together
_PASSES = 3  # what an image costs in training, in passes of an evaluation


def build_model(
    config: TrainConfig, task: Task, parts: Parts, processes: Processes
) -> tuple[Model, Checkpoint]:
    """Build a run's model and set up its task; also give the weights that it starts from."""
    own = parts.task is not None or parts.model is not None  # their losses are tried before
    sharded = config.sharding == "full" and processes.count > 1 and not own
    fresh = sharded and _draws_by_shards(config, task, parts)
    weightless = fresh or (sharded and not processes.is_main)  # sharding brings it its weights
    with seeded(config.seed):
        begin = partial(task.start, parts.checkpoint)
        if fresh:
            with torch.device("meta"):
                start = begin()
        else:
            start = _start_on_main(begin, processes) if sharded else begin()
        with torch.device("meta") if weightless else nullcontext():
            model = task.build(start)
            if parts.model is not None:
                model = parts.model(model)
                if not isinstance(model, Model):
                    kind = type(model).__name__
                    raise InputError(f"the model's function must return the model, got {kind}")
            adapt(model, config.tune)
    for module in model.modules():  # a model may have another in it
        if isinstance(module, Model):
            module.checkpointing = config.recomputed_every
    assert start.preprocess is not None
    task.setup(start.preprocess, processes.device)
    if not sharded:
        model = model.to(processes.device)
    if own:
        check_losses(model, task)
    return model, start


def _draws_by_shards(config: TrainConfig, task: Task, parts: Parts) -> bool:
    """Tell whether a sharded model's first weights can be drawn where they are to be.

    Then no process ever holds all of them.
    """
    if config.weights is not None or parts.checkpoint is not None or config.tune.mode != "all":
        return False
    plain = type(task).build is Task.build and type(task).start is Task.start
    with torch.device("meta"):
        return plain and not any(True for _ in build(config.model).buffers())


def _start_on_main(begin: Callable[[], Checkpoint], processes: Processes) -> Checkpoint:
    """Let the first process read the weights; the others learn what they are, without values."""
    found: list[Checkpoint] = []

    def describe() -> Checkpoint:
        found.append(begin())
        empty = {name: tensor.to("meta") for name, tensor in found[0].tensors.items()}
        return replace(found[0], tensors=empty)

    described = processes.on_main(describe)
    return found[0] if processes.is_main else described


def make_trainer(
    config: TrainConfig, model: Model, task: Task, images: int, processes: Processes, parts: Parts
) -> Trainer:
    """Make what takes the steps; an epoch has `images` images."""
    if config.sharding == "full" and processes.count > 1:
        shard_model(model, processes, config.seed)
    total = count_steps(config, images)
    return Trainer(
        model,
        task,
        make_optimizer(model, config.optim, parts.optimizer),
        _schedule(config, parts, total, images),
        forward=_wrap(model, task, config, processes),
        lr=config.optim.lr,
        clip=config.optim.clip,
        batch=config.batch,
        micro_batch=_choose_micro(model, task, config, processes),
        seed=config.seed,
        processes=processes,
        autocast=autocast_type(config.precision, processes.device, model.spec),
        ema=EMA(model, config.ema) if config.ema else None,
        compiled=config.compile,
        draws=parts.draw,
    )


def count_steps(config: TrainConfig, images: int) -> int:
    """Count the steps of a run whose epoch has `images` images."""
    length = config.length if config.more is None else config.more
    total = length.steps(images=images, batch=config.batch)
    if total < 1:
        raise InputError(f"length {length} is shorter than one step")
    return config.more_from + total


def plan_intervals(
    config: TrainConfig, images: int, val_images: int, pause: Duration | None
) -> Intervals:
    """Say in steps when a run evaluates, saves and pauses.

    Unless asked for, evaluations are spread evenly: so many that they take a twentieth of the
    computation, at most ten, at least the one at the end.
    """
    total = count_steps(config, images)

    def steps(duration: Duration) -> int:
        return duration.steps(images=images, batch=config.batch, total=total)

    if config.eval_every is None:
        affordable = _COST * total * config.batch * _PASSES / max(val_images, 1)
        evaluate = math.ceil(total / min(max(int(affordable), 1), _EVALUATIONS))
    else:
        evaluate = max(steps(config.eval_every), int(config.eval_every.amount > 0))
    save, fewshot = config.save_every, 0
    if config.fewshot.data:
        every = config.fewshot.every
        fewshot = (evaluate or total) if every is None else max(1, steps(every))
    return Intervals(
        total=total,
        evaluate=evaluate,
        fewshot=fewshot,
        save=None if save is None else max(steps(save), int(save.amount > 0)),
        pause=None if pause is None else max(1, steps(pause)),
    )


def _schedule(
    config: TrainConfig, parts: Parts, total: int, images: int
) -> Callable[[float], float]:
    """Give the factor of the learning rate at a step, counted from where the run was continued."""
    begin = config.more_from
    factor = _plan_schedule(config, parts, total - begin, images)
    return lambda step: factor(step - begin)


def _plan_schedule(
    config: TrainConfig, parts: Parts, total: int, images: int
) -> Callable[[float], float]:
    if (own := parts.schedule) is not None:
        for step in (0, total - 1):
            factor: Any = own(step, total)
            if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
                raise InputError(
                    f"the schedule must return a number >= 0, got {factor!r} at step {step}"
                )
        return lambda place: float(own(int(place), total))
    plan = config.schedule.plan(total=total, images=images, batch=config.batch)
    return partial(rate_at, plan=plan)


def _wrap(model: Model, task: Task, config: TrainConfig, processes: Processes) -> nn.Module:
    """Let the processes average gradients."""
    if processes.count == 1 or config.sharding == "full":
        return model
    forward = DistributedDataParallel(model)
    _warm_up(forward, model, task)
    return forward


def _warm_up(forward: nn.Module, model: Model, task: Task) -> None:
    """Take a pass, because DDP sorts what it exchanges after the first one.

    Sums of three and more round as they are sorted, and a resumed run is to round as any other.
    """
    with _untouched(model, task) as trial:
        trial.losses(forward, _blank_batch(model, task)).sum().backward()
    model.zero_grad()


@contextmanager
def _untouched(model: Model, task: Task) -> Iterator[Task]:
    """Lend a copy of a task, and put the model's buffers back: blank images leave no trace."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        trial = deepcopy(task, {id(model): model})
    except Exception as error:  # whatever it holds that can't be copied
        log.warning(
            "%s can't be copied (%s): it sees two blank images before the first step",
            *(type(task).__name__, (str(error) or type(error).__name__).splitlines()[0]),
        )
        trial = task
    with seeded(task.config.seed):
        yield trial
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def check_losses(model: Model, task: Task) -> None:
    """Refuse a task of your own whose losses are not one for each image, by blank images."""
    batch = _blank_batch(model, task)
    with _untouched(model, task) as trial, torch.no_grad():
        losses: Any = trial.losses(model, batch)
    wanted, name = tuple(batch.weights.shape), type(task).__name__
    got = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
    if got != wanted:
        raise InputError(
            f"{name}.losses must return a loss for each image, a tensor of {wanted}, got {got}"
        )


def _blank_batch(model: Model, task: Task) -> DeviceBatch:
    """Make a batch of two blank images, each as often as in a batch of the run."""
    count = 2 * task.config.repeats
    indices = torch.arange(count) % 2
    several = task.multilabel or task.config.task == "regression"
    shape = (count, len(task.classes)) if several else (count,)
    labels = torch.zeros(shape, dtype=torch.uint8 if task.multilabel else torch.long)
    images = torch.zeros(count, *model.spec.image, model.spec.channels, dtype=torch.uint8)
    blank = Batch(
        images=images,
        labels=labels,
        weights=torch.ones(count),
        indices=indices,
        copies=torch.arange(count) // 2,
    )
    return task.prepare(blank)


def _choose_micro(model: Model, task: Task, config: TrainConfig, processes: Processes) -> int:
    """Take what was asked for, or what fits into memory in every process."""
    most = max(1, config.batch // processes.count)
    if task.needs_whole_batch:
        if config.micro_batch not in (None, most):
            name = type(task).__name__
            raise InputError(f"{name} needs the whole batch at once; leave micro_batch out")
        return most
    if config.micro_batch is not None:
        return min(config.micro_batch, most)
    fit = choose_micro(
        model.spec,
        most=most,
        device=processes.device,
        checkpointing=config.recomputed_every,
        task=config.task,
        mim=config.mim,
        tune=config.tune,
    )
    return int(processes.least(fit))
