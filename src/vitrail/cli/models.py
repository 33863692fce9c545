"""Commands on models: what there is, what it costs, that it runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import tyro

from vitrail.cli.options import Json
from vitrail.config import InputError
from vitrail.console import new_table, print_json, print_line, print_renderable

if TYPE_CHECKING:
    from vitrail.models.cost.total import Cost


def models(*, json: Json = False) -> None:
    """List the models of the paper and its successors.

    The grammar knows many more: any patch size (ViT-B/14), resolution (ViT-B/16@384), option
    (ViT-B/16,pool=gap) and shape (ViT/32,depth=8,width=1024,heads=16,mlp=2048).

    Example: vitrail models
    """
    from vitrail.models import NAMES, parse
    from vitrail.models.cost.total import cost_of

    costs = [cost_of(parse(name)) for name in NAMES]
    if json:
        keys = ("name", "parameters", "macs", "tokens")
        print_json([{key: getattr(cost, key) for key in keys} for cost in costs])
        return
    table = new_table("model", "parameters", "GMACs", "tokens")
    for cost in costs:
        row = (f"{cost.parameters:,}", f"{cost.macs / 1e9:.3f}", str(cost.tokens))
        table.add_row(cost.name, *row)
    print_renderable(table)


def describe(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    *,
    classes: int | None = None,
    image: Annotated[str | None, tyro.conf.arg(metavar="HxW")] = None,
    batch: int = 1,
    json: Json = False,
) -> None:
    """Show a model's layers and what it costs, without building it.

    Example: vitrail describe ViT-B/16 --image 384x384 --batch 32

    Args:
        name: A model's name, such as ViT-B/16, R50+ViT-L/32@384 or BiT-R152x4.
        classes: Outputs of the head; the name's own (1000) unless given.
        image: The images' size, 384 or 384x512; the name's own unless given.
        batch: Images in a training step, for the memory.
    """
    from dataclasses import replace

    from vitrail.models.cost.total import cost_of
    from vitrail.models.names import parse, parse_size

    if batch < 1:
        raise InputError(f"--batch is at least 1, not {batch}")
    spec = parse(name)
    spec = spec if classes is None else replace(spec, classes=classes)
    cost = cost_of(spec, image=parse_size(image) if image else None, batch=batch)
    if json:
        print_json(asdict(cost))
    else:
        _print_cost(cost)


def _print_cost(cost: Cost) -> None:
    """Print a model's layers and totals."""
    table = new_table("layer", "output", "parameters", "MMACs", "kept MiB")
    for row in cost.rows:
        layer = row.layer if row.repeats == 1 else f"{row.layer} x {row.repeats}"
        kept = 4 * (cost.batch * row.kept + row.kept_once) / 2**20
        shape = " x ".join(map(str, row.output))
        table.add_row(layer, shape, f"{row.parameters:,}", f"{row.macs / 1e6:,.1f}", f"{kept:,.1f}")
    print_renderable(table)
    height, width = cost.image
    print_line(
        f"{cost.name}, {cost.classes} classes, {height}x{width} images, {cost.tokens} tokens"
    )
    print_line(f"parameters  {cost.parameters:,} ({_bytes(cost.parameter_bytes)} as float32)")
    print_line(f"forward     {cost.macs / 1e9:.3f} GMACs an image ({cost.flops / 1e9:.3f} GFLOPs)")
    print_line(f"training    {cost.training_flops / 1e9:.3f} GFLOPs an image, forward and backward")
    state, kept = _bytes(cost.training_state_bytes), _bytes(cost.activation_bytes)
    print_line(f"memory      {state} weights, gradients and Adam; {kept} activations at batch "
           f"{cost.batch} ({_bytes(cost.checkpointed_bytes)} with checkpointing)")  # fmt: skip


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
