"""Random choice of the patches that are masked, as a pure function of each image's key.

Every image has the same number of them, so that a batch's chosen patches are one tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.models.noise import draw_words
from vitrail.models.pretraining.mim import MaskConfig, count_chosen
from vitrail.models.spec import Size

_STREAM = 0x6D61736B  # sets these draws apart from dropout's, which have the same keys


class Masking(NamedTuple):
    """Which patches of each image are predicted, and what replaces them."""

    chosen: Tensor
    """(batch, chosen) indices of the patches to predict: masked, replaced, then unchanged ones."""
    seen: Tensor
    """(batch, others) indices of the other patches, sorted."""
    partners: Tensor
    """(batch, replaced) indices of the patches whose embeddings the replaced ones get."""
    masked: int
    """How many of the chosen ones become the mask embedding."""


def sample_masking(keys: Tensor, grid: Size, config: MaskConfig) -> Masking:
    """Choose patches of images from one int64 key each (batch,)."""
    chosen_count = count_chosen(grid, config)
    units = grid[0] // config.unit, grid[1] // config.unit
    count = units[0] * units[1]
    masked = round(config.masked * chosen_count)
    replaced = min(round(config.replaced * chosen_count), chosen_count - masked)
    words = draw_words(keys ^ _STREAM, count + replaced)
    order = _spread(words[:, :count].argsort(dim=1), units, config.unit)
    chosen, seen = order[:, :chosen_count], order[:, chosen_count:].sort(dim=1).values
    moves = 1 + (words[:, count:] >> 1 & (2**62 - 1)) % (grid[0] * grid[1] - 1)  # never itself
    partners = (chosen[:, masked : masked + replaced] + moves) % (grid[0] * grid[1])
    return Masking(chosen, seen, partners, masked)


def _spread(order: Tensor, units: Size, side: int) -> Tensor:
    """Replace the indices of square units (batch, units) by those of their patches."""
    if side == 1:
        return order
    down, across = order // units[1], order % units[1]
    steps = torch.arange(side, device=order.device)
    rows = down[..., None, None] * side + steps[:, None]
    columns = across[..., None, None] * side + steps
    return (rows * (units[1] * side) + columns).flatten(1)


def mask_patches(patches: Tensor, mask: Tensor, masking: Masking) -> Tensor:
    """Mask and replace patch embeddings (batch, patches, width)."""
    chosen, partners, masked = masking.chosen, masking.partners, masking.masked
    replaced = partners.shape[1]
    places = chosen[:, : masked + replaced, None].expand(-1, -1, patches.shape[2])
    others = patches.gather(1, partners[..., None].expand(-1, -1, patches.shape[2]))
    blank = mask.to(patches.dtype).expand(len(patches), masked, -1)
    return patches.scatter(1, places, torch.cat([blank, others], dim=1))


def gather_patches(values: Tensor, places: Tensor) -> Tensor:
    """Gather each image's rows at `places` (batch, n) from (batch, patches, …)."""
    return values[torch.arange(len(values), device=values.device)[:, None], places]
