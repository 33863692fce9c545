"""Which patches of an image a model does not get to see, as a pure function of its key.

Counts are exact for each image, so that a batch's chosen patches make a whole tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.noise import draw_words
from vitrail.models.spec import Size

_STREAM = 0x6D61736B  # sets these draws apart from dropout's, which have the same keys


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """How patches are corrupted (Appendix B.1.2)."""

    ratio: float = 0.5  # Appendix B.1.2
    """Part of the patches that is chosen, and predicted."""
    masked: float = 0.8  # Appendix B.1.2
    """Part of the chosen ones that becomes the mask embedding."""
    replaced: float = 0.1  # Appendix B.1.2
    """Part of the chosen ones that becomes another patch's embedding; the rest stay."""
    unit: int = 1
    """Patches are chosen in squares of so many by so many (SimMIM)."""

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise InputError(f"mask.ratio is a part above 0 and below 1, not {self.ratio}")
        for name in ("masked", "replaced"):
            if not 0 <= (rate := getattr(self, name)) <= 1:
                raise InputError(f"mask.{name} is a part from 0 to 1, not {rate}")
        if self.masked + self.replaced > 1 + 1e-9:
            total = f"{self.masked:g} + {self.replaced:g}"
            raise InputError(f"mask.masked and mask.replaced are parts of one: {total} is over 1")
        if self.unit < 1:
            raise InputError(f"mask.unit is at least 1 patch, not {self.unit}")


class Masking(NamedTuple):
    """What happens to each image's patches."""

    chosen: Tensor
    """(batch, chosen) numbers of the patches to predict: masked, then replaced, then staying."""
    seen: Tensor
    """(batch, others) numbers of the other patches, in their order."""
    partners: Tensor
    """(batch, replaced) numbers of the patches whose embeddings the replaced ones get."""
    masked: int
    """How many of the chosen ones become the mask embedding."""


def sample_masking(keys: Tensor, grid: Size, config: MaskConfig) -> Masking:
    """Choose patches of images with one int64 key each (batch,)."""
    units = grid[0] // config.unit, grid[1] // config.unit
    if (units[0] * config.unit, units[1] * config.unit) != grid:
        raise InputError(
            f"mask.unit {config.unit} does not divide the grid of {grid[0]}x{grid[1]} patches"
        )
    count = units[0] * units[1]
    patches = config.unit**2
    take = round(config.ratio * count)
    if not 0 < take < count:
        raise InputError(
            f"mask.ratio {config.ratio:g} of {count} patches is {take}; some have to be chosen, "
            "and some not"
        )
    masked = round(config.masked * take * patches)
    replaced = min(round(config.replaced * take * patches), take * patches - masked)
    words = draw_words(keys ^ _STREAM, count + replaced)
    order = _spread(words[:, :count].argsort(dim=1), units, config.unit)
    chosen, seen = order[:, : take * patches], order[:, take * patches :].sort(dim=1).values
    moves = 1 + (words[:, count:] >> 1 & (2**62 - 1)) % (grid[0] * grid[1] - 1)  # never itself
    partners = (chosen[:, masked : masked + replaced] + moves) % (grid[0] * grid[1])
    return Masking(chosen, seen, partners, masked)


def _spread(order: Tensor, units: Size, side: int) -> Tensor:
    """Make numbers of square units (batch, units) those of their patches."""
    if side == 1:
        return order
    down, across = order // units[1], order % units[1]
    steps = torch.arange(side, device=order.device)
    rows = down[..., None, None] * side + steps[:, None]
    columns = across[..., None, None] * side + steps
    return (rows * (units[1] * side) + columns).flatten(1)


def mask_patches(patches: Tensor, mask: Tensor, masking: Masking) -> Tensor:
    """Corrupt patch embeddings (batch, patches, width) with a mask embedding (width)."""
    chosen, partners, masked = masking.chosen, masking.partners, masking.masked
    replaced = partners.shape[1]
    places = chosen[:, : masked + replaced, None].expand(-1, -1, patches.shape[2])
    others = patches.gather(1, partners[..., None].expand(-1, -1, patches.shape[2]))
    blank = mask.to(patches.dtype).expand(len(patches), masked, -1)
    return patches.scatter(1, places, torch.cat([blank, others], dim=1))


def gather_patches(values: Tensor, places: Tensor) -> Tensor:
    """Take the rows at each image's places (batch, n) of (batch, patches, …)."""
    return values[torch.arange(len(values), device=values.device)[:, None], places]
