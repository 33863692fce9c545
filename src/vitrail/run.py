"""The one job: a configuration becomes a trained model in a folder that explains itself.

`train` is the way in; `TrainingRun` is what happens, in order: open the data, build the model, set
up the optimizer, resume, take the steps (training/loop.py), save the model folder.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, astuple, replace
from functools import partial
from typing import Any, Literal, Unpack

import torch
from safetensors.torch import save as serialize

from vitrail.config import Duration, InputError, to_dict
from vitrail.data.batches import Batch, UnreadableImage, check_batch
from vitrail.data.cache import keep_decoded
from vitrail.data.class_balance import balance_notes
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data, check_trainable
from vitrail.data.streaming import Cursor, join_cursors
from vitrail.data.unreadable import UnreadableImages
from vitrail.distributed import Processes, process_group
from vitrail.evaluation.probes.fewshot_monitor import FewShotMonitor
from vitrail.evaluation.uncertainty.calibrate import leave_calibration
from vitrail.files import write_whole
from vitrail.models import BiT, ViT
from vitrail.models.model import Model
from vitrail.recipes import paper_protocol
from vitrail.recipes.folds import run_folds
from vitrail.recipes.protocol import ProtocolResult, run_protocol
from vitrail.report import leave_report
from vitrail.run_minutes import plan_finetuning, plan_training
from vitrail.run_settings import Configured, RunWords, configure_finetuning, prepare_run
from vitrail.signals import Stopped, listen
from vitrail.tasks import make_task
from vitrail.text import printable, show
from vitrail.training.best_tracker import BestTracker
from vitrail.training.callbacks import Callback
from vitrail.training.checkpoints.checkpoint_files import SavedCheckpoint, SaveError
from vitrail.training.checkpoints.continuing import settle_more
from vitrail.training.checkpoints.resume import find_checkpoint, load_checkpoint, save_checkpoint
from vitrail.training.checkpoints.run_folder import (
    BAD_BATCH,
    MIM_HEAD,
    MODEL,
    RECONSTRUCTIONS,
    RESULT,
    check_folder,
    identify_run,
    prepare_folder,
)
from vitrail.training.checkpoints.run_lock import run_lock
from vitrail.training.checkpoints.sharding import full_state_dict
from vitrail.training.logging.first_screen import describe_run
from vitrail.training.logging.log_setup import show_log
from vitrail.training.logging.loggers import LoggerFactory
from vitrail.training.logging.metrics_logger import MetricsLogger
from vitrail.training.logging.run_facts import CostMeter
from vitrail.training.loop import StepResult, fit
from vitrail.training.optimization.deadline import Deadline
from vitrail.training.optimization.ema import EMA
from vitrail.training.optimization.time_plan import make_deadline
from vitrail.training.parts import (
    ModelChange,
    OptimizerFactory,
    Parts,
    Schedule,
    Transform,
    gather_parts,
    split_weights,
)
from vitrail.training.peft import adapt
from vitrail.training.run_data import (
    group_notes,
    hold_out_for_choosing,
    identify_data,
    open_datasets,
)
from vitrail.training.run_result import Ending, Run, make_run
from vitrail.training.task import Metric, Task, TaskFactory
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import count_images, open_iterator
from vitrail.training.trainer_setup import check_losses, make_trainer, plan_intervals
from vitrail.training.validation import Validator
from vitrail.weights.checkpoint import save_folder
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
    if config.minutes is not None:
        config = plan_training(config, parts, TrainingRun, started, restart=restart)
    return _train(config, parts, started, restart=restart, report=report, calibrate=calibrate)


def finetune(
    data: Data,
    *,
    weights: AnyModel | None = None,
    model: str | None = None,
    tune: Literal["all", "head", "last", "lora"] | None = None,
    protocol: Literal["paper"] | None = None,
    rates: Sequence[float] = (),
    seeds: int = 3,
    restart: bool = False,
    report: bool = True,
    calibrate: bool = True,
    **words: Unpack[RunWords],
) -> Run | ProtocolResult:
    """Train a pre-trained model on other images, with a new head.

    `tune` says which weights are trained. The paper's `protocol` chooses the learning rate among
    `rates` on held-out images, then trains on all of them with several `seeds`.
    """
    started = time.monotonic()
    source, checkpoint = split_weights(weights)
    model = model or (checkpoint and checkpoint.spec.name)

    def settle(tune: str | None, words: RunWords) -> Configured:
        found = configure_finetuning(
            data, weights=source, model=model, tune=tune, protocol=protocol, rates=rates, **words
        )
        return replace(found, checkpoint=checkpoint or found.checkpoint)

    with show_log():
        found = settle(tune, words)
        if found.config.minutes is not None:
            if protocol is not None:
                raise InputError("--protocol paper has steps of its own; leave --minutes out")
            source, words["out"] = found.config.weights, found.config.out  # chosen once
            chosen: Any = {"tune": tune, "words": words, "restart": restart}
            found = plan_finetuning(found, data, settle, TrainingRun, started, **chosen)
    config, parts = gather_parts(found.config, data=data, checkpoint=found.checkpoint)
    if protocol is None:
        return _train(config, parts, started, restart=restart, report=report, calibrate=calibrate)
    if parts.data is not None or checkpoint is not None:
        raise InputError(
            "the protocol opens data and weights for each run: give text, such as py:module:name"
        )
    plan = paper_protocol(found.config, found.row, rates=tuple(rates) or None, seeds=seeds)
    return run_protocol(plan, train_among, restart=restart)


def _train(
    config: TrainConfig,
    parts: Parts,
    started: float,
    *,
    restart: bool,
    report: bool,
    calibrate: bool,
) -> Run:
    """Train in all processes; calibrate the model, and leave the report in the folder."""
    if config.folds and not config.fold:
        ends = {"restart": restart, "report": report, "calibrate": calibrate}
        return run_folds(config, lambda each: _train(each, parts, time.monotonic(), **ends))
    with process_group(config.device) as processes:
        run = train_among(processes, config, parts, restart=restart, started=started)
        if calibrate and processes.is_main:
            leave_calibration(run.folder)
        if report and processes.is_main:
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
) -> Run:
    """Train in processes that have met; pause after `pause` if that is given.

    A run that pauses is evaluated and saved, and the next call resumes it. `started` is when its
    `minutes` began, by time.monotonic; now, unless given.
    """
    started = time.monotonic() if started is None else started
    parts = parts or gather_parts(config)[1]
    config = hold_out_for_choosing(config, parts.data, thresholds=parts.task is None)
    processes.check_same({"settings": to_dict(config)})  # before they get the main one's
    with ExitStack() as stack:

        def look(config: TrainConfig) -> tuple[TrainConfig, dict[str, Any] | None]:
            stack.enter_context(run_lock(config.out))
            config = settle_more(config, restart=restart)
            return config, check_folder(config, restart=restart)

        config, reached = processes.on_main(partial(look, config))
        if reached is not None and reached["steps"] != config.more_from:
            run = Run.load(config.out, reached)
            log.info("%s: %s", show(config.out), run)
            return run
        # What can't be run is refused here, before anything of an older run is touched.
        training = TrainingRun(config, processes, parts, pause=pause)
        processes.on_main(lambda: prepare_folder(config, restart=restart))
        return training.run(make_deadline(training, started))


class TrainingRun:
    """One process's part of a run, from opening the data to the model folder."""

    def __init__(
        self,
        config: TrainConfig,
        processes: Processes,
        parts: Parts | None = None,
        *,
        pause: Duration | None = None,
    ) -> None:
        self.config, self.processes = config, processes
        self.parts = parts or gather_parts(config)[1]
        self.saved = 0  # the step of the newest checkpoint
        self.unsaved: InputError | None = None  # why the last save failed
        self.best = BestTracker()
        self.fewshot: dict[str, float] = {}  # the last few-shot accuracies
        self.fewshot_step = 0
        check_batch(config.batch, processes.shard)
        self._open_data()
        self._build_model()
        self.trainer = make_trainer(
            config, self.model, self.task, self.images or 0, processes, self.parts
        )
        val_images = len(self.val_set) if self.val_set else 0
        self.intervals = plan_intervals(config, self.images or 0, val_images, pause)
        self.iterator = open_iterator(
            self.train_set,
            config,
            self.task.preprocess,
            self.parts.transform,
            together=self.task.needs_whole_batch,
        )

    def _open_data(self) -> None:
        config, make = self.config, self.parts.task or make_task
        labels = self.parts.need_labels(config)
        self.train_set, self.val_set = open_datasets(config, self.parts.data, labels=labels)
        self.opened = self.train_set  # before images are cached
        self.data_notes = check_trainable(self.train_set, self.val_set, labels=labels)
        self.data_notes += balance_notes(config.balance, self.train_set)
        self.data_notes += group_notes(config, self.parts.data, self.train_set, self.val_set)
        self.identity = {
            split: identify_data(each)
            for split, each in (("train", self.train_set), ("val", self.val_set))
            if each is not None
        }
        self.processes.check_same({"data": self.identity})
        self.images = count_images(self.train_set)
        """Images of an epoch; None where a stream does not say."""
        self.unreadable = UnreadableImages(self.train_set.name, self.images, config.max_unreadable)
        self.task: Task = make(config, self.train_set)
        if not isinstance(self.task, Task):
            raise InputError(f"the task must be a vitrail.Task, got {type(self.task).__name__}")
        if self.parts.metrics and self.val_set is None:
            raise InputError("metrics need validation images; give val_split, val_data or hold_out")
        self.task.metrics = self.parts.metrics

    @property
    def _sharded(self) -> bool:
        own = self.parts.task is not None or self.parts.model is not None  # their losses are tried
        return self.config.sharding == "full" and self.processes.count > 1 and not own

    def _weightless(self) -> AbstractContextManager[Any]:
        """Spare all processes but the first a model of their own, where it will be sharded."""
        fresh = self.config.weights is None and self.config.tune.mode == "all"
        spared = self._sharded and fresh and not self.processes.is_main
        return torch.device("meta") if spared else nullcontext()

    def _build_model(self) -> None:
        config, task = self.config, self.task
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            with self._weightless():
                start = task.start(self.parts.checkpoint)
                model = task.build(start)
            if self.parts.model is not None:
                model = self.parts.model(model)
                if not isinstance(model, Model):
                    kind = type(model).__name__
                    raise InputError(f"the model's function must return the model, got {kind}")
            adapt(model, config.tune)
        assert start.preprocess is not None
        self.provenance = start.provenance
        if isinstance(self.train_set, ImageDataset):
            self.train_set = keep_decoded(self.train_set, start.preprocess, config.cache)
        for module in model.modules():  # a model may have another in it
            if isinstance(module, Model):
                module.checkpointing = config.checkpointing
        # Sharding brings each process its part of the weights.
        self.model = model if self._sharded else model.to(self.processes.device)
        task.setup(start.preprocess, self.processes.device)
        if self.parts.task is not None or self.parts.model is not None:
            check_losses(self.model, task)
        self.monitor = None
        if config.fewshot.data:
            if self.parts.model is not None:
                raise InputError("fewshot can't measure a model with parts of your own")
            self.monitor = FewShotMonitor(config.fewshot, config.loader, self.processes.device)
        self.validator = (
            Validator(self.val_set, task, config, self.processes) if self.val_set else None
        )

    def run(self, deadline: Deadline | None = None) -> Run:
        """Train to the end, at the latest until a deadline."""
        config, self.deadline = self.config, deadline
        saved = self.processes.on_main(lambda: find_checkpoint(config, self.identity))
        start = saved.step if saved else 0
        if deadline is not None:
            self.trainer.schedule = deadline.follow(self.trainer.schedule)
        if saved and deadline is not None:
            self.intervals.total = saved.metadata["total"]
            deadline.resume(*saved.metadata["deadline"], steps=self.intervals.total - start)
        total = self.intervals.total
        self.cost = CostMeter(config.out, self.processes, resumes=saved is not None)
        with (
            MetricsLogger(
                config.out,
                total=total,
                step=start,
                every=config.log_every,
                loggers=self.parts.loggers,
                quiet=not self.processes.is_main,
                saved=saved.metadata["metrics"] if saved else None,
            ) as self.metrics,
            listen() as self.signals,
        ):
            for note in describe_run(self, start, deadline):
                self.metrics.note(note)
            if saved:
                self._resume(saved)
            elif isinstance(self.train_set, ImageDataset):
                self._fit_head(self.train_set)
            self._call("on_start", start)
            most = total if deadline is None else deadline.most
            self.loader = self.iterator.open(most, self.processes.shard)
            self.waited = 0.0
            with closing(batch for batch in self.loader) as made:  # and so its workers, at any end
                ending, step = fit(
                    self.trainer,
                    made,
                    self.intervals,
                    self.signals,
                    start=start,
                    deadline=deadline,
                    ahead=0 if self.parts.callbacks else 1,  # they see each step when it is taken
                    record=self._record,
                    evaluate=self._evaluate,
                    save=self._save,
                    blame=self._blame,
                )
            if ending != "stopped":
                return self._finish(ending, step)
            if self.unsaved is not None:
                raise self.unsaved
            self.metrics.note(
                f"stopped at step {step:,} of {self.intervals.total:,}; run the same command again "
                "to resume"
            )
        raise Stopped(self.signals.number or signal.SIGTERM, step)  # not an error, to the log

    def _call(self, event: str, *arguments: Any) -> None:
        """Tell the callbacks."""
        for callback in self.parts.callbacks:
            getattr(callback, event)(self, *arguments)

    def _fit_head(self, images: ImageDataset) -> None:
        """Begin with a head that is fitted to frozen features, where the settings ask for it."""
        said = self.task.fit_head(self.model, images)
        if said is not None:
            self.metrics.note(said)
            if self.trainer.ema is not None:
                self.trainer.ema = EMA(self.model, self.config.ema)

    def _resume(self, saved: SavedCheckpoint) -> None:
        load_checkpoint(saved, self.trainer, micro_batch=self.config.micro_batch)
        self.saved = saved.step
        self.iterator.cursor = Cursor.load(saved.metadata.get("cursor", [saved.step]))
        self.best = BestTracker.load(saved.metadata["best"])
        if saved.step == self.config.more_from:
            self.best = replace(self.best, worse=0)  # it may have ended because it got no better
        self.fewshot_step, self.fewshot = saved.metadata.get("fewshot", (0, {}))
        self.unreadable.note(UnreadableImage(*each[:3]) for each in saved.metadata["unreadable"])

    def _save(self, step: int) -> None:
        """Save the run; if that fails, it is remembered, and training continues."""
        self.metrics.sync()
        cursor = join_cursors(self.processes.gather(self.iterator.cursor))

        def metadata() -> dict[str, Any]:
            return {
                **identify_run(self.config),
                "data": self.identity,
                "total": self.intervals.total,
                "deadline": self.deadline and (self.deadline.reached, self.deadline.spent),
                "best": asdict(self.best),
                "fewshot": [self.fewshot_step, self.fewshot],
                "unreadable": [astuple(image) for image in self.unreadable.bad.values()],
                "metrics": self.metrics.metrics_state(),
                "cursor": cursor.save(),
            }

        try:
            save_checkpoint(self.config.out, step, self.trainer, metadata, self.processes)
            self.cost.write()
            if self.config.keep == "last" or self.best.best is None:
                with self._averaged():
                    self._write_model()  # so that a run that is stopped has one
        except InputError as error:
            self.unsaved = error
            log.warning("%s; the last good one is of step %d", error, self.saved)
        else:
            self.unsaved, self.saved = None, step
            self._call("on_save", step)

    def _record(self, taken: StepResult, batch: Batch) -> None:
        self.iterator.advance()
        self.metrics.total = self.intervals.total
        if taken.bad:  # every process learns what all of them met, so that they refuse together
            self.unreadable.note(
                image for each in self.processes.gather(batch.bad) for image in each
            )
        values = {"train/loss": taken.loss, "lr": taken.lr, "norm": taken.norm}
        if isinstance(self.train_set, ImageDataset):  # a stream may know its length one day only
            epoch = taken.step * self.config.batch / len(self.train_set)
            values = {"epoch": epoch, **values}
        waited, self.waited = self.loader.waited - self.waited, self.loader.waited
        self.metrics.train(taken.step, values, images=self.config.batch, waited=waited)
        self._call("on_step", taken)

    def _evaluate(self, step: int) -> bool:
        """Evaluate what is due, once a step; tell whether the run gets no better."""
        intervals = self.intervals
        if self.monitor is not None and intervals.due(intervals.fewshot, step):
            self._measure_fewshot(step)
        if self.validator is None or not intervals.due(intervals.evaluate, step):
            return False
        if self.best.evaluated != step:
            with self._averaged():
                found = self.validator.evaluate(
                    self.model, self.signals, micro_batch=self.trainer.micro_batch
                )
                self.best = self.best.after(step, found)
                drawn = self.validator.draw(self.model, self.config.out / RECONSTRUCTIONS)
                if drawn is not None:
                    self.metrics.image(step, "val/predictions", drawn)
                if self.config.keep == "best" and self.best.worse == 0:
                    self._write_model()
            self.metrics.evaluation(
                step, {f"val/{name}": value for name, value in found.values.items()}
            )
            self._call("on_evaluation", step, found.values)
        return 0 < self.config.patience <= self.best.worse

    def _measure_fewshot(self, step: int) -> None:
        """Measure few-shot accuracy of the weights that are evaluated, once a step."""
        if self.fewshot_step == step or self.monitor is None:
            return
        measure = self.monitor.measure
        with self._averaged():
            tensors = full_state_dict(self.model)
            self.fewshot = self.processes.on_main(
                lambda: measure(self.task.to_checkpoint(self.model, tensors, None, None))
            )
        self.fewshot_step = step
        self.metrics.evaluation(step, self.fewshot)

    def _averaged(self) -> AbstractContextManager[None]:
        """Put the averaged weights into the model, where there are any."""
        ema = self.trainer.ema
        return ema.applied(self.model) if ema is not None else nullcontext()

    def _blame(self, step: int) -> str:
        """List the images of a global batch in a file, and say where."""
        path = self.config.out / f"{BAD_BATCH}{step + 1}.txt"
        cursor = join_cursors(self.processes.gather(self.iterator.cursor))

        def write() -> None:
            names = dict.fromkeys(self.iterator.names(cursor))
            write_whole(path, "".join(f"{printable(name)}\n" for name in names))

        try:
            self.processes.on_main(write)
        except InputError as error:
            return str(error)
        return f"its images are listed in {show(path)}"

    def _finish(self, ending: Ending, step: int) -> Run:
        """Write the model folder and the result, unless the run only pauses."""
        config, best, folder = self.config, self.best, self.config.out
        if ending == "paused":
            if self.unsaved is not None:
                raise self.unsaved
            run = make_run(folder, ending, step, best.last)
            self.metrics.note(str(run))
            return run
        self._call("on_end", step)
        kept = best.last
        if config.keep == "best" and best.best is not None:
            kept = best.best  # and its model was written when it was found
        else:
            with self._averaged():
                self._write_model()
        chooses = config.keep == "best" or config.patience > 0 or bool(kept and kept.thresholds)
        chosen_on = self.val_set.name if chooses and self.val_set else None
        for unreadable in (self.unreadable, self.validator and self.validator.unreadable):
            if unreadable and unreadable.bad:
                log.warning("%s", unreadable.summary())
        if self.unsaved is not None:
            raise SaveError(f"{self.unsaved}; the model is in {folder / MODEL}")
        facts = self.cost.tell(self, step)
        run = make_run(folder, ending, step, kept, chosen_on, self.fewshot, **facts)
        text = json.dumps({**asdict(run), "folder": "."}, indent=1) + "\n"
        self.processes.on_main(lambda: write_whole(folder / RESULT, text))
        self.metrics.note(str(run))
        return run

    def _write_model(self) -> None:
        tensors = full_state_dict(self.model)
        evaluated = self.best.best if self.config.keep == "best" else self.best.last

        def write() -> None:
            task, out = self.task, self.config.out
            kept = task.to_checkpoint(self.model, tensors, self.provenance, evaluated)
            if self.parts.model is not None:
                kept = replace(kept, changed_by=self.config.parts.model)
            save_folder(kept, out / MODEL)
            if extra := task.extra_tensors(tensors):
                write_whole(out / MIM_HEAD, serialize(extra))

        self.processes.on_main(write)
