"""Commands on models: what there is, what it costs, that it runs."""

from __future__ import annotations

from typing import Annotated

import tyro

from vitrail.cli.options import Image, Json, optional
from vitrail.result import print_result, print_rows


def models(*, json: Json = False) -> None:
    """List the models of the paper and its successors.

    The grammar knows many more: any patch size (ViT-B/14), resolution (ViT-B/16@384), option
    (ViT-B/16,pool=gap) and shape (ViT/32,depth=8,width=1024,heads=16,mlp=2048).

    Example: vitrail models
    """
    from vitrail.models.cost.total import list_models

    print_rows(list_models(), "models", json=json)


def describe(
    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    *,
    classes: Annotated[int | None, optional("N")] = None,
    image: Image = None,
    batch: int = 1,
    json: Json = False,
) -> None:
    """Show a model's layers and what it costs, without building it.

    Example: vitrail describe ViT-B/16 --image 384x384 --batch 32

    Args:
        model: A model's name, such as ViT-B/16, R50+ViT-L/32@384 or BiT-R152x4.
        classes: Outputs of the head. Default: the model's own (1000).
        image: Resolution, 384 or 384x512. Default: the model's own.
        batch: Images in a training step, which its memory depends on.
    """
    from vitrail.models.cost.total import describe as cost_of

    print_result(cost_of(model, classes=classes, image=image, batch=batch), json=json)
