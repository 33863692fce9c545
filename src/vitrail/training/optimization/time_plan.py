"""How many steps fit into a time, by a few real ones, and the deadline that holds a run to it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

from vitrail.config import Duration, InputError
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.distributed import Processes
from vitrail.signals import Signals
from vitrail.training.loop import Trainer
from vitrail.training.optimization.deadline import Deadline
from vitrail.training.optimization.step_intervals import Intervals
from vitrail.training.parts import Parts
from vitrail.training.task import Task
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import open_iterator
from vitrail.training.trainer_setup import plan_intervals

_UNTIMED, _TIMED = 2, 3  # steps; the first ones also set things up
FEW, ENOUGH, MANY, MOST = 2.0, 20.0, 30.0, 100.0
"""Epochs below which fewer weights are trained, that larger images leave, above which images may be
larger, and at most."""
_REPORTED = 1_000  # images that a report looks for mistakes in, about
_CALIBRATED = 10_000  # images of each split that a calibration looks at, at most
_STARTING, _DRAWING = 2.0, 4.0  # seconds of the process before the run, and of a report's plots
PROBED = 16
"""Images of a step that is only taken to measure it."""
LARGER = (288, 384)
"""Sides of the images that much time is spent on."""


class ProbedRun(Protocol):
    """What steps are taken of: `vitrail.training_run.TrainingRun`."""

    config: TrainConfig
    processes: Processes
    trainer: Trainer
    train_set: ImageDataset | ImageStream
    val_set: ImageDataset | None
    images: int | None
    task: Task
    parts: Parts
    intervals: Intervals


@dataclass(frozen=True)
class Afterwards:
    """What is done with a model when its run is over, in the run's time."""

    report: bool = False
    calibrate: bool = False
    tested: int = 0
    """Images of a test set that the model is scored on."""

    @property
    def seconds(self) -> float:
        """Seconds that it takes whatever the model is, with those before the run."""
        return _STARTING + self.report * _DRAWING

    def needs(self, run: ProbedRun, image_seconds: float) -> float:
        """Count the seconds of it all, where training on an image takes so long."""
        return self.seconds + self.passes(run) * image_seconds

    def within(self, run: ProbedRun, image_seconds: float, seconds: float) -> Afterwards:
        """Leave out what would take more than half of the time: calibration, then the report."""
        if self.calibrate and self.needs(run, image_seconds) > seconds / 2:
            return replace(self, calibrate=False).within(run, image_seconds, seconds)
        if self.report and self.needs(run, image_seconds) > seconds / 2:
            return replace(self, report=False)
        return self

    def passes(self, run: ProbedRun) -> float:
        """Count the images that the model is run on, as parts of images that are trained on."""
        val_images = len(run.val_set) if run.val_set else 0
        images = self.tested + self.report * min(val_images, _REPORTED)
        if self.calibrate and val_images and run.config.task == "classification":
            images += min(val_images, _CALIBRATED) + min(run.images or 0, _CALIBRATED)
        slower = 1.0 if run.trainer.autocast is None else _FLOAT32
        return images * slower * _FORWARD[run.config.tune.mode]


@dataclass(frozen=True)
class ImageTime:
    """Seconds that training on an image takes, its data included."""

    wall: float
    processor: float


def measure_image_time(run: ProbedRun, *, most: int, least: float = 0.0) -> ImageTime:
    """Take a few steps; give the time that an image takes.

    `most` images go into a step; steps are taken for `least` seconds at least.
    """
    config, processes = run.config, run.processes
    batch = min(config.batch, most * processes.count)
    settings = replace(config, batch=batch, repeats=1)
    feed = open_iterator(run.train_set, settings, run.task.preprocess, run.parts.transform)
    loader = feed.open(1_000_000, processes.shard)  # goes on ahead, as in a run
    start, used, taken = 0.0, 0.0, 0
    for step, made in enumerate(loader):
        if step == _UNTIMED:
            start, used = time.perf_counter(), time.process_time()
        run.trainer.step(0, made, Signals())
        taken = step + 1 - _UNTIMED
        done = taken >= _TIMED and time.perf_counter() - start >= least
        if processes.any(done):
            break
    images = max(taken, 1) * batch
    wall = processes.broadcast((time.perf_counter() - start) / images)
    return ImageTime(wall, (time.process_time() - used) / images)


_FORWARD = {"all": 1 / 3, "lora": 0.4, "last": 0.8, "head": 0.9}
"""Time of an image that is only evaluated, in those that are trained on, by tune.mode."""
_FLOAT32 = 2.2  # times as long as in bfloat16: ViT-Ti/16 on a processor


def count_passes(config: TrainConfig, intervals: Intervals, val_images: int) -> float:
    """Count the images that a run trains on; one of an evaluation counts as its part of one."""
    evaluations = -(-intervals.total // intervals.evaluate) if intervals.evaluate else 0
    evaluated = val_images * evaluations * _FORWARD[config.tune.mode]
    return intervals.total * config.batch + evaluated


def fit_steps(run: ProbedRun, image_seconds: float, seconds: float, after: Afterwards) -> int:
    """Say how many steps can be taken in some seconds, with the evaluations between them."""
    batch, val_images = run.config.batch, len(run.val_set) if run.val_set else 0
    steps = int((seconds - after.needs(run, image_seconds)) / image_seconds / batch)
    if steps < 1:
        raise InputError(
            f"--minutes {run.config.minutes:g} is too short here: a step takes "
            f"{image_seconds * batch:.2g} s, and {max(seconds, 0):.2g} s are left after starting; "
            "choose more minutes, a smaller --batch, or --weights of a smaller model"
        )
    config = replace(run.config, length=Duration(steps, "steps"))
    intervals = plan_intervals(config, run.images or 0, val_images, None)
    return max(1, int(steps * steps * batch / count_passes(config, intervals, val_images)))


def make_deadline(run: ProbedRun, started: float, after: Afterwards) -> Deadline | None:
    """Hold a run to its `minutes` since `started`; None without any, or where it is continued.

    A length in epochs is as long as is of use; one in steps was planned by a few of them, and is
    extended where they turn out to take less time.
    """
    config, planned = run.config, run.intervals.total
    if config.minutes is None or config.more is not None:
        return None
    step = _FORWARD[config.tune.mode] / config.batch  # an evaluated image's time, in steps
    val_images = len(run.val_set) if run.val_set else 0
    return Deadline(
        60 * config.minutes,
        run.processes,
        started=started,
        planned=planned,
        most=planned if config.length.unit == "epochs" else 2 * planned,
        evaluation=val_images * step,
        after=after.passes(run) / config.batch,
        ending=after.seconds,
    )
