"""The benchmark: each task whose images are on disk fine-tuned by Table 4, and its test split.

OUT/TASK/                   a run folder, which an interrupted benchmark goes on with
OUT/TASK/data/images.csv  the images that it was trained and tested on
OUT/TASK/test.json          what it reached on the test split
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.config import Duration, InputError, suggest
from vitrail.distributed import process_group
from vitrail.evaluation.evaluate import ask, prepare
from vitrail.evaluation.intervals import Estimate, wilson
from vitrail.evaluation.scored import join_answers
from vitrail.files import write_whole
from vitrail.models import parse
from vitrail.models.spec import Size
from vitrail.recipes import finetune, shorten_warmup
from vitrail.run import TrainConfig, train
from vitrail.vtab1k.task_images import find_task, open_task, write_list
from vitrail.vtab1k.vtab_tasks import TASKS, Group, Task
from vitrail.weights.load import read_checkpoint

_TEST = "test.json"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of the paper's setting is run; what is not given is the paper's."""

    steps: int | None = None
    lr: float | None = None
    batch: int | None = None
    image: Size | None = None
    images: int = 1_000
    """Training images of a task, 800 and 200."""
    validate: bool = False
    """Train on the 800 and measure on the 200, to choose settings by; not on the test split."""
    seed: int = 0
    device: str | None = None


@dataclass(frozen=True)
class TaskScore:
    """What a model reached on a task."""

    task: Task
    top1: Estimate | None
    """None where the task was not run."""
    images: int = 0
    skipped: int = 0
    """Images that could not be read."""
    unseen: int = 0
    """Images of classes that no training image was drawn of; they count as wrong."""
    why: str = ""
    """Why it was not run."""


@dataclass(frozen=True)
class Score:
    """What a model reached on all tasks."""

    tasks: tuple[TaskScore, ...]

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


def run_vtab(
    model: str,
    data: Path,
    out: Path,
    *,
    scale: Scale | None = None,
    names: Sequence[str] = (),
    say: Callable[[str], object] = lambda text: None,
) -> Score:
    """Run the tasks that are on disk, or those of them that are named, and name the others."""
    scale = scale or Scale()
    if not data.is_dir():
        raise InputError(f"no folder {data}; expected one with a folder for each task of VTAB")
    chosen = _choose(names)
    spec = read_checkpoint(model, hashed=False).spec
    name = str(replace(parse(spec.name), image=scale.image)) if scale.image else spec.name
    scores = []
    for number, task in enumerate(chosen, 1):
        place = find_task(task, data)
        if place is None:
            scores.append(TaskScore(task, None, why=f"expected {data / task.name} or a .csv list"))
            continue
        say(f"{number} of {len(chosen)}: {task.title}")
        scores.append(_run_task(task, place, model, name, out / task.name, scale))
    if not any(score.top1 for score in scores):
        whys = "; ".join(f"{each.task.name}: {each.why}" for each in scores[:2])
        raise InputError(f"{data} has no task of VTAB that can be run ({whys}, …)")
    return Score(tuple(scores))


def _choose(names: Sequence[str]) -> list[Task]:
    known = {place: task for task in TASKS for place in task.places}
    for name in names:
        if name not in known:
            there = ", ".join(task.name for task in TASKS)
            raise InputError(f"unknown task {name!r}{suggest(name, known)}; there are {there}")
    return [known[name] for name in names] or list(TASKS)


def _run_task(
    task: Task, place: str | Path, model: str, name: str, folder: Path, scale: Scale
) -> TaskScore:
    """Train on a task and measure on its test split, or take what an earlier call reached."""
    listed = folder / "data" / "images.csv"
    config = configure(f"csv:{listed}", model, name, folder, scale)
    strangers = 0
    if not (folder / _TEST).exists():
        try:
            parts = open_task(task, place, images=scale.images, seed=scale.seed)
        except InputError as error:
            return TaskScore(task, None, why=str(error))
        chosen = {"train": [parts.train, parts.val], "test": [parts.test]}
        if scale.validate:
            chosen = {"train": [parts.train], "val": [parts.val]}
        try:
            listed.parent.mkdir(parents=True, exist_ok=True)
            strangers = write_list(listed, chosen)
        except OSError as error:
            raise InputError(f"{listed.parent}: {error.strerror or error}") from None
    train(config)
    if not (folder / _TEST).exists():
        found = {**_test(config, strangers), "learnt": scale.images}
        write_whole(folder / _TEST, json.dumps(found) + "\n")
    found = json.loads((folder / _TEST).read_text())
    if (learnt := found.pop("learnt", scale.images)) != scale.images:
        said = f"has learnt from {learnt:,} images, not {scale.images:,}"
        raise InputError(f"{task.name} {said}; choose another --out, or remove {folder}")
    return TaskScore(task, Estimate(*found.pop("top1")), **found)


def configure(data: str, weights: str, model: str, out: Path, scale: Scale) -> TrainConfig:
    """Give a task's settings: Table 4's row for VTAB, and what the scale changes."""
    given = TrainConfig(
        data=data,
        model=model,
        weights=weights,
        out=out,
        val="val" if scale.validate else "",
        seed=scale.seed,
        device=scale.device,
    )
    config = finetune(given, "vtab")
    if scale.steps is not None:
        config = replace(config, length=Duration(scale.steps, "steps"))
    if scale.batch is not None:
        config = replace(config, batch=scale.batch)
    if scale.lr is not None:
        config = replace(config, optim=replace(config.optim, lr=scale.lr))
    return shorten_warmup(config, images=scale.images)


def _test(config: TrainConfig, strangers: int) -> dict[str, object]:
    """Measure the run's model on what it was not trained on."""
    split = config.val or "test"
    exam = prepare(f"run:{config.out}", config.data, split=split)
    with process_group(config.device) as processes:
        answers = join_answers(ask(exam, device=processes.device))
    right, count = int(answers.right().sum()), len(answers.indices) + strangers
    found = {"images": count, "skipped": len(answers.bad), "unseen": strangers}
    return {"top1": list(wilson(right, count)), **found}
