"""The one job: a configuration becomes a trained model in a folder that explains itself.

    RUN/config.yaml          all settings, as they were resolved
    RUN/metrics.jsonl        what was measured, the same bytes however often the run was stopped
    RUN/model/               the model folder, which every other command takes
    RUN/states/step-…/       what a restart goes on from: the newest two
    RUN/result.json          what a finished run reached
    RUN/bad_batch_STEP.txt   the pictures of a step whose loss was not finite
    RUN/log.txt, speed.jsonl, tensorboard/

The same call again goes on where the last one stopped; a finished run only says what it reached.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vitrail.config import InputError, to_dict
from vitrail.data.batches import ALONE, BadPicture, Batch, EvalBatches, Shard, TrainBatches
from vitrail.data.cache import keep_decoded
from vitrail.data.ledger import Ledger
from vitrail.data.loader import Loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Source
from vitrail.data.sources.names import printable
from vitrail.data.sources.open import check_trainable, notes
from vitrail.evaluate.accuracy import Accuracy, measure
from vitrail.evaluate.standing import Standing
from vitrail.models import build
from vitrail.train.adapt import adapt, merge
from vitrail.train.claim import claim
from vitrail.train.distributed import Processes, join
from vitrail.train.folder import BAD_BATCH, MODEL, RESULT, STATES, prepare_folder, write_whole
from vitrail.train.journal import METRICS, Journal
from vitrail.train.loop import StopAsked, Taken, fit
from vitrail.train.resume import check_sets, load_run, save_run
from vitrail.train.settings import FREE, TrainConfig
from vitrail.train.sharding import gathered, whole_state
from vitrail.train.signals import Stopped, listen
from vitrail.train.start import make_trainer, open_sets, start_weights
from vitrail.train.state import Saved, SaveError, newest_state
from vitrail.weights.checkpoint import Bundle, save_folder

__all__ = ["FREE", "Run", "Session", "TrainConfig", "describe", "train"]

log = logging.getLogger("vitrail")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run reached."""

    folder: Path
    ending: Literal["finished", "converged"]
    steps: int
    top1: float | None
    """On the validation split, of the weights that were kept."""
    top5: float | None
    loss: float | None
    pictures: int
    """Validation pictures that were measured."""
    skipped: int
    """Validation pictures that could not be read."""


def train(config: TrainConfig, *, restart: bool = False) -> Run:
    """Train a model as configured, from where an earlier call stopped; `restart` begins again."""
    with ExitStack() as stack:
        processes = stack.enter_context(join(config.device))

        def begin() -> dict[str, Any] | None:
            stack.enter_context(claim(config.out))
            return prepare_folder(config, restart=restart)

        reached = processes.first_does(begin)
        if reached is not None:
            result = Run(**{**reached, "folder": config.out})
            log.info("%s: %s", config.out, describe(result))
            return result
        return Session(config, processes).run()


def describe(result: Run) -> str:
    """Say what a run reached in one line."""
    said = f"{result.ending} after {result.steps:,} steps"
    if result.top1 is None:
        return said
    total = result.pictures + result.skipped
    on = f"{result.pictures:,} of {total:,}" if result.skipped else f"{total:,}"
    return f"{said}, top-1 {result.top1:.2%} on {on} pictures"


class Session:
    """One process's part of a run, from opening the data to the model folder."""

    def __init__(self, config: TrainConfig, processes: Processes) -> None:
        self.config, self.processes = config, processes
        self.train_set, self.val_set = open_sets(config)
        self.sets = {
            split: {"name": each.name, "pictures": len(each), "hash": each.fingerprint()}
            for split, each in (("train", self.train_set), ("val", self.val_set))
            if each is not None
        }
        processes.check_same({"settings": to_dict(config), "sets": self.sets})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            bundle = start_weights(config, len(self.train_set.classes))
            model = bundle.build()
            adapt(model, config.tune)
        self.spec, self.provenance = bundle.spec, bundle.provenance
        assert bundle.preprocess is not None
        self.preprocess: Preprocess = bundle.preprocess
        self.train_set = keep_decoded(self.train_set, self.preprocess, config.cache)
        model.checkpointing = config.checkpointing
        self.model = model.to(processes.device)
        self.trainer, self.rhythm = make_trainer(
            config, self.model, self.train_set, self.preprocess, processes
        )
        self.standing = Standing()
        self.saved = 0  # the step of the newest state
        self.unsaved: InputError | None = None  # why the last save failed
        self.ledger = Ledger(self.train_set.name, len(self.train_set), config.allow_bad)
        self.val_ledger = Ledger(self.val_set.name if self.val_set else "", None)

    def run(self) -> Run:
        """Train to the end."""
        config, total = self.config, self.rhythm.total
        saved = self.processes.first_does(lambda: newest_state(config.out / STATES))
        start = saved.step if saved else 0
        if saved:
            self._check(saved)
        with (
            Journal(
                config.out,
                total=total,
                step=start,
                every=config.log,
                loggers=config.loggers,
                quiet=not self.processes.first,
            ) as self.journal,
            listen() as self.signals,
        ):
            for note in self._notes(start):
                self.journal.note(note)
            if saved:
                self._load(saved)
            batches = self._train_batches(self.processes.shard)
            self.loader = Loader(batches.__getitem__, range(start, total), config.loader)
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

    def _train_batches(self, shard: Shard) -> TrainBatches:
        config = self.config
        return TrainBatches(
            self.train_set,
            config.augment,
            self.preprocess,
            batch=config.batch,
            seed=config.seed,
            shard=shard,
        )

    def _notes(self, start: int) -> list[str]:
        config, found = self.config, [*notes(self.train_set)]
        found += check_trainable(self.train_set, self.val_set)
        if start:
            found.append(f"resuming {config.out} at step {start:,} of {self.rhythm.total:,}")
        parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        found.append(
            f"{self.spec}: {parameters:,} trained parameters, {len(self.train_set):,} "
            f"pictures of {len(self.train_set.classes):,} classes, {self.rhythm.total:,} steps of "
            f"{config.batch} ({self.trainer.micro} at a time)"
        )
        return found

    def _check(self, saved: Saved) -> None:
        """Refuse other pictures; cut the metrics back to what they were when the run was saved.

        The journal drops later steps. Of the very step there may be an evaluation that comes again.
        """
        check_sets(saved.facts["sets"], self.sets)
        if self.processes.first and self._metrics_size() > saved.facts["metrics"]:
            os.truncate(self.config.out / METRICS, saved.facts["metrics"])

    def _metrics_size(self) -> int:
        path = self.config.out / METRICS
        return path.stat().st_size if path.exists() else 0

    def _load(self, saved: Saved) -> None:
        load_run(saved, self.trainer, micro=self.config.micro)
        self.saved = saved.step
        self.standing = Standing.load(saved.facts["standing"])
        self.ledger.note(BadPicture(*each) for each in saved.facts["bad"])

    def _save(self, step: int) -> None:
        """Save the run; where that fails, it is remembered, and training goes on."""
        self.journal.sync()

        def facts() -> dict[str, Any]:
            return {
                "sets": self.sets,
                "standing": asdict(self.standing),
                "bad": [astuple(picture) for picture in self.ledger.bad.values()],
                "metrics": self._metrics_size(),
            }

        try:
            save_run(self.config.out, step, self.trainer, facts, self.processes)
        except InputError as error:
            self.unsaved = error
            log.warning("%s; the last good one is of step %d", error, self.saved)
        else:
            self.unsaved, self.saved = None, step

    def _record(self, taken: Taken, batch: Batch) -> None:
        self.ledger.note(self._gather(batch.bad) if taken.bad else ())
        epoch = taken.step * self.config.batch / len(self.train_set)
        values = {"epoch": epoch, "train/loss": taken.loss, "lr": taken.lr, "norm": taken.norm}
        waited, self.waited = self.loader.waited - self.waited, self.loader.waited
        self.journal.train(taken.step, values, pictures=self.config.batch, waited=waited)

    def _gather(self, bad: Sequence[BadPicture]) -> Sequence[BadPicture]:
        """Give every process what all of them met, so that they refuse it together."""
        return [picture for each in self.processes.gather(bad) for picture in each]

    def _evaluate(self, step: int) -> bool:
        """Measure on the validation split, once a step; tell whether the run gets no better."""
        if self.val_set is None:
            return False
        if self.standing.evaluated != step:
            with self._averaged():
                found = self._measure(self.val_set)
                self.standing = self.standing.after(step, found)
                if self.config.keep == "best" and self.standing.worse == 0:
                    self._write_model()
            values = {"val/top1": found.top1, "val/top5": found.top5, "val/loss": found.loss}
            self.journal.evaluation(step, values)
        return 0 < self.config.patience <= self.standing.worse

    def _measure(self, source: Source) -> Accuracy:
        config, processes = self.config, self.processes
        batches = EvalBatches(source, self.preprocess, batch=config.batch, shard=processes.shard)
        loader = Loader(batches.__getitem__, range(len(batches)), config.loader)
        with closing(self._until_stopped(loader)) as made, gathered(self.model):
            return measure(
                self.model,
                made,
                self.preprocess,
                device=processes.device,
                micro=self.trainer.micro,
                total=processes.total,
                note=self.val_ledger.note,
            )

    def _until_stopped(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        for batch in batches:
            if self.processes.any(self.signals.number > 0):
                raise StopAsked
            yield batch

    def _averaged(self) -> AbstractContextManager[None]:
        """Put the averaged weights into the model, where there are any."""
        average = self.trainer.average
        return average.applied(self.model) if average is not None else nullcontext()

    def _blame(self, step: int) -> str:
        """List the pictures of a global batch in a file, and say where."""
        path = self.config.out / f"{BAD_BATCH}{step + 1}.txt"

        def write() -> None:
            indices = self._train_batches(ALONE)[step].indices.tolist()
            names = dict.fromkeys(map(self.train_set.where, indices))
            write_whole(path, "".join(f"{printable(name)}\n" for name in names))

        try:
            self.processes.first_does(write)
        except InputError as error:
            return str(error)
        return f"its pictures are listed in {path}"

    def _finish(self, ending: Literal["finished", "converged"], step: int) -> Run:
        """Write the model folder and the result, and say what was reached."""
        standing, folder = self.standing, self.config.out
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
        result = Run(
            folder=folder,
            ending=ending,
            steps=step,
            top1=kept.top1 if kept else None,
            top5=kept.top5 if kept else None,
            loss=kept.loss if kept else None,
            pictures=kept.pictures if kept else 0,
            skipped=kept.skipped if kept else 0,
        )
        text = json.dumps({**asdict(result), "folder": "."}, indent=1) + "\n"
        self.processes.first_does(lambda: write_whole(folder / RESULT, text))
        self.journal.note(describe(result))
        return result

    def _write_model(self) -> None:
        tensors = whole_state(self.model)
        if self.config.tune.what == "lora" and self.processes.first:
            model = build(self.model.spec, device="meta")
            adapt(model, self.config.tune)
            copies = {name: tensor.clone() for name, tensor in tensors.items()}
            model.load_state_dict(copies, assign=True)
            merge(model)
            tensors = model.state_dict()
        bundle = Bundle(
            spec=self.model.spec,
            tensors=tensors,
            classes=self.train_set.classes,
            preprocess=self.preprocess,
            provenance=self.provenance,
        )
        self.processes.first_does(lambda: save_folder(bundle, self.config.out / MODEL))
