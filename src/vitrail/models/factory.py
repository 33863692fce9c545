"""Building a model from a name or a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vitrail.config import InputError, from_dict, to_dict
from vitrail.machine import available_memory
from vitrail.models.bit import BiT
from vitrail.models.cost.total import FLOAT, cost_of
from vitrail.models.names import as_size, as_spec
from vitrail.models.spec import BiTSpec, Spec
from vitrail.models.vit import ViT


def build(
    model: str | Spec,
    *,
    classes: int | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    **options: Any,
) -> ViT | BiT:
    """Build a model with fresh weights: `build("ViT-Ti/16", pool="gap", classes=10)`.

    `options` are fields of the spec, as after a comma in a name; `image`, like `load`'s, also a
    number or "384x512". With `classes=0` there is no head,
    and `forward` returns features. With a `seed` the weights are those of `init_weights(seed)`, and
    torch's global generator is not used. On the "meta" device nothing is allocated; `to_empty` and
    `init_weights` make such a model real.
    """
    spec = as_spec(model)
    if classes is not None:
        spec = replace(spec, classes=classes)
    if options:
        try:
            if "image" in options:
                options["image"] = as_size(options["image"]) or spec.image
            spec = from_dict(type(spec), {**to_dict(spec), **options})
        except InputError as error:
            raise InputError(f"{spec.name}: {error}") from None
    place = torch.device(device or torch.get_default_device())
    if place.type == "cpu":
        _check_memory(spec)
    with torch.device(place if seed is None else "meta"):
        made = BiT(spec) if isinstance(spec, BiTSpec) else ViT(spec)
    if seed is not None and place.type != "meta":
        made.to_empty(device=place).init_weights(seed)
    return made


def _check_memory(spec: Spec) -> None:
    """Refuse a model whose weights alone are larger than this machine's free memory."""
    needed, free = FLOAT * cost_of(spec).parameters, available_memory()
    if needed > free:
        raise InputError(
            f"{spec.name[:80]} has {needed / 2**30:,.1f} GiB of weights, this machine "
            f"{free / 2**30:,.1f} GiB of free memory; choose a smaller model"
        )
