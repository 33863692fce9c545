"""What a run would be: its steps, memory and work, and its time by a short measurement.

Everything is opened and built as for the run itself, and nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from vitrail.data.cache import CacheConfig
from vitrail.data.datasets.open import Data
from vitrail.distributed import process_group
from vitrail.models import BiT, ViT
from vitrail.models.cost.total import FLOAT
from vitrail.recipes import paper_protocol
from vitrail.recipes.protocol import RUNGS, Protocol
from vitrail.result import Result, ResultTable
from vitrail.run_settings import RunWords, configure_finetuning, prepare_run
from vitrail.text import show_duration
from vitrail.training.logging.run_facts import cost_of_training
from vitrail.training.optimization.time_plan import ImageTime, count_passes, measure_image_time
from vitrail.training.parts import ModelChange, Parts, gather_parts, split_weights
from vitrail.training.run_data import hold_out_for_choosing, open_datasets
from vitrail.training.task import TaskFactory
from vitrail.training.train_config import TrainConfig
from vitrail.training_run import TrainingRun
from vitrail.weights.loaded import AnyModel, LoadedModel

_WORK = 2e11  # operations of a measured step on a CPU: seconds, where a whole batch takes minutes
_MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1, "muon": 1}  # numbers kept for each trained weight


@dataclass(frozen=True, kw_only=True)
class RunEstimate(Result):
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
    flops: float | None
    """Operations of all training steps; None where a part of your own takes part."""
    seconds: float
    """Expected time, evaluations included."""

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one line per question."""
        at_once = (
            f"{self.accumulation} x {self.micro}" if self.accumulation > 1 else f"{self.micro}"
        )
        many = f" in each of {self.processes} processes" if self.processes > 1 else ""
        state, kept = map(_show_bytes, (self.state_bytes, self.activation_bytes))
        images = "unknown" if self.images is None else f"{self.images:,}"
        epochs = "" if self.epochs is None else f", {self.epochs:.4g} epochs"
        trained = f"{self.trained:,} of {self.parameters:,} parameters trained"
        yield f"model    {self.model}, {trained}"
        yield f"data     {images} images of {self.classes:,} classes"
        yield f"length   {self.steps:,} steps{epochs}"
        yield f"rate     {self.lr:g} after a warm-up of {self.warmup:,} steps"
        yield f"batch    {self.batch:,} images, {at_once} at a time{many}"
        yield f"memory   {state} of weights and optimizer, {kept} of activations"
        if self.flops is not None:
            yield f"work     {_show_flops(self.flops)}"
        yield f"time     about {show_duration(self.seconds)}, by a few steps just taken"


def estimate(
    config: TrainConfig | Data,
    *,
    data: Data | None = None,
    model: str | ModelChange | LoadedModel | ViT | BiT | None = None,
    task: str | TaskFactory | None = None,
    weights: AnyModel | None = None,
    **words: Unpack[RunWords],
) -> RunEstimate:
    """Estimate a run, and take a few steps of it on real images to say how long it would take.

    Give a TrainConfig, or DATA and the words of `train`.
    """
    given = {"data": data, "model": model, "task": task, "weights": weights}
    config, parts = prepare_run(config, words, **given)
    return _estimate(config, parts)


def _estimate(config: TrainConfig, parts: Parts) -> RunEstimate:
    config = replace(config, cache=CacheConfig())  # which would be filled, perhaps on disk
    config = hold_out_for_choosing(config, parts.data, thresholds=parts.task is None)
    with process_group(config.device) as processes:
        run = TrainingRun(config, processes, parts)
        total, micro = run.intervals.total, run.trainer.micro_batch
        images, many = run.images, processes.count
        own = parts.task is not None or parts.model is not None
        teacher = getattr(run.task, "teach", None)
        spec = teacher and teacher.spec
        cost = cost_of_training(config, run.model.spec, spec, batch=micro)
        tensors = list(run.model.parameters())
        parameters = sum(each.numel() for each in tensors)
        trained = sum(each.numel() for each in tensors if each.requires_grad)
        kept = 1 + _MOMENTS[config.optim.kind] + (config.ema > 0)
        return RunEstimate(
            model=str(run.model.spec),
            images=images,
            classes=len(run.train_set.classes),
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
            activation_bytes=cost.activation_bytes,
            flops=None if own else float(cost.flops) * config.batch * total,
            seconds=_time_steps(run, cost.flops).wall
            * count_passes(config, run.intervals, len(run.val_set or ())),
        )


@dataclass(frozen=True, kw_only=True)
class ProtocolEstimate(Result):
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
    """Images that the result is evaluated on."""
    folders: tuple[str, ...]
    """Where each run will be."""
    seconds: float
    """Expected time of all runs, if none ends early."""

    def summary(self) -> Iterator[ResultTable | str]:
        """Give the protocol's runs, then one of them in full."""
        if self.trial is not None:
            rates = ", ".join(f"{rate:g}" for rate in self.rates)
            rungs = " and ".join(f"{rung:,}" for rung in self.rungs)
            early = f"; hopeless ones end at step {rungs}" if rungs else ""
            yield f"grid     {len(self.rates)} runs at {rates}{early}"
            yield f"         each on {self.trial.images:,} images, compared on {self.held_out:,}"
        seeds = ", ".join(map(str, self.seeds))
        yield f"then     {len(self.seeds)} runs at the best, seeds {seeds}"
        yield f"         each on {self.final.images:,} images, evaluated on {self.measured:,}"
        yield f"all      about {show_duration(self.seconds)}, if none ends early"
        yield ""
        yield f"Each is a run like this, at its own learning rate ({', '.join(self.folders)}):"
        yield from self.final.summary()


def estimate_finetuning(
    data: Data,
    *,
    weights: AnyModel | None = None,
    model: str | None = None,
    tune: str | None = None,
    protocol: str | None = None,
    rates: Sequence[float] = (),
    seeds: int = 3,
    **words: Unpack[RunWords],
) -> RunEstimate | ProtocolEstimate:
    """Estimate what `finetune` would do with the same words."""
    source, checkpoint = split_weights(weights)
    model = model or (checkpoint and checkpoint.spec.name)
    found = configure_finetuning(
        data, weights=source, model=model, tune=tune, protocol=protocol, rates=rates, **words
    )
    if protocol is None:
        return _estimate(*gather_parts(found.config, data=data, checkpoint=checkpoint))
    plan = paper_protocol(found.config, found.row, rates=tuple(rates) or None, seeds=seeds)
    return estimate_protocol(plan)


def estimate_protocol(protocol: Protocol) -> ProtocolEstimate:
    """Estimate all runs of a protocol, by a few steps of one of each kind."""
    rates, seeds, first = protocol.rates, protocol.all_seeds(), protocol.rates[0]
    configs = [protocol.trial(rate) for rate in rates] if len(rates) > 1 else []
    finals = [protocol.final(first, seed) for seed in seeds]
    trial, final = estimate(configs[0]) if configs else None, estimate(finals[0])
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


def time_image(config: TrainConfig, *, least: float = 0.0) -> ImageTime:
    """Take steps of a run for `least` seconds; say what an image takes. Nothing is written."""
    config, parts = gather_parts(replace(config, cache=CacheConfig()))
    with process_group(config.device) as processes:
        run = TrainingRun(config, processes, parts)
        teacher = getattr(run.task, "teach", None)
        cost = cost_of_training(config, run.model.spec, teacher and teacher.spec)
        return _time_steps(run, cost.flops, least)


def _time_steps(run: TrainingRun, work: int, least: float = 0.0) -> ImageTime:
    """Measure a few steps, an image of which has so much `work`."""
    most = run.trainer.micro_batch
    if run.processes.device.type == "cpu":
        most = min(most, max(2, int(_WORK / work)))
    return measure_image_time(run, most=most, least=least)


def _show_bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _show_flops(flops: float) -> str:
    for size, unit in ((1e18, "exa"), (1e15, "peta"), (1e12, "tera")):
        if flops >= size:
            return f"{flops / size:,.3g} {unit}FLOPs"
    return f"{flops / 1e9:.3g} gigaFLOPs"
