"""What a model looks at, as numbers for the page and for programs."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

from vitrail.data.decoding.decode import Limits, read_header
from vitrail.data.transforms.apply import normalize
from vitrail.inspection.attention import Method, attention_masks
from vitrail.inspection.distance import attention_distance
from vitrail.inspection.hooks import attention_layers, choose_layers, evaluating, patches_of
from vitrail.inspection.record import record
from vitrail.plotting.tiles import to_colors
from vitrail.predictor import Predictor

MOST_TOKENS = 1100
"""Tokens of which all weights are given; of more they would take too many megabytes."""


@torch.no_grad()
def explain(
    predictor: Predictor,
    data: bytes,
    limits: Limits,
    *,
    method: Method,
    layer: int,
    head: int | None,
    distances: bool,
    view: bool,
) -> dict[str, Any]:
    """Say how much patches count and, of one layer and head, what each token attends to.

    Without `head`, the heads' mean. `distances` are each layer's and head's mean attention
    distances in pixels; `view` is the image as the model saw it.
    """
    read_header(data, limits)
    model, prepared = predictor.model, predictor.prepare(data)
    x = normalize(prepared[None], predictor.preprocess, device=predictor.device)
    rows, columns = patches_of(model, x)
    if head is not None:
        choose_layers([head], attention_layers(model)[0].heads, "head", model.spec.name)
    told: dict[str, Any] = {"grid": [rows, columns], "method": method}
    if method == "raw":
        heads = None if head is None else [head]
        with evaluating(model), record(model, attention=[layer], heads=heads) as tape:
            model(x)
        weights = tape.attention[layer][0].mean(0)
        tokens = len(weights)
        told |= {"layer": layer, "head": head, "prefix": tokens - rows * columns}
        told["weights"] = _plain(weights.numpy(force=True)) if tokens <= MOST_TOKENS else None
    masks = attention_masks(model, x, method=method, layer=layer, by_head=head is not None)
    values = masks.values[0] if head is None else masks.values[0, head]
    told["mask"] = _plain(values)
    if distances:
        told["distances"] = _plain(attention_distance(model, [x]).pixels)
    if view:
        told["view"] = _image(prepared.numpy())
    return told


def _plain(values: np.ndarray) -> list[Any]:
    """Make nested lists; five decimals are more than an image shows."""
    return np.round(values.astype(np.float64), 5).tolist()


def _image(pixels: np.ndarray) -> dict[str, Any]:
    """Give pixels as base64 of red, green and blue, row by row."""
    height, width = pixels.shape[:2]
    text = base64.b64encode(np.ascontiguousarray(to_colors(pixels)).tobytes()).decode()
    return {"height": height, "width": width, "rgb": text}
