"""Batches of images that have grids of different sizes (NaFlex, arXiv 2502.14786).

Their patches are padded to one length. No token attends to padding, and no pooling reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.spec import Size, check_division


class PatchBatch(NamedTuple):
    """Images of different sizes, cut to patches; a ViT takes it in place of images."""

    patches: Tensor
    """(batch, length, pixels x channels): each patch's pixels row by row, their channels last."""
    places: Tensor
    """(batch, length, 2): row and column of each patch in its image; any numbers for padding."""
    valid: Tensor
    """(batch, length): True for patches, False for padding."""

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> PatchBatch:
        """Move the batch to a device; a type is of the patches' pixels alone."""
        patches = self.patches.to(device=device, dtype=dtype)
        return PatchBatch(patches, self.places.to(device), self.valid.to(device))


def unpack_patches(x: Tensor) -> PatchBatch:
    """Read a batch in one tensor (batch, length, 3 + pixels): row, column, 1 or 0 for padding."""
    return PatchBatch(x[..., 3:], x[..., :2].long(), x[..., 2] > 0)


def pack_images(images: Sequence[Tensor], patch: Size, length: int | None = None) -> PatchBatch:
    """Cut images (channels, height, width) of any sizes to patches, padded to one length.

    The length is that of the largest image unless given.
    """
    cut = [_cut_image(image, patch) for image in images]
    longest = max((len(patches) for patches, _ in cut), default=0)
    length = longest if length is None else length
    if longest > length:
        raise InputError(f"an image has {longest} patches, more than the length {length}")
    rows = [F.pad(patches, (0, 0, 0, length - len(patches))) for patches, _ in cut]
    places = [F.pad(places, (0, 0, 0, length - len(places))) for _, places in cut]
    counts = torch.tensor([len(patches) for patches, _ in cut])
    valid = torch.arange(length) < counts[:, None]
    return PatchBatch(torch.stack(rows), torch.stack(places), valid.to(rows[0].device))


def _cut_image(image: Tensor, patch: Size) -> tuple[Tensor, Tensor]:
    """Return an image's patches (patches, pixels x channels) and their places (patches, 2)."""
    channels, height, width = image.shape
    check_division((height, width), patch)
    rows, columns = height // patch[0], width // patch[1]
    cells = image.reshape(channels, rows, patch[0], columns, patch[1]).permute(1, 3, 2, 4, 0)
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    return cells.reshape(rows * columns, -1), places.view(-1, 2).to(image.device)


@dataclass(frozen=True)
class MixedGrids:
    """The grids of a batch's images, and where each patch stands in its own."""

    sizes: list[Size]
    """Rows and columns of each image."""
    index: Tensor
    """(batch, length): number of each patch in its image, row by row; 0 for padding."""
    valid: Tensor
    """(batch, length): True for patches, False for padding."""

    @staticmethod
    def of(batch: PatchBatch) -> MixedGrids:
        """Read the grids from the patches' places: an image ends at its last row and column."""
        if not batch.valid.any(1).all():
            raise InputError("valid: each image of a batch needs at least one patch")
        places = batch.places * batch.valid[..., None]
        ends = (places.amax(1) + 1).tolist()
        columns = torch.tensor(ends, device=places.device)[:, 1:]
        sizes = [(rows, columns) for rows, columns in ends]
        return MixedGrids(sizes, places[..., 0] * columns + places[..., 1], batch.valid)

    def gather(self, make: Callable[[Size], Tensor], prefix: int = 0) -> Tensor:
        """Stack each image's rows of the table (…, tokens, size) that `make` gives for its grid."""
        tables = {size: make(size) for size in set(self.sizes)}
        places = zip(self.sizes, self._places(prefix), strict=True)
        return torch.stack([tables[size].index_select(-2, index) for size, index in places])

    def gather_pairs(self, make: Callable[[Size], Tensor], prefix: int) -> Tensor:
        """Stack each image's values (heads, tokens, tokens) between two tokens."""
        tables = {size: make(size) for size in set(self.sizes)}
        places = zip(self.sizes, self._places(prefix), strict=True)
        chosen = (tables[size].index_select(-2, at).index_select(-1, at) for size, at in places)
        return torch.stack(list(chosen))

    def _places(self, prefix: int) -> Tensor:
        """Return each token's row in its image's table, which begins with the prefix."""
        before = torch.arange(prefix, device=self.index.device).expand(len(self.index), -1)
        return torch.cat([before, self.index + prefix], dim=1)

    def read(self, prefix: int) -> Tensor:
        """Return which tokens are read (batch, prefix + length): all but padding."""
        return F.pad(self.valid, (prefix, 0), value=True)

    def mask_keys(
        self, bias: Callable[[Tensor], Tensor] | None, prefix: int
    ) -> Callable[[Tensor], Tensor]:
        """Return an attention bias (batch, heads or 1, …) that leaves no weight to padding."""
        return partial(_masked_bias, bias=bias, read=self.read(prefix))


def _masked_bias(query: Tensor, bias: Callable[[Tensor], Tensor] | None, read: Tensor) -> Tensor:
    mask = torch.zeros_like(read, dtype=query.dtype).masked_fill(~read, float("-inf"))
    mask = mask[:, None, None].expand(-1, 1, query.shape[-2], -1)
    return mask if bias is None else mask + bias(query)
