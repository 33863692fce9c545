"""The command that looks inside a model and writes a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Device, Image, Json, Model, Split, optional


def inspect(
    model: Model,
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], optional("[IMAGE …]")] = (),
    *,
    out: Annotated[str, tyro.conf.arg(metavar="DIR")],
    data: Annotated[str | None, optional("DATA")] = None,
    split: Split = None,
    layers: Annotated[tuple[int, ...] | None, optional("N …")] = None,
    against: Annotated[str | None, optional("MODEL")] = None,
    image: Image = None,
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 128,
    device: Device = None,
    json: Json = False,
) -> None:
    """Look inside a model: predictions, attention, embeddings and features on one page.

    Example: vitrail inspect runs/photos cat.jpg --out report

    Args:
        images: Image files to show. Default for a run: some of its validation images.
        out: Folder for report.html, report.json and figures/.
        data: Dataset to measure on. A few of its images are shown if no files are given.
        split: Split of DATA, or of the run's own data. Default: val.
        layers: Layers whose heads are drawn, from 0, or from the end: -1. Default: four layers.
        against: Second model, to compare attention distances and layers with.
        image: Another resolution than the model was trained at, 384 or 384x512.
        count: Number of images of DATA to measure on.
    """
    from vitrail.report import inspect as write_report
    from vitrail.result import print_result

    report = write_report(
        model,
        images,
        out=out,
        data=data,
        split=split,
        layers=layers,
        against=against,
        image=image,
        count=count,
        device=device,
    )
    print_result(report, json=json)
