"""The ways to start a run: `train` and `finetune`.

They gather the settings, let the processes meet and lock the folder; `TrainingRun` does the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

from vitrail.config import Duration, InputError, to_dict
from vitrail.data.checks.output_place import check_output_place
from vitrail.data.datasets.open import Data
from vitrail.distributed import Processes, process_group
from vitrail.evaluation.final_score import check_test, leave_test_score
from vitrail.evaluation.uncertainty.calibrate import leave_calibration
from vitrail.models import BiT, ViT
from vitrail.recipes import paper_protocol
from vitrail.recipes.folds import run_folds
from vitrail.recipes.protocol import ProtocolResult
from vitrail.recipes.protocol_run import run_protocol
from vitrail.report import leave_report
from vitrail.run_minutes import plan_finetuning, plan_training
from vitrail.run_settings import Configured, RunWords, configure_finetuning, prepare_run
from vitrail.text import show
from vitrail.training.callbacks import Callback
from vitrail.training.checkpoints.continuing import keeps_model, settle_more
from vitrail.training.checkpoints.run_folder import check_folder
from vitrail.training.checkpoints.run_lock import run_lock
from vitrail.training.logging.log_setup import show_log
from vitrail.training.logging.loggers import LoggerFactory
from vitrail.training.optimization.time_plan import Afterwards, make_deadline
from vitrail.training.parts import (
    ModelChange,
    OptimizerFactory,
    Parts,
    Schedule,
    Transform,
    gather_parts,
    split_task,
    split_weights,
)
from vitrail.training.run_data import hold_out_for_choosing
from vitrail.training.run_result import Run
from vitrail.training.task import Metric, TaskFactory
from vitrail.training.train_config import TrainConfig
from vitrail.training_run import TrainingRun
from vitrail.weights.loaded import AnyModel, LoadedModel

log = logging.getLogger("vitrail")


def train(
    config: TrainConfig | Data,
    *,
    data: Data | None = None,
    model: str | ModelChange | LoadedModel | ViT | BiT | None = None,
    task: str | TaskFactory | None = None,
    weights: AnyModel | None = None,
    optimizer: str | OptimizerFactory | None = None,
    schedule: str | Schedule | None = None,
    transform: str | Transform | None = None,
    metrics: Mapping[str, str | Metric] | Sequence[str | Metric] = (),
    callbacks: Sequence[str | Callback | type[Callback]] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    restart: bool = False,
    report: bool = True,
    calibrate: bool = True,
    **words: Unpack[RunWords],
) -> Run:
    """Train a model, from where an earlier call stopped; `restart` begins again.

    Give a TrainConfig, or DATA and the command's words: `train("photos/", model="ViT-S/16",
    recipe="small-data", epochs=20, out="runs/photos")`. Data, task, optimizer, schedule, transform,
    metrics, callbacks and loggers may be objects of your own or their import paths, `model` also a
    function that changes the model (docs/own-parts.md); an object without a path has to be given
    again to resume. At the end the model is calibrated on the validation images unless `calibrate`
    is False.
    """
    started = time.monotonic()
    given = {"data": data, "model": model, "task": task, "weights": weights}
    config, parts = prepare_run(
        config,
        words,
        **given,
        optimizer=optimizer,
        schedule=schedule,
        transform=transform,
        metrics=metrics,
        callbacks=callbacks,
        loggers=loggers,
    )
    after = Afterwards(report, calibrate, check_test(config, parts, restart=restart))
    if config.minutes is not None:
        config, after = plan_training(config, parts, TrainingRun, started, after, restart=restart)
    return _train(config, parts, started, after, restart=restart)


def finetune(
    data: Data,
    *,
    weights: AnyModel | None = None,
    model: str | None = None,
    tune: Literal["all", "head", "last", "lora"] | None = None,
    protocol: Literal["paper"] | None = None,
    rates: Sequence[float] = (),
    seeds: int = 3,
    task: str | TaskFactory | None = None,
    optimizer: str | OptimizerFactory | None = None,
    schedule: str | Schedule | None = None,
    transform: str | Transform | None = None,
    metrics: Mapping[str, str | Metric] | Sequence[str | Metric] = (),
    callbacks: Sequence[str | Callback | type[Callback]] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    restart: bool = False,
    report: bool = True,
    calibrate: bool = True,
    **words: Unpack[RunWords],
) -> Run | ProtocolResult:
    """Train a pre-trained model on other images, with a new head.

    `tune` says which weights are trained. The paper's `protocol` chooses the learning rate among
    `rates` on held-out images, then trains on all of them with several `seeds`. Task, optimizer,
    schedule, transform, metrics, callbacks and loggers are as for `train`.
    """
    started, after = time.monotonic(), Afterwards(report, calibrate)
    source, checkpoint = split_weights(weights)
    model = model or (checkpoint and checkpoint.spec.name)
    kind, own_task = split_task(task)
    gather = partial(
        gather_parts,
        data=data,
        checkpoint=checkpoint,
        task=own_task,
        optimizer=optimizer,
        schedule=schedule,
        transform=transform,
        metrics=metrics,
        callbacks=callbacks,
        loggers=loggers,
    )

    def settle(tune: str | None, words: RunWords) -> Configured:
        return configure_finetuning(
            data,
            weights=source,
            model=model,
            tune=tune,
            task=kind,
            own_task=own_task is not None,
            protocol=protocol,
            rates=rates,
            **words,
        )

    with show_log():
        found = settle(tune, words)
        if found.config.test_data is not None:
            if protocol is not None:
                raise InputError("--protocol paper ends in scores of its own; leave --test out")
            after = replace(after, tested=check_test(*gather(found.config), restart=restart))
        if found.config.minutes is not None:
            if protocol is not None:
                raise InputError("--protocol paper has steps of its own; leave --minutes out")
            source, words["out"] = found.config.weights, found.config.out  # chosen once
            chosen: Any = {"tune": tune, "words": words, "restart": restart}
            found, after = plan_finetuning(
                found, gather, settle, TrainingRun, started, after, **chosen
            )
    config, parts = gather(found.config)
    if protocol is None:
        return _train(config, parts, started, after, restart=restart)
    if parts.data is not None or checkpoint is not None or parts.has_objects(config):
        raise InputError(
            "the protocol opens data, weights and parts for each run: give text, such as "
            "py:module:name, or import paths"
        )
    plan = paper_protocol(found.config, found.row, rates=tuple(rates) or None, seeds=seeds)
    return run_protocol(plan, train_among, restart=restart)


def _train(
    config: TrainConfig, parts: Parts, started: float, after: Afterwards, *, restart: bool
) -> Run:
    """Train in all processes; calibrate the model, score it on its test set, leave the report."""
    if config.folds and not config.fold:
        return run_folds(
            config, lambda each: _train(each, parts, time.monotonic(), after, restart=restart)
        )
    with process_group(config.device) as processes:
        run = train_among(processes, config, parts, restart=restart, started=started, after=after)
        if after.calibrate and processes.is_main:
            leave_calibration(run.folder)
        if processes.is_main:
            run = leave_test_score(run, config)
        if after.report and processes.is_main:
            leave_report(run.folder)
    return run


def train_among(
    processes: Processes,
    config: TrainConfig,
    parts: Parts | None = None,
    *,
    restart: bool = False,
    pause: Duration | None = None,
    started: float | None = None,
    after: Afterwards = Afterwards(),  # noqa: B008
) -> Run:
    """Train in processes that have met; pause after `pause` if that is given.

    A run that pauses is evaluated and saved, and the next call resumes it. `started` is when its
    `minutes` began, by time.monotonic, or now; `after` is what they are left for at the end.
    """
    started = time.monotonic() if started is None else started
    parts = parts or gather_parts(config)[1]
    config = hold_out_for_choosing(config, parts.data, thresholds=parts.task is None)
    processes.check_same({"settings": to_dict(config)})  # before they get the main one's
    with ExitStack() as stack:

        def look(config: TrainConfig) -> tuple[TrainConfig, dict[str, Any] | None, bool]:
            check_output_place(config.out, config.data)
            stack.enter_context(run_lock(config.out))
            config = settle_more(config, restart=restart)
            reached = check_folder(config, restart=restart)
            if reached is None or reached["steps"] == config.more_from:
                return config, None, False
            return config, reached, not keeps_model(config, reached)

        config, reached, again = processes.on_main(partial(look, config))
        if reached is not None and not again:
            run = Run.load(config.out, reached)
            log.info("%s: %s", show(config.out), run)
            return run
        # Here and in `run` is refused what can't be, before anything of an older run is touched.
        training = TrainingRun(config, processes, parts, pause=pause)
        deadline = make_deadline(training, started, after)
        return training.run(deadline, restart=restart, again=again)
