"""Attention maps as plain data, for the page and for programs."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

from vitrail.data.transforms.apply import normalize
from vitrail.inspection.attention import Method, attention_masks
from vitrail.inspection.distance import attention_distance
from vitrail.inspection.hooks import attention_layers, choose_layers, evaluating, patches_of
from vitrail.inspection.record import record
from vitrail.plotting.tiles import to_colors
from vitrail.predictor import Predictor

MAX_TOKENS = 1100
"""With more tokens, the weights are left out: they would take too many megabytes."""


@torch.no_grad()
def attention_response(
    predictor: Predictor,
    data: bytes,
    *,
    method: Method,
    layer: int,
    head: int | None,
    distances: bool,
    view: bool,
) -> dict[str, Any]:
    """Compute the attention of patches and, for one layer and head, what each token attends to.

    Without `head`, the mean of all heads. `distances` adds the mean attention distance of each
    layer and head in pixels; `view` adds the image as the model sees it.
    """
    model, prepared = predictor.model, predictor.prepare(data)
    x = normalize(prepared[None], predictor.preprocess, device=predictor.device)
    rows, columns = patches_of(model, x)
    if head is not None:
        choose_layers([head], attention_layers(model)[0].heads, "head", model.spec.name)
    response: dict[str, Any] = {"grid": [rows, columns], "method": method}
    if method == "raw":
        heads = None if head is None else [head]
        with evaluating(model), record(model, attention=[layer], heads=heads) as tape:
            model(x)
        weights = tape.attention[layer][0].mean(0)
        tokens = len(weights)
        response |= {"layer": layer, "head": head, "prefix": tokens - rows * columns}
        response["weights"] = _plain(weights.numpy(force=True)) if tokens <= MAX_TOKENS else None
    masks = attention_masks(model, x, method=method, layer=layer, by_head=head is not None)
    values = masks.values[0] if head is None else masks.values[0, head]
    response["mask"] = _plain(values)
    if distances:
        response["distances"] = _plain(attention_distance(model, [x]).pixels)
    if view:
        response["view"] = _image(prepared.numpy())
    return response


def _plain(values: np.ndarray) -> list[Any]:
    """Make nested lists, rounded to five decimals."""
    return np.round(values.astype(np.float64), 5).tolist()


def _image(pixels: np.ndarray) -> dict[str, Any]:
    """Encode pixels as base64 of red, green and blue, row by row."""
    height, width = pixels.shape[:2]
    text = base64.b64encode(np.ascontiguousarray(to_colors(pixels)).tobytes()).decode()
    return {"height": height, "width": width, "rgb": text}
