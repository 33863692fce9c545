"""Commands on published weights: which there are, what they hold, and writing them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import Json, optional
from vitrail.result import print_result, print_rows


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
    from vitrail.weights.conversion.convert import convert as write

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
    from vitrail.weights.weights_summary import show_weights

    print_result(show_weights(source, model=model), json=json)


def weights_list(
    *,
    use: Annotated[
        Literal["classify", "fine-tune", "features", "zero-shot"] | None,
        optional("{classify,fine-tune,features,zero-shot}"),
    ] = None,
    free: bool = False,
    at_most: Annotated[float | None, optional("M")] = None,
    json: Json = False,
) -> None:
    """List known published checkpoints, with their published accuracy.

    Example: vitrail weights list --use fine-tune --free --at-most 30

    Args:
        use: Only those that are best for this. Default: all.
        free: Only those whose license allows any use, and that anybody can download.
        at_most: Only those of at most so many million parameters. Default: all.
    """
    from vitrail.weights.published.weights_list import list_weights

    print_rows(list_weights(use=use, free=free, at_most=at_most), "weights", json=json)
