"""Rotary positions: queries and keys turned by angles that grow with a patch's place.

Angles are computed in float32, as in the projects whose weights these are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.models.noise import UniformNoise
from vitrail.models.positions.mixed_grids import MixedGrids
from vitrail.models.spec import Size
from vitrail.models.vit_spec import ViTSpec


class Rotation(NamedTuple):
    """The cosines and sines that one layer's queries and keys are turned by."""

    cos: Tensor
    """(tokens, head size), or with axes for images and heads before."""
    sin: Tensor
    half: bool
    """Whether a channel's partner is half a head away, instead of its neighbor."""

    def turn(self, x: Tensor) -> Tensor:
        """Turn queries or keys (lines, heads, tokens, head size)."""
        if self.half:
            first, second = x.chunk(2, dim=-1)
            partner = torch.cat([-second, first], dim=-1)
        else:
            partner = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return (x * self.cos + partner * self.sin).to(x.dtype)


class RotaryPositions(nn.Module):
    """Rotary positions of any grid; tokens before the patches are not turned."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.size = spec.width // spec.heads
        if spec.rotary == "mixed":
            shape = (2, spec.depth, spec.heads, self.size // 2)
            self.frequencies = nn.Parameter(torch.empty(shape))
        self.noise = UniformNoise(5) if spec.rotary_noise else None

    def forward(self, grid: Size | MixedGrids, like: Tensor) -> list[Rotation]:
        """Return each layer's rotation for images with this grid of patches."""
        if isinstance(grid, MixedGrids):
            angles = grid.gather(lambda size: self._angles(size, like))
            # (layers, images, heads, …), or without layers and with an axis for all heads.
            angles = angles.movedim(1, 0) if self.spec.rotary == "mixed" else angles[:, None]
        else:
            angles = self._angles(grid, like)
        if self.noise is not None and self.training:
            angles = self._disturb(angles, self.noise(like))
        half = self.spec.rotary == "centered"
        angles = angles.tile(2) if half else angles.repeat_interleave(2, dim=-1)
        prefix = (*angles.shape[:-2], self.spec.prefix, self.size)
        cos = torch.cat([angles.new_ones(prefix), angles.cos()], dim=-2).to(like.dtype)
        sin = torch.cat([angles.new_zeros(prefix), angles.sin()], dim=-2).to(like.dtype)
        if self.spec.rotary != "mixed":
            return [Rotation(cos, sin, half)] * self.spec.depth
        layers = zip(cos.unbind(), sin.unbind(), strict=True)
        return [Rotation(*layer, half) for layer in layers]

    def _disturb(self, angles: Tensor, drawn: Tensor) -> Tensor:
        """Shift, jitter and rescale each image's coordinates, of which angles are multiples.

        `drawn` (images, 5) are from 0 to 1: of shift and jitter down and across, and of rescale.
        """
        spec, bands = self.spec, self.size // 4
        drawn = 2 * drawn.to(angles.dtype) - 1
        shift, log = spec.rotary_shift * drawn[:, :2], math.log(spec.rotary_jitter) * drawn[:, 2:4]
        factor = (log + math.log(spec.rotary_rescale) * drawn[:, 4:]).exp()
        shift, factor = (each.repeat_interleave(bands, dim=1) for each in (shift, factor))
        turns = 2 * math.pi / self._periods(angles).tile(2)
        return factor[:, None, None] * (angles + (shift * turns)[:, None, None])

    def _periods(self, like: Tensor) -> Tensor:
        """Return how far apart centered coordinates of the same angle are (bands)."""
        steps = torch.arange(self.size // 4, device=like.device, dtype=torch.float32)
        return self.spec.rotary_theta ** (2 * steps / (self.size // 2))

    def _angles(self, grid: Size, like: Tensor) -> Tensor:
        """Return the angles (…, patches, head size / 2)."""
        spec, (rows, columns) = self.spec, grid
        y, x = (torch.arange(side, device=like.device, dtype=torch.float32) for side in grid)
        if spec.rotary == "mixed":
            across, down = self.frequencies.float().unsqueeze(-2)
            x, y = x.expand(rows, -1).flatten(), y[:, None].expand(-1, columns).flatten()
            return x[:, None] * across + y[:, None] * down
        bands = self.size // 4
        steps = torch.arange(bands, device=like.device, dtype=torch.float32)
        if spec.rotary == "centered":  # DINOv3
            exact = torch.promote_types(like.dtype, torch.float32)
            periods = self._periods(like).to(exact)
            y, x = 2 * ((y + 0.5) / rows) - 1, 2 * ((x + 0.5) / columns) - 1
            y, x = (2 * math.pi * places[:, None].to(exact) / periods for places in (y, x))
        else:
            frequencies = 1 / spec.rotary_theta ** (steps / bands)
            y, x = y + spec.rotary_offset, x + spec.rotary_offset
            if spec.rotary_grid:
                y, x = y / rows * spec.rotary_grid, x / columns * spec.rotary_grid
            y, x = y[:, None] * frequencies, x[:, None] * frequencies
        down = y[:, None].expand(-1, columns, -1)
        across = x.expand(rows, -1, -1)
        both = [across, down] if spec.rotary == "axial-xy" else [down, across]
        return torch.cat(both, dim=-1).flatten(0, 1)


def mixed_frequencies(spec: ViTSpec) -> Tensor:
    """Draw the initial frequencies of `mixed`: axial ones, turned at random in each head."""
    size = spec.width // spec.heads
    sizes = spec.rotary_theta ** -(torch.arange(0, size, 4) / size)
    turns = 2 * math.pi * torch.rand(spec.depth, spec.heads, 1)
    quarter = math.pi / 2
    across = torch.cat([sizes * turns.cos(), sizes * (turns + quarter).cos()], dim=-1)
    down = torch.cat([sizes * turns.sin(), sizes * (turns + quarter).sin()], dim=-1)
    return torch.stack([across, down])
