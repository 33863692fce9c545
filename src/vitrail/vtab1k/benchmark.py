"""The benchmark: each task whose images are on disk, fine-tuned with Table 4 and then tested.

OUT/TASK/                   a run folder, from which an interrupted benchmark resumes
OUT/TASK/data/images.csv    the images that it was trained and tested on
OUT/TASK/test.json          its result on the test split
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from vitrail.config import Duration, InputError, suggest
from vitrail.console import log_line
from vitrail.data.transforms.augment import Augment
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.inputs import name_model
from vitrail.evaluation.metrics.intervals import Estimate, wilson
from vitrail.files import check_writable, write_whole
from vitrail.models.names import as_size, at_size
from vitrail.models.spec import Size
from vitrail.recipes import paper_finetune, shorten_warmup
from vitrail.result import Result, ResultTable
from vitrail.run import TrainConfig, train
from vitrail.vtab1k.task_images import find_task, open_task, write_list
from vitrail.vtab1k.vtab_tasks import GROUPS, TASKS, Group, VTABTask
from vitrail.weights.load import as_loaded, read_checkpoint
from vitrail.weights.loaded import AnyModel, LoadedModel

Preprocessing = Literal["bit", "resize", "inception"]
_TEST = "test.json"
_MISSING = "no folder or list in DIR has its images"


@dataclass(frozen=True)
class TaskResult:
    """A model's result on a task."""

    task: VTABTask
    top1: Estimate | None
    """None if the task was not run."""
    images: int = 0
    skipped: int = 0
    """Images that could not be read."""
    unseen: int = 0
    """Images of classes without any sampled training image; they count as wrong."""
    why: str = ""
    """Why it was not run."""


@dataclass(frozen=True)
class VTABResult(Result):
    """A model's results on all tasks."""

    model: str
    out: Path
    tasks: tuple[TaskResult, ...]

    def mean(self, group: Group | None = None) -> float | None:
        """Give the mean accuracy over the tasks that were run, of a group or of all."""
        found = [
            each.top1.value
            for each in self.tasks
            if each.top1 is not None and group in (None, each.task.group)
        ]
        return sum(found) / len(found) if found else None

    def run(self, group: Group | None = None) -> tuple[int, int]:
        """Count the tasks that were run, and all."""
        asked = [each for each in self.tasks if group in (None, each.task.group)]
        return sum(each.top1 is not None for each in asked), len(asked)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the means, and one row per task."""
        rows = []
        for each in self.tasks:
            row: dict[str, Any] = {"task": each.task.name, "group": each.task.group}
            if each.top1 is None:
                rows.append({**row, "why": each.why})
                continue
            found = {"top1": each.top1.value, "top1_interval": [each.top1.low, each.top1.high]}
            counts = {key: getattr(each, key) for key in ("images", "skipped", "unseen")}
            rows.append(row | found | counts)
        means = {group: self.mean(group) for group in GROUPS}
        head = {"model": self.model, "out": str(self.out), "run": self.run()[0]}
        return {**head, "mean": self.mean(), **means, "tasks": rows}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give the tasks that were run, the means, and what is missing."""
        rows = []
        for each in self.tasks:
            if each.top1 is not None:
                span = f"{each.top1.low:.1%} to {each.top1.high:.1%}"
                figures = (f"{each.top1.value:.2%}", span, f"{each.images:,}")
                rows.append((each.task.title, each.task.group, *figures))
        yield ResultTable(("task", "group", "top-1", "95 %", "images"), rows)
        for group in (*GROUPS, None):
            mean, (done, total) = self.mean(group), self.run(group)
            if total:
                shown = "" if mean is None else f"{mean:.2%}"
                yield f"{group or 'mean':12} {shown:>7}  {done} of {total} tasks"
        for each in self.tasks:
            name, count = each.task.name, each.images + each.skipped
            if each.unseen:
                lost = f"{each.unseen:,} test images are of classes without training images"
                yield f"{name}: {lost}; they count as wrong"
            if each.top1 is not None and count != each.task.test:
                whole = f"VTAB's test split has {each.task.test:,}"
                yield f"{name}: evaluated on {count:,} images; {whole}"
            if each.why and each.why != _MISSING:
                yield f"not run: {name}: {each.why}"
        if missing := [each.task.name for each in self.tasks if each.why == _MISSING]:
            yield f"not run, because {_MISSING}: {', '.join(missing)}"


def vtab(
    model: AnyModel,
    data: str | Path,
    *,
    out: str | Path = "runs/vtab",
    tasks: Sequence[str] = (),
    validate: bool = False,
    steps: int | None = None,
    lr: float | None = None,
    batch: int | None = None,
    image: str | int | Size | None = None,
    images: int = 1_000,
    augment: Preprocessing = "bit",
    seed: int = 0,
    device: str | None = None,
) -> VTABResult:
    """Fine-tune on each task of VTAB-1k that is on disk, and give the mean accuracies by group.

    `data` is a folder with one for each task; `tasks` runs only these. What is not given is the
    paper's; `augment` is how training images are cropped and flipped. Call it again to resume.
    """
    if augment not in get_args(Preprocessing):
        raise InputError(f"augment must be bit, resize or inception, got {augment!r}")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError("vtab runs in one process; divide the work with --tasks, not torchrun")
    if images < 2:
        raise InputError(f"--images must be at least 2, got {images}")
    data, out = Path(data), Path(out)
    if not data.is_dir():
        raise InputError(f"no folder {data}; expected one with a folder for each task of VTAB")
    check_writable(out, folder=True)
    size = as_size(image)
    chosen = _choose(tasks)
    own = None if isinstance(model, str | os.PathLike) else as_loaded(model)
    name = name_model(model)
    spec = own.model.spec if own else read_checkpoint(name, hashed=False).spec
    given = TrainConfig(
        data=str(data),
        model=at_size(spec.name, size) if size else spec.name,
        weights=None if own else name,
        out=out,
        val_split="val" if validate else "",
        seed=seed,
        device=device,
    )
    config = configure_tasks(given, steps=steps, lr=lr, batch=batch, images=images)
    results = []
    for number, task in enumerate(chosen, 1):
        place = find_task(task, data)
        if place is None:
            results.append(TaskResult(task, None, why=_MISSING))
            continue
        log_line(f"{number} of {len(chosen)}: {task.title}")
        own_config = replace(config, augment=augment_for(task, augment))
        results.append(_run_task(task, place, own_config, images, own))
    if not any(result.top1 for result in results):
        whys = "; ".join(f"{each.task.name}: {each.why}" for each in results[:2])
        hint = f"expected {data / chosen[0].name} or {data / chosen[0].name}.csv, for example"
        raise InputError(f"{data} has no VTAB task that can be run ({whys}); {hint}")
    return VTABResult(name, out, tuple(results))


def augment_for(task: VTABTask, how: Preprocessing) -> Augment:
    """Choose how a task's training images are cropped and flipped, so that labels stay true.

    `bit`: stretched to 448 for 384, a random window, a flip, each unless it falsifies labels;
    `resize`: neither, as task_adaptation does; `inception`: both for all tasks, which falsifies
    labels of some.
    """
    if how == "inception":
        return Augment()
    if how == "resize":
        return Augment(crop="whole", flip=0.0)
    return Augment(crop="square" if task.crop else "whole", flip=0.5 if task.flip else 0.0)


def _choose(names: Sequence[str]) -> list[VTABTask]:
    known = {place: task for task in TASKS for place in task.places}
    for name in names:
        if name not in known:
            there = ", ".join(task.name for task in TASKS)
            raise InputError(
                f"unknown task {name!r}{suggest(name, known)}; expected one of {there}"
            )
    return [known[name] for name in names] or list(TASKS)


def _run_task(
    task: VTABTask, place: str | Path, config: TrainConfig, images: int, own: LoadedModel | None
) -> TaskResult:
    """Train on a task and evaluate on its test split, or read the result of an earlier call."""
    folder = config.out / task.name
    listed = folder / "data" / "images.csv"
    config = replace(config, data=f"csv:{listed}", out=folder)
    unseen = 0
    if not (folder / _TEST).exists():
        try:
            parts = open_task(task, place, images=images, seed=config.seed)
        except InputError as error:
            return TaskResult(task, None, why=str(error))
        chosen = {"train": [parts.train, parts.val], "test": [parts.test]}
        if config.val_split:
            chosen = {"train": [parts.train], "val": [parts.val]}
        try:
            listed.parent.mkdir(parents=True, exist_ok=True)
            unseen = write_list(listed, chosen)
        except OSError as error:
            raise InputError(f"{listed.parent}: {error.strerror or error}") from None
    train(config, model=own, report=False)
    if not (folder / _TEST).exists():
        found = {**_test(config, unseen), "trained_on": images}
        write_whole(folder / _TEST, json.dumps(found) + "\n")
    found = json.loads((folder / _TEST).read_text())
    if (trained := found.pop("trained_on", images)) != images:
        said = f"was trained on {trained:,} images, not {images:,}"
        raise InputError(f"{task.name} {said}; choose another --out, or remove {folder}")
    return TaskResult(task, Estimate(*found.pop("top1")), **found)


def configure_tasks(
    given: TrainConfig, *, steps: int | None, lr: float | None, batch: int | None, images: int
) -> TrainConfig:
    """Give the configuration of all tasks: Table 4's row for VTAB, and what else was asked for."""
    config = paper_finetune(given, "vtab")
    if steps is not None:
        config = replace(config, length=Duration(steps, "steps"))
    if batch is not None:
        config = replace(config, batch=batch)
    if lr is not None:
        config = replace(config, optim=replace(config.optim, lr=lr))
    return shorten_warmup(config, images=images)


def _test(config: TrainConfig, unseen: int) -> dict[str, object]:
    """Evaluate the run's model on images that it was not trained on."""
    result = evaluate(
        config.out, config.data, split=config.val_split or "test", device=config.device
    )
    assert result.predictions is not None
    correct, count = int(result.predictions.correct().sum()), result.images + unseen
    found = {"images": count, "skipped": result.skipped, "unseen": unseen}
    return {"top1": list(wilson(correct, count)), **found}
