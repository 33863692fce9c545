"""A run from opening the data to the model folder, which explains itself.

    RUN/config.yaml          all settings, as they were resolved
    RUN/metrics.jsonl        what was measured, the same bytes however often the run was stopped
    RUN/model/               the model folder, which every other command takes
    RUN/checkpoints/step-…/  what a restart goes on from: the newest two
    RUN/result.json          what a finished run reached
    RUN/mim_head.safetensors, reconstructions.png of masked-patches and mae: the heads; seen
    RUN/bad_batch_STEP.txt   the images of a step whose loss was not finite
    RUN/log.txt, speed.jsonl, tensorboard/

The same call again goes on where the last one stopped; a finished run only says what it reached.
"""

from __future__ import annotations

import io
import json
import logging
import signal
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, astuple, replace
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save as serialize

from vitrail.config import Duration, InputError, to_dict
from vitrail.data.batches import Batch, EvalBatches, UnreadableImage
from vitrail.data.cache import keep_decoded
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.datasets.open import check_trainable, notes
from vitrail.data.loader import Loader
from vitrail.data.streaming import Cursor
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.data.unreadable import UnreadableImages
from vitrail.distributed import Processes
from vitrail.evaluation.best_tracker import BestTracker, EvalResult
from vitrail.files import write_whole
from vitrail.models.model import Model
from vitrail.run.objective import Exam
from vitrail.run.prediction import choose_objective
from vitrail.run.result import Ending, Run, describe, make_run
from vitrail.signals import Stopped, listen
from vitrail.text import printable
from vitrail.training.checkpoints.checkpoint_files import (
    SavedCheckpoint,
    SaveError,
)
from vitrail.training.checkpoints.resume import find_checkpoint, load_checkpoint, save_checkpoint
from vitrail.training.checkpoints.run_folder import (
    BAD_BATCH,
    MIM_HEAD,
    MODEL,
    RECONSTRUCTIONS,
    RESULT,
    identify_run,
)
from vitrail.training.checkpoints.sharding import full_state_dict, unsharded
from vitrail.training.logging.metrics_logger import MetricsLogger
from vitrail.training.loop import StepResult, StopRequested, fit
from vitrail.training.peft import adapt
from vitrail.training.run_data import open_datasets
from vitrail.training.start import make_trainer
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import open_feed
from vitrail.weights.checkpoint import save_folder

log = logging.getLogger("vitrail")


class Session:
    """One process's part of a run, from opening the data to the model folder."""

    def __init__(
        self, config: TrainConfig, processes: Processes, *, pause: Duration | None = None
    ) -> None:
        self.config, self.processes = config, processes
        self.train_set, self.val_set = open_datasets(config)
        self.sets = {
            split: _identify(each)
            for split, each in (("train", self.train_set), ("val", self.val_set))
            if each is not None
        }
        processes.check_same({"settings": to_dict(config), "sets": self.sets})
        self.objective = choose_objective(config, self.train_set.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            bundle = self.objective.start()
            model = self.objective.build(bundle)
            adapt(model, config.tune)
        self.spec, self.provenance = bundle.spec, bundle.provenance
        assert bundle.preprocess is not None
        self.preprocess: Preprocess = bundle.preprocess
        if isinstance(self.train_set, ImageDataset):
            self.train_set = keep_decoded(self.train_set, self.preprocess, config.cache)
        self.images = count_images(self.train_set)
        """Of an epoch; None where a stream does not say."""
        for module in model.modules():  # a model may have another in it
            if isinstance(module, Model):
                module.checkpointing = config.checkpointing
        self.model = model.to(processes.device)
        task = self.objective.make_task(self.preprocess, processes.device)
        self.trainer, rhythm = make_trainer(config, self.model, task, self.images or 0, processes)
        if pause is not None:
            size = {"images": self.images or 0, "batch": config.batch, "total": rhythm.total}
            rhythm = replace(rhythm, pause=max(1, pause.steps(**size)))
        self.rhythm = rhythm
        self.feed = open_feed(self.train_set, config, self.preprocess)
        self.standing = BestTracker()
        self.saved = 0  # the step of the newest state
        self.unsaved: InputError | None = None  # why the last save failed
        self.ledger = UnreadableImages(self.train_set.name, self.images, config.max_unreadable)
        self.val_ledger = UnreadableImages(self.val_set.name if self.val_set else "", None)

    def run(self) -> Run:
        """Train to the end."""
        config, total = self.config, self.rhythm.total
        saved = self.processes.on_main(lambda: find_checkpoint(config, self.sets))
        start = saved.step if saved else 0
        with (
            MetricsLogger(
                config.out,
                total=total,
                step=start,
                every=config.log_every,
                loggers=config.loggers,
                quiet=not self.processes.is_main,
                saved=saved.metadata["metrics"] if saved else None,
            ) as self.journal,
            listen() as self.signals,
        ):
            for note in self._notes(start):
                self.journal.note(note)
            if saved:
                self._load(saved)
            self.loader = self.feed.open(total, self.processes.shard)
            self.waited = 0.0
            with closing(batch for batch in self.loader) as made:  # and so its workers, at any end
                ending, step = fit(
                    self.trainer,
                    made,
                    self.rhythm,
                    self.signals,
                    start=start,
                    record=self._record,
                    evaluate=self._evaluate,
                    save=self._save,
                    blame=self._blame,
                )
            if ending != "stopped":
                return self._finish(ending, step)
            if self.unsaved is not None:
                raise self.unsaved
            self.journal.note(f"stopped at step {step:,}; the same call goes on from there")
        raise Stopped(self.signals.number or signal.SIGTERM, step)  # no error, to the journal

    def _notes(self, start: int) -> list[str]:
        config, found = self.config, [*notes(self.train_set)]
        found += check_trainable(self.train_set, self.val_set)
        if start:
            found.append(f"resuming {config.out} at step {start:,} of {self.rhythm.total:,}")
        parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        count = "unknown" if self.images is None else f"{self.images:,}"
        found.append(
            f"{self.spec}: {parameters:,} trained parameters, {count} "
            f"images of {len(self.train_set.classes):,} classes, {self.rhythm.total:,} steps of "
            f"{config.batch} ({self.trainer.micro_batch} at a time)"
        )
        if (old := config.ema**self.rhythm.total) > 0.5:
            part = f"an EMA decay of {config.ema} is still {old:.0%} the starting weights"
            found.append(f"{part} after {self.rhythm.total:,} steps; a smaller one forgets sooner")
        return found

    def _load(self, saved: SavedCheckpoint) -> None:
        load_checkpoint(saved, self.trainer, micro_batch=self.config.micro_batch)
        self.saved = saved.step
        self.feed.place = Cursor(*saved.metadata.get("place", (saved.step,)))
        self.standing = BestTracker.load(saved.metadata["standing"])
        self.ledger.note(UnreadableImage(*each) for each in saved.metadata["bad"])

    def _save(self, step: int) -> None:
        """Save the run; where that fails, it is remembered, and training goes on."""
        self.journal.sync()

        def metadata() -> dict[str, Any]:
            return {
                **identify_run(self.config),
                "data": self.sets,
                "total": self.rhythm.total,
                "standing": asdict(self.standing),
                "bad": [astuple(image) for image in self.ledger.bad.values()],
                "metrics": self.journal.metrics_state(),
                "place": astuple(self.feed.place),
            }

        try:
            save_checkpoint(self.config.out, step, self.trainer, metadata, self.processes)
            if self.config.keep == "last" or self.standing.best is None:
                with self._averaged():
                    self._write_model()  # so that a run that is stopped has one
        except InputError as error:
            self.unsaved = error
            log.warning("%s; the last good one is of step %d", error, self.saved)
        else:
            self.unsaved, self.saved = None, step

    def _record(self, taken: StepResult, batch: Batch) -> None:
        self.feed.advance()
        self.ledger.note(self._gather(batch.bad) if taken.bad else ())
        values = {"train/loss": taken.loss, "lr": taken.lr, "norm": taken.norm}
        if isinstance(
            self.train_set, ImageDataset
        ):  # a stream may know its length one day, not another
            epoch = taken.step * self.config.batch / len(self.train_set)
            values = {"epoch": epoch, **values}
        waited, self.waited = self.loader.waited - self.waited, self.loader.waited
        self.journal.train(taken.step, values, images=self.config.batch, waited=waited)

    def _gather(self, bad: Sequence[UnreadableImage]) -> Sequence[UnreadableImage]:
        """Give every process what all of them met, so that they refuse it together."""
        return [image for each in self.processes.gather(bad) for image in each]

    def _evaluate(self, step: int) -> bool:
        """Measure on the validation split, once a step; tell whether the run gets no better."""
        if self.val_set is None:
            return False
        if self.standing.evaluated != step:
            with self._averaged():
                found = self._measure(self.val_set)
                self.standing = self.standing.after(step, found)
                self._draw(self.val_set, step)
                if self.config.keep == "best" and self.standing.worse == 0:
                    self._write_model()
            values = {f"val/{name}": value for name, value in found.values.items()}
            self.journal.evaluation(step, values)
        return 0 < self.config.patience <= self.standing.worse

    def _measure(self, source: ImageDataset) -> EvalResult:
        config, processes = self.config, self.processes
        batches = EvalBatches(source, self.preprocess, batch=config.batch, shard=processes.shard)
        loader = Loader(batches.__getitem__, range(len(batches)), config.loader)
        with closing(self._until_stopped(loader)) as made, unsharded(self.model):
            exam = Exam(
                batches=made,
                preprocess=self.preprocess,
                device=processes.device,
                micro=self.trainer.micro_batch,
                total=processes.sum,
                note=self.val_ledger.note,
            )
            return self.objective.measure(self.model, exam)

    def _draw(self, source: ImageDataset, step: int) -> None:
        """Show what the model makes of a few held-out images, where that can be seen."""
        with unsharded(self.model):
            if not self.processes.is_main:
                return
            drawn = self.objective.image(self.model, source, self.preprocess, self.processes.device)
        if drawn is not None:
            self.journal.image(step, "val/predictions", drawn)
            Image.fromarray(drawn).save(png := io.BytesIO(), "png")
            try:
                write_whole(self.config.out / RECONSTRUCTIONS, png.getvalue())
            except InputError as error:  # no run stops for an image
                log.warning("%s", error)

    def _until_stopped(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        for batch in batches:
            if self.processes.any(self.signals.number > 0):
                raise StopRequested
            yield batch

    def _averaged(self) -> AbstractContextManager[None]:
        """Put the averaged weights into the model, where there are any."""
        ema = self.trainer.ema
        return ema.applied(self.model) if ema is not None else nullcontext()

    def _blame(self, step: int) -> str:
        """List the images of a global batch in a file, and say where."""
        path = self.config.out / f"{BAD_BATCH}{step + 1}.txt"

        def write() -> None:
            names = dict.fromkeys(self.feed.names())
            write_whole(path, "".join(f"{printable(name)}\n" for name in names))

        try:
            self.processes.on_main(write)
        except InputError as error:
            return str(error)
        return f"its images are listed in {path}"

    def _finish(self, ending: Ending, step: int) -> Run:
        """Write the model folder and the result, unless the run only rests; say what it reached."""
        standing, folder = self.standing, self.config.out
        if ending == "paused":
            if self.unsaved is not None:
                raise self.unsaved
            result = make_run(folder, ending, step, standing.last)
            self.journal.note(describe(result))
            return result
        kept = standing.last
        if self.config.keep == "best" and standing.best is not None:
            kept = standing.best  # and its model was written when it was found
        else:
            with self._averaged():
                self._write_model()
        for ledger in (self.ledger, self.val_ledger):
            if ledger.bad:
                log.warning("%s", ledger.summary())
        if self.unsaved is not None:
            raise SaveError(f"{self.unsaved}; the model is in {folder / MODEL}")
        result = make_run(folder, ending, step, kept)
        text = json.dumps({**asdict(result), "folder": "."}, indent=1) + "\n"
        self.processes.on_main(lambda: write_whole(folder / RESULT, text))
        self.journal.note(describe(result))
        return result

    def _write_model(self) -> None:
        tensors = full_state_dict(self.model)

        def write() -> None:
            kept = self.objective.keep(self.model, tensors, self.preprocess, self.provenance)
            save_folder(kept, self.config.out / MODEL)
            if apart := self.objective.apart(tensors):
                write_whole(self.config.out / MIM_HEAD, serialize(apart))

        self.processes.on_main(write)


def count_images(data: ImageDataset | ImageStream) -> int | None:
    """Count the images of an epoch; None where a stream does not say."""
    return len(data) if isinstance(data, ImageDataset) else data.length


def _identify(data: ImageDataset | ImageStream) -> dict[str, Any]:
    """Say by what a resumed run knows its images again; of a stream, by name and classes."""
    if isinstance(data, ImageDataset):
        return {"name": data.name, "images": len(data), "hash": data.fingerprint()}
    return {"name": data.name, "images": 0, "hash": repr(data.classes)}
