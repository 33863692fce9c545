"""From a name or a spec to a model."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitrail.models.bit import BiT
from vitrail.models.names import parse
from vitrail.models.spec import BiTSpec, Spec
from vitrail.models.vit import ViT


def build(
    model: str | Spec, *, classes: int | None = None, device: str | torch.device | None = None
) -> ViT | BiT:
    """Build a model with fresh weights.

    `classes` replaces the spec's (0: no head, `forward` gives features). On the "meta" device
    nothing is allocated; `to_empty` and `init_weights` make such a model real.
    """
    spec = parse(model) if isinstance(model, str) else model
    if classes is not None:
        spec = replace(spec, classes=classes)
    with torch.device(device or torch.get_default_device()):
        return BiT(spec) if isinstance(spec, BiTSpec) else ViT(spec)
