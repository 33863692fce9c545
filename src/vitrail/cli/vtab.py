"""The command that runs VTAB's 19 tasks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitrail.cli.options import Json
from vitrail.config import InputError
from vitrail.console import new_table, print_json, print_line, print_renderable

if TYPE_CHECKING:
    from vitrail.vtab1k import Score


def vtab(
    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")],
    *,
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/vtab"),
    tasks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (),
    validate: bool = False,
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    lr: Annotated[float | None, tyro.conf.arg(metavar="X")] = None,
    batch: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    image: Annotated[str | None, tyro.conf.arg(metavar="HxW")] = None,
    images: Annotated[int, tyro.conf.arg(metavar="N")] = 1_000,
    seed: int = 0,
    device: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: Json = False,
) -> None:
    """Fine-tune on each of VTAB-1k's 19 tasks that is on disk, and give the grouped means.

    The same command again goes on where the last one stopped.

    Example: vitrail vtab google:imagenet21k/ViT-L_16 --data vtab/ --out runs/vtab-l16

    Args:
        model: A run's or model's folder, or a source of weights: timm:…, hf:…, google:…, file:…
        data: A folder with one for each task, such as DIR/dtd/{train,test}/CLASS/…, DIR/svhn.csv or
            the usual DIR/kitti/train800.txt; docs/evaluate.md lists the names.
        out: The folder for a run a task.
        tasks: Only these.
        validate: Train on 800 images and measure on the other 200, not on the test split.
        steps: Steps a task; the paper's 2,500 unless given.
        lr: Base learning rate; the paper's 0.01 unless given.
        batch: Images a step; the paper's 512 unless given.
        image: Resolution; the paper's 384 unless given.
        images: Training images a task.
        seed: Draws the training images, and their order and crops.
        device: cpu, cuda:1, mps; the best unless given.
    """
    from vitrail.models.names import parse_size
    from vitrail.vtab1k import Scale, run_vtab

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError("vtab runs in one process; share the work by --tasks, not by torchrun")
    if images < 2:
        raise InputError(f"--images is at least 2, not {images}")
    scale = Scale(
        steps=steps,
        lr=lr,
        batch=batch,
        image=parse_size(image) if image else None,
        images=images,
        validate=validate,
        seed=seed,
        device=device,
    )
    score = run_vtab(
        model, data, out, scale=scale, names=tasks, say=lambda text: sys.stderr.write(f"{text}\n")
    )
    if json:
        print_json({"model": model, "out": str(out), **_plain(score)})
    else:
        _print(score)


def _plain(score: Score) -> dict[str, Any]:
    from vitrail.vtab1k import GROUPS

    rows = []
    for each in score.tasks:
        row: dict[str, Any] = {"task": each.task.name, "group": each.task.group}
        if each.top1 is None:
            rows.append({**row, "why": each.why})
            continue
        found = {"top1": each.top1.value, "top1_interval": [each.top1.low, each.top1.high]}
        counts = {key: getattr(each, key) for key in ("images", "skipped", "unseen")}
        rows.append(row | found | counts)
    means = {group: score.mean(group) for group in GROUPS}
    return {"run": score.run()[0], "mean": score.mean(), **means, "tasks": rows}


def _print(score: Score) -> None:
    """Print the tasks that were run, the means, and what lacks."""
    from vitrail.vtab1k import GROUPS

    table = new_table("task", "group", "top-1", "95 %", "images")
    for each in score.tasks:
        if each.top1 is not None:
            span = f"{each.top1.low:.1%} to {each.top1.high:.1%}"
            figures = (f"{each.top1.value:.2%}", span, f"{each.images:,}")
            table.add_row(each.task.title, each.task.group, *figures)
    print_renderable(table)
    for group in (*GROUPS, None):
        mean, (done, total) = score.mean(group), score.run(group)
        if total:
            shown = "" if mean is None else f"{mean:.2%}"
            print_line(f"{group or 'mean':12} {shown:>7}  {done} of {total} tasks")
    for each in score.tasks:
        if each.unseen:
            print_line(f"{each.task.name}: {each.unseen:,} test images are of classes that no "
                       "training image is of; they count as wrong")  # fmt: skip
        count = each.images + each.skipped
        if each.top1 is not None and count != each.task.test:
            print_line(
                f"{each.task.name}: measured on {count:,} images; VTAB's test split has "
                f"{each.task.test:,}"
            )
        if each.why:
            print_line(f"not run: {each.task.name}: {each.why}")
