"""Layer-by-layer similarity of two models: linear CKA, from minibatches (arXiv 2010.15327).

Each batch adds an unbiased estimate of three covariances (Song et al. 2012), so that the result
depends on the batch size only by its noise, and no batch has to hold a dataset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.inspection.hooks import evaluating, find_model
from vitrail.inspection.record import record
from vitrail.plotting.drawable import Drawable

if TYPE_CHECKING:
    from vitrail.plotting.canvas import Plot


@dataclass(frozen=True, eq=False)
class LayerSimilarity(Drawable):
    """How similar the layers of two models are on the same images."""

    cka: np.ndarray
    """(layers of the first, layers of the second); 1 is the same up to rotation and scale."""
    names: tuple[str, str]
    """The models'."""

    def draw(self) -> Plot:
        """Draw the similarities, one cell per pair of layers."""
        from vitrail.plotting.inspection_plots import draw_similarity

        return draw_similarity(self.cka, self.names)


def compare_layers(
    first: nn.Module, second: nn.Module, batches: Iterable[Tensor | tuple[Tensor, Tensor]]
) -> LayerSimilarity:
    """Compare all blocks' outputs on the same images, at least four in each batch.

    A batch is what both models take, or a pair where they take images of different sizes. All
    tokens of an image together are its features.
    """
    both: Tensor | float = 0.0
    own: list[Tensor | float] = [0.0, 0.0]
    models = (first, second)
    for batch in batches:
        inputs = batch if isinstance(batch, tuple) else (batch, batch)
        if len(inputs[0]) != len(inputs[1]):
            raise InputError(f"{len(inputs[0])} images for the first, {len(inputs[1])} for the "
                             "second model; give both the same ones")  # fmt: skip
        if len(inputs[0]) < 4:
            continue
        grams = [_grams(model, x) for model, x in zip(models, inputs, strict=True)]
        both = both + covariances(*grams)
        for side, gram in enumerate(grams):
            own[side] = own[side] + torch.stack([covariances(k[None], k[None])[0, 0] for k in gram])
    if isinstance(both, float):
        raise InputError("similarity needs batches of at least four images")
    rows, columns = (torch.as_tensor(part) for part in own)
    cka = both / (rows[:, None] * columns).sqrt()
    names = (find_model(first).spec.name, find_model(second).spec.name)
    return LayerSimilarity(cka.float().numpy(), names)


def covariances(first: Tensor, second: Tensor) -> Tensor:
    """Estimate the covariance (HSIC) of each pair of grams (layers, images, images)."""
    count = first.shape[-1]
    if count < 4:
        raise InputError(f"similarity needs at least four images, not {count}")
    empty = 1 - torch.eye(count, dtype=first.dtype, device=first.device)
    k, m = first * empty, second * empty
    sums = k.sum(1), m.sum(1)  # of each image, (layers, images)
    traces = k.flatten(1) @ m.flatten(1).T
    products = sums[0].sum(1)[:, None] * sums[1].sum(1) / ((count - 1) * (count - 2))
    mixed = sums[0] @ sums[1].T * 2 / (count - 2)
    return (traces + products - mixed) / (count * (count - 3))


def _grams(model: nn.Module, x: Tensor) -> Tensor:
    """Give each block's gram matrix of a batch (layers, images, images)."""
    with evaluating(model), record(model, tokens="all") as tape:
        model(x)
    rows = (tokens.float().flatten(1) for tokens in tape.tokens.values())
    # Centering changes no covariance, but leaves float32 its digits for what differs.
    rows = (each - each.mean(0) for each in rows)
    with torch.autocast(x.device.type, enabled=False):
        return torch.stack([(each @ each.T).cpu().double() for each in rows])
