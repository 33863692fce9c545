"""Commands on published weights: which there are, what they hold, and writing them elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Json, optional
from vitrail.console import new_table, print_json, print_line, print_renderable
from vitrail.result import print_result


def convert(
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")],
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")],
    *,
    to: str,
    model: Annotated[str | None, optional("NAME")] = None,
    json: Json = False,
) -> None:
    """Write published weights in another project's format, and check the logits.

    Example: vitrail convert timm:vit_base_patch16_224.augreg_in21k B_16.npz --to npz

    Args:
        source: Weights: timm:…, hf:…, google:…, file:…, or a path.
        out: The file (npz, bigvision, torchvision) or folder (timm, hf, vitrail) to write.
        to: vitrail, npz, bigvision, timm, hf or torchvision.
        model: The model's name, if the weights don't tell it, such as ViT-B/16,heads=16.
    """
    from vitrail.weights.convert import convert as write

    print_result(write(source, out, to, model=model), json=json)


def weights_show(
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")],
    *,
    model: Annotated[str | None, optional("NAME")] = None,
    json: Json = False,
) -> None:
    """Show what weights hold: format, model, classes, preprocessing, hash.

    Example: vitrail weights show timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k

    Args:
        source: Weights: timm:…, hf:…, google:…, file:…, or a path.
        model: The model's name, if the weights don't tell it, such as ViT-B/16,heads=16.
    """
    from vitrail.weights.load import show_weights

    shown = show_weights(source, model=model)
    if json:
        print_json(shown)
        return
    for key, value in shown.items():
        print_line(f"{key:12} {value}")


def weights_list(*, json: Json = False) -> None:
    """List known published checkpoints, with their published accuracy.

    Example: vitrail weights list
    """
    from vitrail.weights.catalog import CATALOG, RECOMMENDED

    if json:
        sizes = ("resolution", "megabytes")
        rows = [{**asdict(e), **{key: getattr(e, key) for key in sizes}} for e in CATALOG]
        print_json(rows)
        return
    short = {full: name for name, full in RECOMMENDED.items()}
    table = new_table("source", "model", "trained on", "px", "MB", "top-1", "license")
    for entry in CATALOG:
        top1 = f"{entry.top1:.2f}" if entry.cited else ""
        pixels = "x".join(map(str, sorted(set(entry.resolution))))
        row = (entry.data, pixels, f"{entry.megabytes:,.0f}", top1, entry.license)
        table.add_row(short.get(entry.source, entry.source), entry.model.partition(",")[0], *row)
    print_renderable(table)
    print_line("Top-1 on ImageNet as published; --json says by whom, and the preprocessing.")
