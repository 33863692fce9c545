"""The command that runs VTAB's 19 tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import Device, Image, Json, Model, optional
from vitrail.result import print_result


def vtab(
    model: Model,
    *,
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/vtab"),
    tasks: Annotated[tuple[str, ...], optional("NAME …")] = (),
    validate: bool = False,
    steps: Annotated[int | None, optional("N")] = None,
    lr: Annotated[float | None, optional("X")] = None,
    batch: Annotated[int | None, optional("N")] = None,
    image: Image = None,
    images: Annotated[int, tyro.conf.arg(metavar="N")] = 1_000,
    augment: Literal["bit", "resize", "inception"] = "bit",
    seed: int = 0,
    device: Device = None,
    json: Json = False,
) -> None:
    """Fine-tune on each of VTAB-1k's 19 tasks that is on disk, and give the grouped means.

    Run the same command again to resume.

    Example: vitrail vtab google:imagenet21k/ViT-L_16 --data vtab/ --out runs/vtab-l16

    Args:
        data: A folder with one entry per task: DIR/dtd/{train,test}/CLASS/…, DIR/svhn.csv or the
            usual DIR/kitti/train800.txt; docs/evaluate.md lists the names.
        out: The folder for one run per task.
        tasks: Run only these.
        validate: Train on 800 images and evaluate on the other 200, not on the test split.
        steps: Steps per task. Default: the paper's 2,500.
        lr: Base learning rate. Default: the paper's 0.01.
        batch: Images per step. Default: the paper's 512.
        image: Resolution. Default: the paper's 384.
        images: Training images per task.
        augment: Crops and flips of training images: BiT's, which spare the labels of each task;
            none (resize only, as VTAB's own code); or Inception crops and flips for all tasks.
        seed: Seed of the training images, their order and crops.
    """
    from vitrail.vtab1k import vtab as run_vtab

    result = run_vtab(
        model,
        data,
        out=out,
        tasks=tasks,
        validate=validate,
        steps=steps,
        lr=lr,
        batch=batch,
        image=image,
        images=images,
        augment=augment,
        seed=seed,
        device=device,
    )
    print_result(result, json=json)
