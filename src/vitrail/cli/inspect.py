"""The command that looks inside a model and writes a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Json
from vitrail.console import print_json, print_line

ImageDataset = Annotated[str | None, tyro.conf.arg(metavar="MODEL")]
Images = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[IMAGES …]")]


def inspect(
    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")],
    images: Images = (),
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    split: Annotated[str | None, tyro.conf.arg(metavar="S")] = None,
    layers: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="N …")] = None,
    against: ImageDataset = None,
    image: Annotated[str | None, tyro.conf.arg(metavar="HxW")] = None,
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 128,
    json: Json = False,
) -> None:
    """Look inside a model: attention, embeddings and features, as one page.

    Example: vitrail inspect runs/photos cat.jpg --out report

    Args:
        model: A run's or model's folder, or weights: timm:…, hf:…, google:…, file:…
        images: Images to look at, each on its own; a run has its own if none are given.
        out: The folder for report.html, report.json and figures/.
        data: A data set to measure on; a few of its images are shown if none are given.
        split: Which of its splits, or of the run's own data; val unless given.
        layers: Layers whose heads are drawn, from 0, or from the end: -1; four unless given.
        against: A second model, to compare attention distances and layers with.
        image: The images' size for the model, if another than it was trained at.
        count: How many images of DATA to measure on.
    """
    from vitrail.models.names import parse_size
    from vitrail.report.report import inspect_model

    report = inspect_model(
        model,
        images,
        data=data,
        split=split,
        layers=layers,
        against=against,
        image=parse_size(image) if image else None,
        count=count,
    )
    files = [str(path) for path in report.write(out)]
    *figures, numbers, page = files
    if json:
        print_json({"report": page, "numbers": numbers, "figures": figures})
    else:
        print_line(f"{page}: {len(report.plots)} figures; PNG, SVG and numbers beside it")
