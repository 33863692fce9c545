"""Position embeddings (Appendix D.4) and how they come to another grid or patch size.

Absolute kinds give a table with one row a token, which the model adds at its input or at every
layer; the relative kind gives attention a bias.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.spec import ResizeRule, Size, ViTSpec

_RULES: dict[ResizeRule, tuple[str, bool, bool]] = {  # mode, aligned corners, antialias
    "google": ("bilinear", True, False),  # scipy.ndimage.zoom(order=1)
    "timm": ("bicubic", False, True),
    "huggingface": ("bicubic", False, False),
    "torchvision": ("bicubic", True, False),
}


def resize_grid(table: Tensor, old: Size, new: Size, rule: ResizeRule = "google") -> Tensor:
    """Resize a table (old rows x columns, width) to a new grid, by the named project's rule."""
    if old == new:
        return table
    mode, corners, antialias = _RULES[rule]
    # A copy, because torch 2.13 resizes channels-last grids to one column wrongly.
    grid = table.unflatten(0, old).permute(2, 0, 1)[None].contiguous()
    if grid.dtype in (torch.float16, torch.bfloat16):
        grid = grid.float()  # the peers resize in float32 too
    grid = F.interpolate(grid, new, mode=mode, align_corners=corners, antialias=antialias)
    return grid[0].flatten(1).T.to(table.dtype)


def resize_positions(
    table: Tensor, old: Size, new: Size, rule: ResizeRule = "google", prefix: int = 0
) -> Tensor:
    """Resize a table's grid rows; the first `prefix` rows (a class token's) stay as they are."""
    if old == new:
        return table
    return torch.cat([table[:prefix], resize_grid(table[prefix:], old, new, rule)])


def sincos_2d(grid: Size, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Give the fixed table of big_vision (MoCo v3's): sin x, cos x, sin y, cos y."""
    exact = torch.promote_types(dtype, torch.float32)
    steps = torch.arange(width // 4, device=device, dtype=exact)
    omega = 10_000.0 ** (-steps / (width // 4 - 1))
    y, x = (torch.arange(side, device=device, dtype=exact)[:, None] * omega for side in grid)
    across = torch.cat([x.sin(), x.cos()], dim=1).expand(grid[0], -1, -1)
    down = torch.cat([y.sin(), y.cos()], dim=1)[:, None].expand(-1, grid[1], -1)
    return torch.cat([across, down], dim=2).flatten(0, 1).to(dtype)


class Positions(nn.Module):
    """A table of absolute positions: learned 1-D, learned 2-D, or fixed sin-cos."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.spec = spec
        rows, columns = spec.grid
        self.class_rows = spec.positioned
        if spec.position == "learned-1d":
            self.table = nn.Parameter(torch.empty(self.class_rows + rows * columns, spec.width))
        elif spec.position == "learned-2d":
            self.x = nn.Parameter(torch.empty(columns, spec.width // 2))
            self.y = nn.Parameter(torch.empty(rows, spec.width // 2))
            if self.class_rows:
                self.class_token = nn.Parameter(torch.empty(self.class_rows, spec.width))

    def forward(self, grid: Size, like: Tensor) -> Tensor:
        """Give a row for each token of an image with this grid, zeros where it has no position."""
        table = self._covered(grid, like)
        bare = self.spec.prefix - self.class_rows
        if not bare:
            return table
        zeros = table.new_zeros(bare, table.shape[1])
        return torch.cat([table[: self.class_rows], zeros, table[self.class_rows :]])

    def _covered(self, grid: Size, like: Tensor) -> Tensor:
        """Give the rows of the class token (if it has one) and of the patches."""
        rule, (rows, columns) = self.spec.position_resize, self.spec.grid
        if self.spec.position == "learned-1d":
            return resize_positions(self.table, self.spec.grid, grid, rule, self.class_rows)
        if self.spec.position == "learned-2d":
            x = resize_grid(self.x, (1, columns), (1, grid[1]), rule).expand(grid[0], -1, -1)
            y = resize_grid(self.y, (rows, 1), (grid[0], 1), rule)[:, None].expand(-1, grid[1], -1)
            patches = torch.cat([x, y], dim=2).flatten(0, 1)
            return torch.cat([self.class_token, patches]) if self.class_rows else patches
        patches = sincos_2d(grid, self.spec.width, like.dtype, like.device)
        return F.pad(patches, (0, 0, self.class_rows, 0))


class RelativePositions(nn.Module):
    """The paper's 1-D relative attention: queries against an embedding of the offset p_q - p_k."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * tokens - 1, width))

    def forward(self, query: Tensor) -> Tensor:
        """Give the logits' bias (lines, heads, tokens, tokens) of queries (…, head size).

        Row i of the table is the offset i - (tokens - 1). A sequence of another length than
        trained takes a table resized between its ends.
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


def resize_patches(weight: Tensor, new: Size) -> Tensor:
    """Resize patch-embedding filters (width, channels, P, Q) by the pseudo-inverse (FlexiViT).

    The new filters give a bilinearly resized patch the same embedding as the old ones gave the
    patch (arXiv 2212.08013, section 3.4).
    """
    old: Size = (weight.shape[2], weight.shape[3])
    if old == tuple(new):
        return weight
    basis = torch.eye(old[0] * old[1], dtype=torch.float64, device=weight.device)
    images = basis.view(-1, 1, *old)
    shrunk = F.interpolate(images, new, mode="bilinear", align_corners=False, antialias=True)
    inverse = torch.linalg.pinv(shrunk.flatten(1))  # (new pixels, old pixels)
    return (weight.double().flatten(2) @ inverse.T).unflatten(2, new).to(weight.dtype)
