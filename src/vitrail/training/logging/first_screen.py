"""What a run says of its data and itself before it begins."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from vitrail.data.checks.quick_check import quick_check
from vitrail.data.class_balance import imbalance
from vitrail.data.dataset import ImageDataset, ImageStream, select
from vitrail.data.datasets.groups import say_groups
from vitrail.data.datasets.open import notes
from vitrail.distributed import Processes
from vitrail.models.model import Model
from vitrail.text import show, show_duration
from vitrail.training.loop import Trainer
from vitrail.training.optimization.deadline import Deadline
from vitrail.training.optimization.step_intervals import Intervals
from vitrail.training.parts import Parts
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Provenance


class OpenedRun(Protocol):
    """What is told of: `vitrail.training_run.TrainingRun`."""

    config: TrainConfig
    processes: Processes
    parts: Parts
    opened: ImageDataset | ImageStream
    val_set: ImageDataset | None
    data_notes: tuple[str, ...]
    provenance: Provenance | None
    model: Model
    trainer: Trainer
    intervals: Intervals
    images: int | None


def describe_run(run: OpenedRun, start: int, deadline: Deadline | None = None) -> list[str]:
    """Say what is learned from, where a run begins, what is trained, for how long: a line each."""
    config, total = run.config, run.intervals.total
    found = [
        describe_data(run.opened, run.val_set, held_out=bool(config.hold_out or config.folds)),
        *(*notes(run.opened), *run.data_notes, *run.parts.notes(config)),
    ]
    if not start and run.processes.is_main and run.parts.need_labels(config):
        found += check_images(run.opened, run.val_set, config)
    if start:
        again = "; the schedule restarts" if start == config.more_from else ""
        found.append(f"resuming {show(config.out)} at step {start:,} of {total:,}{again}")
        if deadline is not None:
            left = show_duration(max(0.0, deadline.left))
            found.append(f"time     {left} are left of {config.minutes:g} min")
    elif run.provenance is not None:
        before = run.provenance.changes[:-1]  # the last says what this run trains on
        older = [each.startswith("trained on") for each in before]
        found += before[len(older) - older[::-1].index(True) if any(older) else 0 :]
    parameters = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    device, precision = run.processes.device.type, run.trainer.autocast or torch.float32
    size = "x".join(map(str, run.model.spec.image))
    found.append(
        f"model    {run.model.spec}: {parameters:,} trained parameters, {size} images, on {device} "
        f"in {str(precision).removeprefix('torch.')}"
    )
    epochs = f" ({total * config.batch / run.images:.3g} epochs)" if run.images else ""
    workers = config.loader.worker_count
    found.append(
        f"run      {show(config.out)}: {total:,} steps of {config.batch}{epochs}, "
        f"{run.trainer.micro_batch} at a time, {workers} worker{'' if workers == 1 else 's'}"
    )
    schedule = config.schedule
    if schedule.cooldown.amount and schedule.kind in ("cosine", "linear"):
        found.append(
            f"the cool-down of {schedule.cooldown} multiplies the {schedule.kind} decay, which "
            "ends low without it"
        )
    if (old := config.ema**total) > 0.5:
        found.append(
            f"an EMA decay of {config.ema} is still {old:.0%} the starting weights after "
            f"{total:,} steps; a smaller one forgets sooner"
        )
    return found


def describe_data(
    train: ImageDataset | ImageStream, val: ImageDataset | None, *, held_out: bool = False
) -> str:
    """Say how many images and classes there are, how even they are, and what is held out."""
    classes = len(train.classes)
    if isinstance(train, ImageStream):
        length = "unknown" if train.length is None else f"{train.length:,}"
        said = f"{length} training images (a stream)"
    else:
        said = f"{len(train):,} training images"
    if train.regression and isinstance(train, ImageDataset):
        ranges = zip(train.classes, train.labels.min(0), train.labels.max(0), strict=True)
        said += ", " + ", ".join(f"{name} {low:.10g} to {high:.10g}" for name, low, high in ranges)
    elif classes > 1:
        said += f" of {classes:,} classes"
        if isinstance(train, ImageDataset) and not train.multilabel:
            counts = train.class_counts()
            least, most = counts.min(), counts.max()
            uneven = f"{imbalance(counts):.1f}"
            ratio = "" if uneven == "1.0" else f" ({uneven} to 1)"
            said += f", {least:,} to {most:,} each{ratio}" if most > least else f", {most:,} each"
    if val is None:
        return f"data     {said}; nothing is held out"
    if held_out:
        return f"data     {said}; evaluated on {len(val):,} images held out of the training split"
    return f"data     {said}; evaluated on {len(val):,} others ({val.name})"


def check_images(
    train: ImageDataset | ImageStream, val: ImageDataset | None, config: TrainConfig
) -> tuple[str, ...]:
    """Say which files can't be read, and warn of validation images that training sees.

    InputError if too many can't be read.
    """
    if not isinstance(train, ImageDataset):
        return ()
    found = quick_check(train, select(train, np.empty(0, np.int64)) if val is None else val)
    told: list[str] = []
    if found is not None:
        found.refuse(config.max_unreadable)
        told += found.notes()
    if config.group is None and val is not None:
        said = say_groups({"train": train, "val": val})
        told += [said] if said else []
    return tuple(told)
