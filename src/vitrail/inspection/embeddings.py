"""Filters of the patch embedding, and similarity of position embeddings (Figures 7 and 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.inspection.hooks import find_model
from vitrail.models import BiT, ViT
from vitrail.models.positions.absolute import Positions
from vitrail.models.positions.grid_resizing import resize_grid
from vitrail.models.positions.relative import RelativePositions
from vitrail.models.spec import Size
from vitrail.plotting.drawable import Drawable

if TYPE_CHECKING:
    from vitrail.plotting.canvas import Plot


@dataclass(frozen=True, eq=False)
class Filters(Drawable):
    """Principal components of the filters that see pixels."""

    tiles: np.ndarray
    """(count, height, width, 3) from 0 to 1, the strongest component first; 0.5 is zero."""
    variance: np.ndarray
    """Fraction of the filters' variance (count,) that each explains."""

    def draw(self) -> Plot:
        """Draw the tiles, as in Figure 7 left."""
        from vitrail.plotting.inspection_plots import draw_filters

        return draw_filters(self.tiles)


@dataclass(frozen=True, eq=False)
class PositionSimilarity(Drawable):
    """How similar each patch's position embedding is to each other's."""

    tiles: np.ndarray
    """Cosine similarity (rows, columns, rows, columns): a tile for each patch."""
    name: str
    """What is shown: the kind of positions and the grid."""

    def draw(self) -> Plot:
        """Draw the tiles, as in Figure 7 center and Figure 10."""
        from vitrail.plotting.inspection_plots import draw_positions

        return draw_positions({self.name: self.tiles})


@torch.no_grad()
def embedding_filters(model: nn.Module, count: int = 28) -> Filters:
    """Find the principal components of the patch embedding's filters (Figure 7 left shows 28).

    For a hybrid and a BiT, they are those of the first 7x7 convolution.
    """
    inner = find_model(model)
    if isinstance(inner, BiT):
        weight = inner.root.standardized()
    else:
        weight = inner.embedding.weight if inner.stem is None else inner.stem.filters()
    filters, channels, height, width = weight.shape
    if channels not in (1, 3):
        raise InputError(f"{inner.spec.name} takes {channels} channels; 1 or 3 can be shown")
    most = min(filters - 1, channels * height * width)
    if not 1 <= count <= most:
        raise InputError(f"its {filters} filters have 1 to {most} components, not {count}")
    rows, strengths = principal_components(weight.cpu().double().flatten(1), count)
    tiles = rows.unflatten(1, (channels, height, width)).permute(0, 2, 3, 1)
    tiles = 0.5 + 0.5 * tiles / tiles.abs().amax((1, 2, 3), keepdim=True)
    return Filters(tiles.expand(-1, -1, -1, 3).float().numpy(), strengths.numpy())


def principal_components(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first principal components (count, size) of rows (rows, size), of norm 1.

    Also returns the fraction of the variance that each explains. The sign of a component is such
    that its largest number is positive.
    """
    centered = rows - rows.mean(0)
    _, strengths, basis = torch.linalg.svd(centered, full_matrices=False)
    basis = basis[:count]
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    variance = strengths.square()
    return basis * largest.sign(), (variance / variance.sum())[:count]


@torch.no_grad()
def position_similarity(
    model: nn.Module, *, grid: Size | None = None, layer: int = 0
) -> PositionSimilarity:
    """Compare each patch's position embedding with each other's, on the model's grid or another.

    Another grid shows the embeddings as they are resized to it. Relative positions have a row for
    each offset, not for each place: theirs is compared with the offset zero's.
    """
    inner = find_model(model)
    if isinstance(inner, BiT) or not len(inner.positions):
        raise InputError(f"{inner.spec.name} has no position embeddings")
    spec = inner.spec
    rows, columns = grid or spec.grid
    table = inner.positions[_table_number(inner, layer)]
    if isinstance(table, RelativePositions):
        tiles = _compare_offsets(table, spec.prefix, rows * columns)
    elif not isinstance(table, Positions):
        raise InputError(f"{spec.name} has biases of offsets, not position embeddings")
    else:
        like = inner.embedding.weight.float()
        places = table((rows, columns), like).cpu().double()[spec.prefix :]
        places = F.normalize(places, dim=1)
        tiles = places @ places.T
    tiles = tiles.view(rows, columns, rows, columns).float().numpy()
    return PositionSimilarity(tiles, f"{spec.position}, {rows} x {columns}")


def _table_number(model: ViT, layer: int) -> int:
    count = len(model.positions)
    if not -count <= layer < count:
        have = f"0 to {count - 1}" if count > 1 else "0 alone"
        raise InputError(f"{model.spec.name} has position embeddings {have}, not {layer}")
    return layer


def _compare_offsets(table: RelativePositions, prefix: int, patches: int) -> Tensor:
    tokens = prefix + patches
    rows = resize_grid(table.table, (len(table.table), 1), (2 * tokens - 1, 1)).cpu().double()
    near = F.normalize(rows, dim=1) @ F.normalize(rows[tokens - 1], dim=0)
    places = torch.arange(patches)
    return near[places[:, None] - places + tokens - 1]
