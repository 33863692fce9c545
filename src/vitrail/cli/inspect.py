"""The command that looks inside a model and writes a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Json

ModelText = Annotated[str | None, tyro.conf.arg(metavar="MODEL")]
Images = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[IMAGES …]")]


def inspect(
    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")],
    images: Images = (),
    *,
    out: Annotated[str, tyro.conf.arg(metavar="DIR")],
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    split: Annotated[str | None, tyro.conf.arg(metavar="S")] = None,
    layers: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="N …")] = None,
    against: ModelText = None,
    image: Annotated[str | None, tyro.conf.arg(metavar="HxW")] = None,
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 128,
    device: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: Json = False,
) -> None:
    """Look inside a model: predictions, attention, embeddings and features on one page.

    Example: vitrail inspect runs/photos cat.jpg --out report

    Args:
        model: A run folder, a model folder, or weights: timm:…, hf:…, google:…, file:…
        images: Image files to show. Default for a run: some of its validation images.
        out: Folder for report.html, report.json and figures/.
        data: Dataset to measure on. A few of its images are shown if no files are given.
        split: Split of DATA, or of the run's own data. Default: val.
        layers: Layers whose heads are drawn, from 0, or from the end: -1. Default: four layers.
        against: Second model, to compare attention distances and layers with.
        image: Input size, if another than the model was trained at.
        count: Number of images of DATA to measure on.
        device: cpu, cuda, cuda:1 or mps. Default: the best there is.
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
