"""Resizing of position embeddings to another grid, and of patch embeddings to another size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.spec import ResizeRule, Size

_RULES: dict[str, tuple[str, bool, bool]] = {  # mode, aligned corners, antialias
    "google": ("bilinear", True, False),  # scipy.ndimage.zoom(order=1)
    "timm": ("bicubic", False, True),
    "timm-square": ("bicubic", False, True),
    "huggingface": ("bicubic", False, False),
    "torchvision": ("bicubic", True, False),
    "siglip2": ("bilinear", False, True),
}


def resize_grid(table: Tensor, old: Size, new: Size, rule: ResizeRule = "google") -> Tensor:
    """Resize a table (old rows x columns, width) to a new grid, by a project's rule."""
    if old == new:
        return table
    if rule == "dinov2":
        return _resize_with_surplus(table, old, new)
    if rule != "timm-square":
        return _interpolate(table, old, new, *_RULES[rule])
    square = (max(new), max(new))
    resized = _interpolate(table, old, square, *_RULES[rule]).unflatten(0, square)
    return resized[: new[0], : new[1]].flatten(0, 1)


def resize_lines(
    y: Tensor, x: Tensor, new: Size, rule: ResizeRule = "google"
) -> tuple[Tensor, Tensor]:
    """Resize factorized tables of rows and of columns (side, width), linearly as timm does."""
    if (len(y), len(x)) == new:
        return y, x
    lengths = (max(new), max(new)) if rule == "timm-square" else new
    y, x = (_interpolate_line(table, length) for table, length in zip((y, x), lengths, strict=True))
    return y[: new[0]], x[: new[1]]


def _interpolate_line(table: Tensor, length: int) -> Tensor:
    if len(table) == length:
        return table
    line = table.T[None]
    line = line.float() if line.dtype in (torch.float16, torch.bfloat16) else line
    return F.interpolate(line, length, mode="linear", align_corners=False)[0].T.to(table.dtype)


def _interpolate(
    table: Tensor, old: Size, new: Size, mode: str, corners: bool, antialias: bool
) -> Tensor:
    # A copy, because torch 2.13 resizes channels-last grids to one column incorrectly.
    grid = table.unflatten(0, old).permute(2, 0, 1)[None].contiguous()
    if grid.dtype in (torch.float16, torch.bfloat16):
        grid = grid.float()  # as these projects do
    grid = F.interpolate(grid, new, mode=mode, align_corners=corners, antialias=antialias)
    return grid[0].flatten(1).T.to(table.dtype)


def _resize_with_surplus(table: Tensor, old: Size, new: Size) -> Tensor:
    """Resize bicubically, as DINO does: as if a side had a tenth of a cell more.

    By products with weights, as no exporter knows torch's own way with a scale that is computed.
    """
    exact = table.float() if table.dtype in (torch.float16, torch.bfloat16) else table
    # In a graph for any size it is not known before whether the grid is another.
    sides = torch.stack([torch.scalar_tensor(side, device=table.device) for side in new])
    same = (sides == torch.tensor(old, device=table.device)).all()
    surplus = 0.1 * (~same).double()
    down, across = (_cubic_weights(*each, surplus, exact) for each in zip(old, new, strict=True))
    grid = torch.einsum("yi,ijw,xj->yxw", down, exact.unflatten(0, old), across)
    return grid.flatten(0, 1).to(table.dtype)


def _cubic_weights(old: int, new: int, surplus: Tensor, table: Tensor) -> Tensor:
    """Return the weights (new, old) of a side's old cells in its new ones, by torch's kernel."""
    like = {"device": table.device, "dtype": table.dtype}
    steps = torch.arange(new, **like)[:, None] + 0.5
    places = (old / (new + surplus)).to(table) * steps - 0.5
    first = places.floor()
    taps = torch.arange(-1, 3, device=table.device)
    far = (places - first - taps).abs()
    near = (1.25 * far - 2.25) * far * far + 1  # the kernel of a = -0.75, up to 1 cell and to 2
    kernel = torch.where(far <= 1, near, ((-0.75 * far + 3.75) * far - 6) * far + 3)
    cells = (first.long() + taps).clamp(0, old - 1)
    return torch.zeros(new, old, **like).scatter_add(1, cells, kernel)


def resize_positions(
    table: Tensor, old: Size, new: Size, rule: ResizeRule = "google", prefix: int = 0
) -> Tensor:
    """Resize a table to a new grid, except for its first `prefix` rows (the class token)."""
    if old == new:
        return table
    return torch.cat([table[:prefix], resize_grid(table[prefix:], old, new, rule)])


def resize_offsets(table: Tensor, old: Size, new: Size, rule: ResizeRule) -> Tensor:
    """Resize a table of 2-D offsets to those of a new grid; the class token's rows stay.

    timm and transformers have other rules for offsets than for positions.
    """
    if old == new:
        return table
    before, after = ((2 * rows - 1, 2 * columns - 1) for rows, columns in (old, new))
    count = before[0] * before[1]
    if rule == "timm":
        resized = _resize_by_distance(table[:count], before, after)
    elif rule == "huggingface":
        resized = _interpolate(table[:count], before, after, "bilinear", False, False)
    else:
        resized = resize_grid(table[:count], before, after, rule)
    return torch.cat([resized, table[count:]])


def _resize_by_distance(table: Tensor, old: Size, new: Size) -> Tensor:
    """Resize offsets by BEiT's own rule, linear between old offsets that are spread apart.

    Near offsets keep their distance and far ones are stretched, in a geometric progression.
    """
    down, across = (_distance_weights(*sides).to(table) for sides in zip(old, new, strict=True))
    grid = torch.einsum("yi,ijh,xj->yxh", down, table.unflatten(0, old), across)
    return grid.flatten(0, 1)


def _distance_weights(old: int, new: int) -> Tensor:
    """Return the weights (new, old) of a side's old offsets in its new ones."""
    if old == 1:
        return torch.ones(new, 1)
    low, high, ratio = 1.01, 1.5, 1.01
    while high - low > 1e-6:
        ratio = (low + high) / 2
        reached = (1 - ratio ** (old // 2)) / (1 - ratio)
        low, high = (low, ratio) if reached > new // 2 else (ratio, high)
    far = torch.tensor([ratio**step for step in range(old // 2)], dtype=torch.float64).cumsum(0)
    places = torch.cat([-far.flip(0), far.new_zeros(1), far])
    wanted = torch.arange(-(new // 2), new // 2 + 1, dtype=torch.float64)
    right = torch.bucketize(wanted, places).clamp(1, old - 1)
    part = ((wanted - places[right - 1]) / (places[right] - places[right - 1])).clamp(0, 1)
    weights = torch.zeros(new, old, dtype=torch.float64)
    weights.scatter_(1, (right - 1)[:, None], 1 - part[:, None])
    return weights.scatter_(1, right[:, None], part[:, None])


def resize_patches(weight: Tensor, new: Size) -> Tensor:
    """Resize patch-embedding filters (width, channels, P, Q) by the pseudo-inverse (FlexiViT).

    A bilinearly resized patch then has the same embedding as before (arXiv 2212.08013, section
    3.4).
    """
    old: Size = (weight.shape[2], weight.shape[3])
    if old == tuple(new):
        return weight
    basis = torch.eye(old[0] * old[1], dtype=torch.float64, device=weight.device)
    images = basis.view(-1, 1, *old)
    shrunk = F.interpolate(images, new, mode="bilinear", align_corners=False, antialias=True)
    inverse = torch.linalg.pinv(shrunk.flatten(1))  # (new pixels, old pixels)
    return (weight.double().flatten(2) @ inverse.T).unflatten(2, new).to(weight.dtype)
