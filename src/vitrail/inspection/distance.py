"""Mean attention distance: how far each head looks (Figures 7 right and 11, Appendix D.7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.inspection.hooks import (
    AttentionCall,
    attention_layers,
    evaluating,
    find_model,
    hooked,
    patches_of,
)
from vitrail.inspection.record import chunks_of
from vitrail.models import BiT
from vitrail.models.spec import Size
from vitrail.plotting.drawable import Drawable

if TYPE_CHECKING:
    from vitrail.plotting.canvas import Plot


@dataclass(frozen=True, eq=False)
class AttentionDistance(Drawable):
    """The mean attention distance of each head, averaged over images."""

    pixels: np.ndarray
    """(layers, heads), in pixels of the model's input."""
    images: int
    """Images that it was averaged over."""
    name: str
    """The model's."""

    def draw(self) -> Plot:
        """Draw a dot for each head, as in Figure 7 right."""
        from vitrail.plotting.inspection_plots import draw_distances

        return draw_distances({self.name: self.pixels})


def attention_distance(model: nn.Module, batches: Iterable[Tensor]) -> AttentionDistance:
    """Average how far a patch's attention reaches, over all patches of images.

    Batches are the model's input. The distance is Euclidean, between the patches' centers, and
    weighted by attention. The class token and registers are left out: attention is normalized
    over the patches. Of differential attention, whose rows add up to less and may be negative, it
    is the absolute value, normalized.
    """
    inner = find_model(model)
    sites, name = attention_layers(inner), inner.spec.name
    if not sites:
        raise InputError(
            f"{name} has no attention, so no attention distance; use a ViT or a hybrid"
        )
    prefix = 0 if isinstance(inner, BiT) else inner.spec.prefix
    sums = torch.zeros(len(sites), sites[0].heads, dtype=torch.float64)
    tables: dict[tuple[Size, Size], Tensor] = {}
    image, patches, images = (0, 0), (0, 0), 0

    def on_attention(found: AttentionCall) -> None:
        for chunk in chunks_of(found, skip=prefix):
            grid = chunk.grid or patches
            if (grid, image) not in tables:
                steps = image[0] / grid[0], image[1] / grid[1]
                mean = grid_distances(grid, steps) / (grid[0] * grid[1])
                tables[grid, image] = mean.flatten().to(chunk.weights)
            weights = chunk.weights
            if found.subtracted is not None:  # else rows add up to 1
                weights = weights.abs_()
                weights /= weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
            far = weights.flatten(2) @ tables[grid, image]
            sums[found.layer, chunk.heads] += far.cpu().double().sum(0)

    everything = range(len(sites))
    with evaluating(model), hooked(model, attention=everything, on_attention=on_attention):
        for batch in batches:
            image = (batch.shape[2], batch.shape[3])
            patches = image if isinstance(inner, BiT) else patches_of(inner, batch)
            model(batch)
            images += len(batch)
    if not images:
        raise InputError("no images to measure attention on; give at least one")
    return AttentionDistance((sums / images).numpy(), images, name)


def grid_distances(grid: Size, steps: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """Return the distance between all cells of a grid (cells, cells), in pixels."""
    down, across = (torch.arange(side) * step for side, step in zip(grid, steps, strict=True))
    places = torch.cartesian_prod(down.double(), across.double())
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
