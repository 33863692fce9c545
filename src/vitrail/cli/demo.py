"""The command that shows the main job on embedded data."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Json
from vitrail.console import new_table, print_json, print_line, print_renderable


def demo(
    *, out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/demo"), json: Json = False
) -> None:
    """Pre-train a small ViT, transfer it at a higher resolution, and compare.

    Example: vitrail demo

    Args:
        out: The folder for its three runs; those of an earlier demonstration are replaced.
    """
    from vitrail.demonstration import run

    rows = run(out, lambda text: sys.stderr.write(f"{text}\n"))
    if json:
        plain = [(row, str(row.folder), row.report and str(row.report)) for row in rows]
        print_json([{**asdict(row), "folder": at, "report": page} for row, at, page in plain])
        return
    table = new_table("what", "steps", "top-1", "guessing")
    for row in rows:
        table.add_row(row.what, f"{row.steps:,}", f"{row.top1:.1%}", f"{row.chance:.1%}")
    print_renderable(table)
    pretrained, finetuned, scratch = rows
    gain = 100 * (finetuned.top1 - scratch.top1)
    said = "helped by" if gain > 0 else "did not help:"
    print_line(
        f"On digits, pre-training on shapes {said} {gain:+.1f} points in {scratch.steps} steps."
    )
    print_line(
        f"The runs are in {out}; a model is used by its folder, such as run:{scratch.folder}"
    )
    pages = [str(row.report) for row in (pretrained, finetuned) if row.report]
    if pages:
        print_line(f"What they have learnt: open {' and '.join(pages)} in a browser.")
