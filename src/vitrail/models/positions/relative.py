"""Relative positions: a bias of the attention logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers.linear import Linear
from vitrail.models.positions.grid_resizing import resize_grid, resize_offsets
from vitrail.models.positions.mixed_grids import MixedGrids
from vitrail.models.spec import ResizeRule, Size, ViTSpec


class RelativeBias(nn.Module):
    """BEiT's 2-D relative positions: a bias of each head for the offset between two patches.

    Three more rows are the biases from the class token, to it, and of it with itself.
    """

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.grid = spec.grid
        self.rule: ResizeRule = spec.position_resize
        self.token = spec.class_tokens > 0
        rows, columns = spec.grid
        offsets = (2 * rows - 1) * (2 * columns - 1)
        self.table = nn.Parameter(torch.empty(offsets + 3 * self.token, spec.heads))

    def forward(self, query: Tensor, grid: Size | MixedGrids) -> Tensor:
        """Return the logits' bias (images or 1, heads, tokens, tokens) for images' grids."""
        if isinstance(grid, MixedGrids):
            return grid.gather_pairs(lambda size: self(query, size)[0], int(self.token))
        table = resize_offsets(self.table, self.grid, grid, self.rule)
        index = _offset_index(grid, query.device)
        if self.token:
            last = table.shape[0] - 1
            index = F.pad(F.pad(index, (1, 0), value=last - 1), (0, 0, 1, 0), value=last - 2)
            index = torch.cat([F.pad(index[:1, 1:], (1, 0), value=last), index[1:]])
        return table[index].permute(2, 0, 1)[None].to(query.dtype)


class RelativeMLP(nn.Module):
    """timm's relative positions: an MLP gives each head's bias for the logarithm of an offset.

    Any grid has its own offsets, so that nothing is resized. Only patches have biases.
    """

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.prefix = spec.prefix
        self.hidden = Linear(2, spec.position_mlp)
        self.output = Linear(spec.position_mlp, spec.heads)

    def forward(self, query: Tensor, grid: Size | MixedGrids) -> Tensor:
        """Return the logits' bias (images or 1, heads, tokens, tokens) for images' grids."""
        if isinstance(grid, MixedGrids):
            return grid.gather_pairs(lambda size: self(query, size)[0], self.prefix)
        sides = (torch.arange(1 - side, side, device=query.device).float() for side in grid)
        offsets = torch.cartesian_prod(*sides)
        offsets = offsets.sign() * (1 + offsets.abs()).log()
        table = self.output(self.hidden(offsets.to(self.hidden.weight.dtype)).relu())
        bias = table[_offset_index(grid, query.device)].permute(2, 0, 1)
        return F.pad(bias, (self.prefix, 0, self.prefix, 0))[None].to(query.dtype)


def _offset_index(grid: Size, device: torch.device) -> Tensor:
    """Return the number (patches, patches) of the offset between two patches of a grid."""
    y, x = (torch.arange(side, device=device) for side in grid)
    down, across = y[:, None] - y + grid[0] - 1, x[:, None] - x + grid[1] - 1
    index = down[:, None, :, None] * (2 * grid[1] - 1) + across[:, None]
    return index.flatten(2).flatten(0, 1)


class RelativePositions(nn.Module):
    """The paper's 1-D relative attention: queries against an embedding of the offset p_q - p_k."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * tokens - 1, width))

    def forward(self, query: Tensor) -> Tensor:
        """Return the logits' bias (lines, heads, tokens, tokens) for queries (…, head size).

        Row i of the table is the offset i - (tokens - 1). For another number of tokens than trained
        the table is resized.
        """
        _, heads, tokens, size = query.shape
        offsets = 2 * tokens - 1
        table = resize_grid(self.table, (len(self.table), 1), (offsets, 1)).to(query.dtype)
        keys = table.view(offsets, heads, size)
        logits = torch.einsum("bhtd,ohd->bhto", query * size**-0.5, keys)
        # Query q needs offsets q - k for k = 0, 1, …: columns q + tokens - 1 downwards. Reversed,
        # row q starts tokens - 1 - q columns in, a shear that one reshape of the padded rows does.
        sheared = F.pad(logits.flip(-1), (0, 1)).flatten(-2)
        sheared = sheared[..., tokens - 1 : tokens - 1 + tokens * offsets]
        return sheared.unflatten(-1, (tokens, offsets))[..., :tokens]
