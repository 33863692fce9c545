"""The command that holds models against each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitrail.cli.options import Json
from vitrail.config import InputError
from vitrail.console import new_table, print_json, print_line, print_renderable

if TYPE_CHECKING:
    from vitrail.evaluation.comparison import Comparison, Contender


def compare(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL")],
    *,
    data: Annotated[str, tyro.conf.arg(metavar="DATA")],
    split: Annotated[str | None, tyro.conf.arg(metavar="S")] = None,
    image: Annotated[str | None, tyro.conf.arg(metavar="HxW")] = None,
    map: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    shots: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (5,),
    seeds: int = 3,
    batch: int = 64,
    device: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: Json = False,
) -> None:
    """Hold models against each other: accuracy, few-shot, speed, size, significance.

    Example: vitrail compare run:runs/small run:runs/large --data photos/ --split test

    Args:
        models: Two or more: runs' or models' folders, or sources of weights.
        data: A folder, or csv:FILE, cifar10:DIR, imagenet:DIR, hf:NAME, digits, shapes, …
        split: The split to measure on; val unless given. Few-shot learns from train.
        image: Another resolution than the models were trained at, 384 or 384x512.
        map: YAML or JSON that says which of the models' classes those of the data are.
        shots: Images a class that few-shot learns from; none to leave it out.
        seeds: Draws of these images.
        batch: Images that go through a model at a time.
        device: cpu, cuda:1, mps; the best unless given.
    """
    from vitrail.distributed import process_group
    from vitrail.evaluation.class_matching import read_map
    from vitrail.evaluation.comparison import compare as hold
    from vitrail.evaluation.features.feature_store import features_folder
    from vitrail.models.names import parse_size

    if batch < 1:
        raise InputError(f"--batch is at least 1, not {batch}")
    with process_group(device) as processes:
        if processes.count > 1:
            raise InputError("compare runs in one process; leave torchrun out")
        found = hold(
            models,
            data,
            split=split,
            image=parse_size(image) if image else None,
            classes=read_map(map) if map else None,
            shots=shots,
            seeds=seeds,
            batch=batch,
            device=processes.device,
            cache=features_folder(),
            say=lambda text: sys.stderr.write(f"{text}\n"),
        )
    if json:
        print_json({"data": data, **_plain(found)})
    else:
        _print(found)


def _plain(found: Comparison) -> dict[str, Any]:
    from vitrail.evaluation.result import to_json

    rows = []
    for each in found.contenders:
        row: dict[str, Any] = {
            key: getattr(each, key)
            for key in ("model", "name", "image", "parameters", "flops", "speed", "ratio", "notes")
        }
        row["shots"] = {
            str(count): {"mean": mean, "std": std} for count, (mean, std) in each.shots.items()
        }
        if each.report is not None:
            told = to_json(each.report)
            row |= {key: told[key] for key in told if key not in ("classes", "bins", "confusion")}
        rows.append(row)
    pairs = [
        {
            "first": found.contenders[one].model,
            "second": found.contenders[two].model,
            "difference": held.difference.value,
            "difference_interval": [held.difference.low, held.difference.high],
            "only_first": held.only_first,
            "only_second": held.only_second,
            "p": held.exact,
            "p_mid": held.midp,
        }
        for one, two, held in found.pairs
    ]
    return {"images": found.images, "models": rows, "pairs": pairs}


def _print(found: Comparison) -> None:
    """Print a column a model, then what a difference is worth."""
    names = (each.name.partition(",")[0] for each in found.contenders)
    table = new_table("", *(f"{number}: {name}" for number, name in enumerate(names, 1)))
    columns = [_figures(each) for each in found.contenders]
    for row in columns[0]:
        table.add_row(row, *(figures[row] for figures in columns))
    print_renderable(table)
    for number, each in enumerate(found.contenders, 1):
        print_line(f"{number}: {each.model}")
        for note in each.notes:
            print_line(f"   {note}")
    for one, two, held in found.pairs:
        gain = held.difference
        points = [f"{100 * value:+.2f}" for value in gain]
        wins = f"only {two + 1} is right on {held.only_second:,}, only {one + 1} on "
        print_line(
            f"{two + 1} against {one + 1}: {points[0]} points ({points[1]} to {points[2]}) on "
            f"{found.images:,} images; {wins}{held.only_first:,}; p = {held.exact:.3g} "
            f"(McNemar, exact; mid-p {held.midp:.3g})"
        )


def _figures(each: Contender) -> dict[str, str]:
    """Write what was measured of a model, by name; nothing where it has not the classes."""
    report = each.report
    quality: dict[str, str] = dict.fromkeys(
        ("top-1", "95 %", "top-5", "loss", "calibration error"), ""
    )
    if report is not None:
        top1, sure = report.top1, report.calibration
        quality = {
            "top-1": f"{top1.value:.2%}",
            "95 %": f"{top1.low:.1%} to {top1.high:.1%}",
            "top-5": f"{report.top5.value:.2%}",
            "loss": f"{report.loss.value:.3f}",
            "calibration error": "" if sure is None else f"{sure.ece.value:.1%}",
        }
    few = {f"{n}-shot": f"{mean:.2%} ± {std:.2%}" for n, (mean, std) in each.shots.items()}
    return (
        quality
        | few
        | {
            "resolution": each.image,
            "parameters": f"{each.parameters:,}",
            "GFLOPs an image": f"{each.flops / 1e9:.2f}",
            "images a second": f"{each.speed:,.1f}",
            "speed": f"{each.ratio:.2f}x",
        }
    )
