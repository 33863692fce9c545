"""The command that averages models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Device, Json, Split, optional
from vitrail.result import print_result


def soup(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], optional("RUN …")],
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="MODEL")],
    greedy: bool = False,
    data: Annotated[str | None, optional("DATA")] = None,
    split: Split = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Average fine-tuned models of one architecture to a better one.

    Example: vitrail soup runs/pets/grid/* --out runs/pets/soup --greedy

    Args:
        models: Run folders, or any weights, of classifiers.
        out: The model folder to write.
        greedy: Leave out models that do not help on images that no model was trained on.
        data: Images to choose on with --greedy, otherwise only to evaluate on. Default with
            --greedy: the runs' own.
        split: The split of DATA to choose on. Default: its own validation split, or what all runs
            held out of the others. Without --greedy the split to evaluate on, by default test.
    """
    from vitrail.model_soup import soup as average_models

    result = average_models(
        models,
        out=out,
        greedy=greedy,
        data=data,
        split=split,
        device=device,
    )
    print_result(result, json=json)
