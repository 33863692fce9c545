"""What a run would be: its steps, memory and work, and its time by a short measurement.

Everything is opened and built as for the run itself, and nothing is written.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from vitrail.data.cache import CacheConfig
from vitrail.distributed import process_group
from vitrail.models.cost.total import FLOAT, cost_of
from vitrail.protocol import RUNGS, Protocol
from vitrail.run import Session, TrainConfig
from vitrail.signals import Signals
from vitrail.training.run_data import open_datasets
from vitrail.training.train_iterator import open_feed

_UNTIMED, _TIMED = 2, 3  # steps; the first ones also set things up
_WORK = 2e11  # operations of a measured step on a CPU: seconds, where a whole batch takes minutes
_MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "muon": 1}  # numbers kept for each trained weight


@dataclass(frozen=True, kw_only=True)
class RunEstimate:
    """A run in numbers."""

    model: str
    images: int | None
    """Of the training split; None where a stream does not say."""
    classes: int
    steps: int
    epochs: float | None
    warmup: int
    """Steps over which the learning rate rises."""
    lr: float
    batch: int
    """Images a step, over all processes."""
    micro: int
    """Images that go through the model at a time in each process."""
    accumulation: int
    """Times that they do for a step."""
    processes: int
    parameters: int
    trained: int
    """Parameters that are trained."""
    state_bytes: int
    """Weights, gradients, the optimizer's moments and the average, in each process."""
    activation_bytes: int
    """What a micro-batch keeps for its backward pass."""
    flops: float
    """Operations of all training steps."""
    seconds: float
    """Expected time, evaluations included."""


def plan(config: TrainConfig) -> RunEstimate:
    """Plan a run, and take a few steps of it on real images to say how long it would take."""
    config = replace(config, cache=CacheConfig())  # which would be filled, perhaps on disk
    with process_group(config.device) as processes:
        session = Session(config, processes)
        total, micro = session.rhythm.total, session.trainer.micro_batch
        images, many = session.images, processes.count
        cost = cost_of(session.model.spec, batch=micro)
        weights = list(session.model.parameters())
        parameters = sum(weight.numel() for weight in weights)
        trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        kept = 1 + _MOMENTS[config.optim.kind] + (config.ema > 0)
        return RunEstimate(
            model=str(session.model.spec),
            images=images,
            classes=len(session.train_set.classes),
            steps=total,
            epochs=total * config.batch / images if images else None,
            warmup=config.schedule.plan(total=total, images=images or 0, batch=config.batch).warmup,
            lr=config.optim.lr,
            batch=config.batch,
            micro=micro,
            accumulation=math.ceil(config.batch / many / micro),
            processes=many,
            parameters=parameters,
            trained=trained,
            state_bytes=FLOAT * (parameters + kept * trained),
            activation_bytes=(
                cost.checkpointed_bytes if config.checkpointing else cost.activation_bytes
            ),
            flops=float(cost.training_flops) * config.batch * total,
            seconds=_image_seconds(session, cost.training_flops) * _passes(session),
        )


@dataclass(frozen=True, kw_only=True)
class ProtocolEstimate:
    """A protocol in numbers."""

    rates: tuple[float, ...]
    """Of the grid; a single one needs none."""
    rungs: tuple[int, ...]
    """Steps after which hopeless runs of the grid end."""
    held_out: int
    """Images that the rate is chosen on."""
    seeds: tuple[int, ...]
    trial: RunEstimate | None
    """A run of the grid, if there is one."""
    final: RunEstimate
    """A run on all images."""
    measured: int
    """Images that the result is measured on."""
    folders: tuple[str, ...]
    """Where each run will be."""
    seconds: float
    """Expected time of all runs, if none ends early."""


def plan_protocol(protocol: Protocol) -> ProtocolEstimate:
    """Plan all runs of a protocol, by a few steps of one of each kind."""
    rates, seeds, first = protocol.rates, protocol.all_seeds(), protocol.rates[0]
    configs = [protocol.trial(rate) for rate in rates] if len(rates) > 1 else []
    finals = [protocol.final(first, seed) for seed in seeds]
    trial, final = plan(configs[0]) if configs else None, plan(finals[0])
    held_out, measured = (
        len(open_datasets(each)[1] or ()) for each in (protocol.trial(first), finals[0])
    )
    steps = trial.steps if trial else 0
    rungs = [max(1, rung.steps(images=0, batch=1, total=steps)) for rung in RUNGS if trial]
    return ProtocolEstimate(
        rates=rates,
        rungs=tuple(rung for rung in rungs if rung < steps),
        held_out=held_out if trial else 0,
        seeds=tuple(seeds),
        trial=trial,
        final=final,
        measured=measured,
        folders=tuple(str(config.out) for config in (*configs, *finals)),
        seconds=len(configs) * (trial.seconds if trial else 0) + len(finals) * final.seconds,
    )


def _passes(session: Session) -> float:
    """Count the images that a run takes through the model, one of an evaluation as a third."""
    rhythm, val_set = session.rhythm, session.val_set
    evaluated = 0
    if val_set is not None and rhythm.evaluate:
        evaluated = len(val_set) * math.ceil(rhythm.total / rhythm.evaluate)
    return rhythm.total * session.config.batch + evaluated / 3


def _image_seconds(session: Session, work: int) -> float:
    """Measure a few steps; give the time that an image takes, data included."""
    config, processes = session.config, session.processes
    most = session.trainer.micro_batch
    if processes.device.type == "cpu":
        most = min(most, max(2, int(_WORK / work)))
    batch = min(config.batch, most * processes.count)
    settings = replace(config, batch=batch, repeats=1)
    feed = open_feed(session.train_set, settings, session.preprocess)
    loader = feed.open(1_000, processes.shard)  # goes on ahead, as in a run
    start = 0.0
    for step, made in zip(range(_UNTIMED + _TIMED), loader, strict=False):
        if step == _UNTIMED:
            start = time.perf_counter()
        session.trainer.step(0, made, Signals())
    return (time.perf_counter() - start) / _TIMED / batch
