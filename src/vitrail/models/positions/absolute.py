"""Absolute positions (Appendix D.4): a table with one row per token, added to the tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.positions.grid_resizing import resize_grid, resize_lines, resize_positions
from vitrail.models.spec import Size, ViTSpec


def sincos_2d(grid: Size, width: int, like: Tensor, *, mae: bool = False) -> Tensor:
    """Return a fixed table (cells, width) in the type of `like`: sin x, cos x, sin y, cos y.

    big_vision's frequencies end at 1 / 10,000, MAE's (MoCo v3's) one step before it.
    """
    device, dtype, quarter = like.device, like.dtype, width // 4
    exact = torch.promote_types(dtype, torch.float32)
    steps = torch.arange(quarter, device=device, dtype=exact)
    omega = 10_000.0 ** (-steps / (quarter if mae else quarter - 1))
    y, x = (torch.arange(side, device=device, dtype=exact)[:, None] * omega for side in grid)
    across = torch.cat([x.sin(), x.cos()], dim=1).expand(grid[0], -1, -1)
    down = torch.cat([y.sin(), y.cos()], dim=1)[:, None].expand(-1, grid[1], -1)
    return torch.cat([across, down], dim=2).flatten(0, 1).to(dtype)


class Positions(nn.Module):
    """A table of absolute positions: learned 1-D, learned 2-D, factorized, or fixed sin-cos."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.spec = spec
        rows, columns = spec.grid
        self.class_rows = spec.positioned
        if spec.position == "learned-1d":
            self.table = nn.Parameter(torch.empty(self.class_rows + rows * columns, spec.width))
        elif spec.position in ("learned-2d", "factorized"):
            width = spec.width // (2 if spec.position == "learned-2d" else 1)
            self.x = nn.Parameter(torch.empty(columns, width))
            self.y = nn.Parameter(torch.empty(rows, width))
            if self.class_rows:
                self.class_token = nn.Parameter(torch.empty(self.class_rows, spec.width))

    def forward(self, grid: Size, like: Tensor) -> Tensor:
        """Return one row per token of an image with this grid, zeros where it has no position."""
        table = self._covered(grid, like)
        bare = self.spec.prefix - self.class_rows
        if not bare:
            return table
        zeros = table.new_zeros(bare, table.shape[1])
        return torch.cat([table[: self.class_rows], zeros, table[self.class_rows :]])

    def _covered(self, grid: Size, like: Tensor) -> Tensor:
        """Return the rows of the class token (if it has a position) and of the patches."""
        rule, (rows, columns) = self.spec.position_resize, self.spec.grid
        if self.spec.position == "learned-1d":
            return resize_positions(self.table, self.spec.grid, grid, rule, self.class_rows)
        if self.spec.position == "factorized":
            y, x = resize_lines(self.y, self.x, grid, rule)
            patches = (y[:, None] + x).flatten(0, 1)
            return torch.cat([self.class_token, patches]) if self.class_rows else patches
        if self.spec.position == "learned-2d":
            x = resize_grid(self.x, (1, columns), (1, grid[1]), rule).expand(grid[0], -1, -1)
            y = resize_grid(self.y, (rows, 1), (grid[0], 1), rule)[:, None].expand(-1, grid[1], -1)
            patches = torch.cat([x, y], dim=2).flatten(0, 1)
            return torch.cat([self.class_token, patches]) if self.class_rows else patches
        patches = sincos_2d(grid, self.spec.width, like, mae=self.spec.position == "sincos-2d-mae")
        return F.pad(patches, (0, 0, self.class_rows, 0))
