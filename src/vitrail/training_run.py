"""One process's part of a run: data, model, optimizer and checkpoint, the steps, the model folder.

`run.py` starts it; `training/loop.py` takes its steps.
"""

from __future__ import annotations

import logging
import signal
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, astuple, replace
from functools import cached_property
from typing import Any

from safetensors.torch import save as serialize

from vitrail.config import Duration, InputError
from vitrail.data.batches import Batch, UnreadableImage, check_batch
from vitrail.data.cache import keep_decoded
from vitrail.data.checks.trainable import check_trainable
from vitrail.data.class_balance import balance_notes
from vitrail.data.dataset import ImageDataset
from vitrail.data.streaming import Cursor, join_cursors
from vitrail.data.trained_on import TrainedOn, join_records, record_images
from vitrail.data.unreadable import UnreadableImages
from vitrail.distributed import Processes
from vitrail.evaluation.probes.fewshot_monitor import FewShotMonitor
from vitrail.files import write_whole
from vitrail.models.init import seeded
from vitrail.signals import Stopped, listen
from vitrail.tasks import make_task
from vitrail.text import printable, show
from vitrail.training.best_tracker import BestTracker, EvalResult, load_result
from vitrail.training.checkpoints.checkpoint_files import SavedCheckpoint, SaveError
from vitrail.training.checkpoints.resume import find_checkpoint, load_checkpoint, save_checkpoint
from vitrail.training.checkpoints.run_folder import (
    BAD_BATCH,
    MIM_HEAD,
    MODEL,
    RECONSTRUCTIONS,
    TRAINED_ON,
    identify_run,
    prepare_folder,
    write_result,
)
from vitrail.training.checkpoints.sharding import full_state_dict
from vitrail.training.logging.first_screen import describe_run
from vitrail.training.logging.metrics_logger import MetricsLogger
from vitrail.training.logging.run_facts import CostMeter
from vitrail.training.loop import StepResult, StopRequested, Use, fit
from vitrail.training.optimization.deadline import Deadline
from vitrail.training.optimization.ema import EMA
from vitrail.training.parts import OwnState, Parts, gather_parts
from vitrail.training.run_data import (
    divide_for_choosing,
    group_notes,
    identify_data,
    open_datasets,
)
from vitrail.training.run_result import Ending, Run, make_run
from vitrail.training.task import Task
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import count_images, open_iterator
from vitrail.training.trainer_setup import build_model, make_trainer, plan_intervals
from vitrail.training.validation import Validator
from vitrail.weights.model_folder import save_folder
from vitrail.weights.trained_on_record import extend_record

log = logging.getLogger("vitrail")


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
        self.scored: EvalResult | None = None
        """How the weights that are kept do on images that chose nothing, where others choose."""
        check_batch(config.batch, processes.shard)
        # What parts of one's own begin with may be drawn.
        with seeded(config.seed, processes.device if self.parts.draw else None):
            self._open()
        val_images = len(self.val_set) if self.val_set else 0
        self.intervals = plan_intervals(config, self.images or 0, val_images, pause)
        self.iterator = open_iterator(
            self.train_set,
            config,
            self.task.preprocess,
            self.parts.transform,
            together=self.task.needs_whole_batch,
        )

    def _open(self) -> None:
        config, processes = self.config, self.processes
        self._open_data()
        self._build_model()
        self.trainer = make_trainer(
            config, self.model, self.task, self.images or 0, processes, self.parts
        )
        self.state = OwnState(self.task, self.parts.callbacks)

    def _open_data(self) -> None:
        config, make = self.config, self.parts.task or make_task
        labels = self.parts.need_labels(config)
        self.train_set, self.val_set = open_datasets(config, self.parts.data, labels=labels)
        self.group_notes = group_notes(config, self.parts.data, self.train_set, self.val_set)
        self.opened = self.seen = self.train_set  # before images are cached
        """What the weights come from: trained on, or chosen by where other images are scored."""
        self.score_set: ImageDataset | None = None
        if isinstance(self.train_set, ImageDataset):
            own = self.parts.task is None
            parts = divide_for_choosing(config, self.parts.data, self.train_set, thresholds=own)
            if parts is not None:
                self.score_set, (self.train_set, self.val_set) = self.val_set, parts
                self.opened = self.train_set
        self.data_notes = check_trainable(self.train_set, self.val_set, labels=labels)
        self.data_notes += balance_notes(config.balance, self.train_set)
        self.data_notes += self.group_notes
        self.identity = {
            split: identify_data(each)
            for split, each in (
                ("train", self.train_set),
                ("val", self.val_set),
                ("score", self.score_set),
            )
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

    def _build_model(self) -> None:
        config, device = self.config, self.processes.device
        self.model, start = build_model(config, self.task, self.parts, self.processes)
        self.provenance, self.before = start.provenance, start.trained_on
        if isinstance(self.train_set, ImageDataset):
            self.train_set = keep_decoded(self.train_set, self.task.preprocess, config.cache)
        self.monitor = None
        if config.fewshot.data:
            if self.parts.model is not None:
                raise InputError("fewshot can't measure a model with parts of your own")
            self.monitor = FewShotMonitor(config.fewshot, config.loader, device)
        self.validator = (
            Validator(self.val_set, self.task, config, self.processes) if self.val_set else None
        )
        self.scorer = (
            Validator(self.score_set, self.task, config, self.processes) if self.score_set else None
        )

    def run(
        self, deadline: Deadline | None = None, *, restart: bool = False, again: bool = False
    ) -> Run:
        """Train to the end, at the latest until a deadline; `restart` begins again.

        Of a finished run only what can't be read is written `again`. Where an older run goes on,
        nothing of it is touched until all that could refuse has been read and opened.
        """
        config, self.deadline = self.config, deadline

        def prepare() -> None:
            prepare_folder(config, restart=restart, again=again)

        def look() -> SavedCheckpoint | None:
            if restart or (saved := find_checkpoint(config, self.identity)) is None:
                prepare()
                return None
            return saved

        saved = self.processes.on_main(look)
        start = saved.step if saved else 0
        if saved:
            self._resume(saved)
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
            if saved:
                self.processes.on_main(prepare)
            for note in describe_run(self, start, deadline):
                self.metrics.note(note)
            if not saved and isinstance(self.train_set, ImageDataset):
                self._fit_head(self.train_set)
            self.state.warn(self.model)
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

    def _call(self, event: Use, step: int, *arguments: Any) -> None:
        """Tell the callbacks."""
        with self.trainer.drawing(step, event):
            for callback in self.parts.callbacks:
                getattr(callback, event)(self, *arguments or (step,))

    def _fit_head(self, images: ImageDataset) -> None:
        """Begin with a head that is fitted to frozen features, where the settings ask for it."""
        said = self.task.fit_head(self.model, images)
        if said is not None:
            self.metrics.note(said)
            if self.trainer.ema is not None:
                self.trainer.ema = EMA(self.model, self.config.ema)

    def _resume(self, saved: SavedCheckpoint) -> None:
        load_checkpoint(saved, self.trainer, micro_batch=self.config.micro_batch, state=self.state)
        self.saved = saved.step
        self.iterator.cursor = Cursor.load(saved.metadata.get("cursor", [saved.step]))
        self.best = BestTracker.load(saved.metadata["best"])
        if saved.step == self.config.more_from:
            self.best = replace(self.best, worse=0)  # it may have ended because it got no better
        self.fewshot_step, self.fewshot = saved.metadata.get("fewshot", (0, {}))
        self.scored = load_result(saved.metadata.get("scored"))
        self.unreadable.note(UnreadableImage(*each[:3]) for each in saved.metadata["unreadable"])

    def _save(self, step: int) -> None:
        """Save the run; if that fails, it is remembered, and training continues."""
        self.metrics.sync()
        self.state.warn(self.model)
        cursor = join_cursors(self.processes.gather(self.iterator.cursor))

        def metadata() -> dict[str, Any]:
            return {
                **identify_run(self.config),
                "data": self.identity,
                "total": self.intervals.total,
                "deadline": self.deadline and (self.deadline.reached, self.deadline.spent),
                "best": asdict(self.best),
                "fewshot": [self.fewshot_step, self.fewshot],
                "scored": self.scored,
                "unreadable": [astuple(image) for image in self.unreadable.bad.values()],
                "metrics": self.metrics.metrics_state(),
                "cursor": cursor.save(),
            }

        try:
            save_checkpoint(
                self.config.out, step, self.trainer, metadata, self.processes, self.state
            )
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
        self.metrics.train(
            taken.step, values, images=self.config.batch, waited=waited, ended=taken.ended
        )
        self._call("on_step", taken.step, taken)

    def _evaluate(self, step: int) -> bool:
        """Evaluate what is due, once a step; tell whether the run gets no better."""
        intervals = self.intervals
        if self.monitor is not None and intervals.due(intervals.fewshot, step):
            self._measure_fewshot(step)
        if self.validator is None or not intervals.due(intervals.evaluate, step):
            return False
        if self.best.evaluated != step:
            with self._averaged(), self.trainer.drawing(step, "evaluation"):
                found = self.validator.evaluate(
                    self.model, self.signals, micro_batch=self.trainer.micro_batch
                )
                self.best = self.best.after(step, found)
                drawn = self.validator.draw(self.model, self.config.out / RECONSTRUCTIONS)
                if drawn is not None:
                    self.metrics.image(step, "val/predictions", drawn)
                if self.config.keep == "best" and self.best.worse == 0:
                    self._write_model()
                    self._score()
            self.metrics.evaluation(
                step, {f"val/{name}": value for name, value in found.values.items()}
            )
            self._call("on_evaluation", step, step, found.values)
        return 0 < self.config.patience <= self.best.worse

    def _score(self) -> None:
        """Measure the weights that are kept on images that chose nothing, where others choose."""
        if self.scorer is not None:
            self.scored = self.scorer.evaluate(
                self.model, self.signals, micro_batch=self.trainer.micro_batch
            )

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
                try:
                    self._score()
                except StopRequested:  # the last checkpoint is saved
                    raise Stopped(self.signals.number or signal.SIGTERM, step) from None
        for unreadable in (self.unreadable, self.validator and self.validator.unreadable):
            if unreadable and unreadable.bad:
                log.warning("%s", unreadable.summary())
        if self.unsaved is not None:
            raise SaveError(f"{self.unsaved}; the model is in {folder / MODEL}")
        facts = self.cost.tell(self, step)
        names = {"evaluated_on": self._evaluated_on, "chosen_on": self._chosen_on}
        run = make_run(folder, ending, step, self.scored or kept, self.fewshot, **names, **facts)
        values = {**asdict(run), "folder": "."}
        self.processes.on_main(lambda: write_result(folder, values))
        self.metrics.note(str(run))
        return run

    @property
    def _evaluated_on(self) -> str | None:
        """The name of the images that the result is of."""
        held = self.score_set or self.val_set
        return None if held is None else held.name

    @property
    def _chosen_on(self) -> str | None:
        """The name of the images that choose among evaluations or thresholds, where any do."""
        evaluated = self.best.best if self.config.keep == "best" else self.best.last
        chooses = self.config.keep == "best" or self.config.patience > 0
        chooses = chooses or bool(evaluated and evaluated.thresholds)
        return self.val_set.name if chooses and self.val_set else None

    @cached_property
    def trained_on(self) -> TrainedOn:
        """What the model is trained on and what is held out, with what its weights were before."""
        place = self.config.out / TRAINED_ON
        try:
            held = self.score_set or self.val_set
            chosen_on = self._chosen_on if self.score_set is None else None
            own = record_images(self.seen, [held] if held else [], place, chosen_on or "")
        except OSError as error:
            raise InputError(f"{place}: could not be saved: {error.strerror or error}") from None
        record = extend_record(self.before, own, self.provenance)
        teacher = getattr(self.task, "teach", None)  # its answers are of images that it knows
        both = join_records([record, getattr(teacher, "trained_on", None)])
        assert both is not None
        return both

    def _write_model(self) -> None:
        tensors = full_state_dict(self.model)
        evaluated = self.best.best if self.config.keep == "best" else self.best.last

        def write() -> None:
            task, out = self.task, self.config.out
            kept = task.to_checkpoint(self.model, tensors, self.provenance, evaluated)
            kept = replace(kept, trained_on=self.trained_on)
            if self.parts.model is not None:
                kept = replace(kept, changed_by=self.config.parts.model)
            save_folder(kept, out / MODEL, own=True)
            if extra := task.extra_tensors(tensors):
                write_whole(out / MIM_HEAD, serialize(extra))

        self.processes.on_main(write)
