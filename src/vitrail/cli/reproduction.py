"""The command that runs the paper's studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import Json, optional
from vitrail.result import print_result


def reproduce(
    study: Annotated[tyro.conf.Positional[str | None], optional("STUDY")] = None,
    *,
    scale: Literal["smoke", "desk", "gpu", "paper"] = "desk",
    data: Annotated[str | None, optional("DATA")] = None,
    weights: Annotated[str | None, optional("SOURCE")] = None,
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("studies"),
    pages: Annotated[Path | None, optional("DIR")] = None,
    parallel: Annotated[int | None, optional("N")] = None,
    json: Json = False,
) -> None:
    """Run a study of the paper and say which of its claims hold; without one, list them.

    Run the same command again to resume.

    Example: vitrail reproduce figure9 --scale desk --data cifar10:DIR

    Args:
        study: One of the listed names, or all.
        scale: smoke (seconds, only to see it run), desk (minutes on two cores), gpu (a day of one
            GPU) or paper (the published setting).
        data: Images to train on instead of the scale's own.
        weights: Weights to examine instead of the scale's own (of inspection and transfer).
        out: Folder for all studies: DIR/STUDY/SCALE gets the runs, table.csv and report.html.
        pages: Folder that gets the study's table, and Markdown pages with an index of all tables
            in it; without STUDY its pages are made again.
        parallel: Runs at once. Default: one per core.
    """
    from vitrail.studies.reproduce import reproduce as run

    result = run(
        study, scale=scale, data=data, weights=weights, out=out, pages=pages, parallel=parallel
    )
    print_result(result, json=json)
