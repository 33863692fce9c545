"""The command that averages models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Json
from vitrail.console import new_table, print_json, print_line, print_renderable


def soup(
    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")],
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="MODEL")],
    greedy: bool = False,
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    split: str = "val",
    hold_out: Annotated[float, tyro.conf.arg(metavar="X")] = 0.0,
    checkpoints: bool = False,
    json: Json = False,
) -> None:
    """Average fine-tuned models of one shape to a better one.

    Example: vitrail soup runs/pets/seed-* --out runs/pets/soup --greedy --data pets

    Args:
        runs: Run folders, or any weights.
        out: The model folder to write.
        greedy: Leave out the models that do not help on the held-out images of DATA.
        data: Images that no run has learnt from; without --greedy they only measure.
        split: The split of DATA that they are.
        hold_out: The part of the training split that they are, where the runs had this --hold-out.
        checkpoints: Take each run's kept states (the newest two) instead of its model.
    """
    from vitrail.model_soup import cook

    done = cook(
        runs,
        out,
        greedy=greedy,
        data=data,
        split=split,
        hold_out=hold_out,
        checkpoints=checkpoints,
    )
    if json:
        said = asdict(done)
        print_json({"model": str(said.pop("folder")), **said})
        return
    table = new_table("model", "top-1", "in the soup")
    for number, name in enumerate(done.candidates):
        reached = "" if done.alone is None else f"{done.alone[number]:.2%}"
        table.add_row(name, reached, "yes" if name in done.chosen else "no")
    print_renderable(table)
    said = "" if done.top1 is None else f", top-1 {done.top1:.2%} on {done.images:,} images"
    count = "1 model" if len(done.chosen) == 1 else f"{len(done.chosen)} models"
    print_line(f"{done.folder}: the mean of {count}{said}")
