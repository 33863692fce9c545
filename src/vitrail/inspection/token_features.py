"""Features of tokens: colors of patches, norms, predictions by layer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.inspection.embeddings import principal_components
from vitrail.inspection.hooks import evaluating, find_model, patches_of
from vitrail.inspection.record import record
from vitrail.models import BiT, ViT
from vitrail.models.spec import Size
from vitrail.plotting.drawable import Drawable
from vitrail.plotting.tiles import hide_missing, mosaic

if TYPE_CHECKING:
    from vitrail.plotting.canvas import Plot

Threshold = float | Literal["otsu"] | None


@dataclass(frozen=True, eq=False)
class PatchColors:
    """Patch tokens as colors that mean the same in all images."""

    colors: np.ndarray
    """(images, rows, columns, 3) from 0 to 1; the background is NaN."""

    @property
    def foreground(self) -> np.ndarray:
        """Say which patches are not background (images, rows, columns)."""
        return ~np.isnan(self.colors[..., 0])

    def _repr_png_(self) -> bytes:
        """Show the images' tiles side by side in a notebook, eight pixels a patch."""
        strip = hide_missing(mosaic(self.colors[None].astype(np.float64)))
        pixels = np.rint(255 * strip).astype(np.uint8).repeat(8, 0).repeat(8, 1)
        file = io.BytesIO()
        Image.fromarray(pixels, "RGBA").save(file, "PNG")
        return file.getvalue()


@dataclass(frozen=True, eq=False)
class TokenNorms(Drawable):
    """The norm of each token after each layer; in a large ViT a few stand out."""

    norms: np.ndarray
    """(layers, images, tokens), the tokens before the patches first."""
    prefix: int
    """Tokens before the patches."""
    grid: Size
    """Rows and columns of the patches."""

    def draw(self) -> Plot:
        """Draw the norms by layer."""
        from vitrail.plotting.inspection_plots import draw_norms

        return draw_norms(self.norms, self.prefix)

    def outliers(self, times: float = 4.0, layer: int = -1) -> np.ndarray:
        """Find the patches (images, rows, columns) with norms above `times` the median.

        The model stores global information in them; registers remove them (arXiv 2309.16588).
        """
        patches = self.norms[layer][:, self.prefix :]
        found = patches > times * np.median(patches)
        return found.reshape(len(patches), *self.grid)


@dataclass(frozen=True, eq=False)
class LogitLens(Drawable):
    """What the model would predict after each layer."""

    logits: np.ndarray
    """(layers, images, classes); the last layer's are the model's own."""
    classes: tuple[str, ...]
    """Names of the classes."""

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits."""
        raised = np.exp(self.logits - self.logits.max(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True)

    def draw(self) -> Plot:
        """Draw the first image's probabilities by layer."""
        from vitrail.plotting.inspection_plots import draw_lens

        return draw_lens(self.probabilities[:, 0], self.classes)


def patch_colors(tokens: Tensor, grid: Size, *, threshold: Threshold = "otsu") -> PatchColors:
    """Color patch tokens (images, patches, width) by their three principal components.

    The components are those of all images together. First the strongest one separates foreground
    from background, which has most of the images' edges: at Otsu's threshold, at a fraction of its
    range, or with None not at all. The colors are the components of the foreground alone.
    """
    images, patches, _ = tokens.shape
    if patches != grid[0] * grid[1]:
        said = f"{patches} tokens are not a {grid[0]} x {grid[1]} grid"
        raise InputError(f"{said}; leave out the class token and registers")
    rows = tokens.detach().cpu().double().flatten(0, 1)
    front = torch.ones(len(rows), dtype=torch.bool)
    if threshold is not None:
        scores = _foreground_scores(rows, grid)
        front = scores > (otsu(scores) if threshold == "otsu" else threshold)
    if front.sum() < 4:
        raise InputError(f"only {int(front.sum())} patches are foreground; lower the threshold")
    kept = rows[front]
    basis, _ = principal_components(kept, 3)
    places = (kept - kept.mean(0)) @ basis.T
    low, high = places.amin(0), places.amax(0)
    colors = torch.full((len(rows), 3), torch.nan, dtype=rows.dtype)
    colors[front] = (places - low) / (high - low)
    return PatchColors(colors.float().numpy().reshape(images, *grid, 3))


def _foreground_scores(rows: Tensor, grid: Size) -> Tensor:
    """Place rows along their first component, from 0 to 1, so that edges tend to 0."""
    basis, _ = principal_components(rows, 1)
    scores = (rows - rows.mean(0)) @ basis[0]
    edge = torch.ones(grid, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    each = scores.view(-1, grid[0] * grid[1])
    if each[:, edge.flatten()].mean() > each.mean():
        scores = -scores
    return (scores - scores.min()) / (scores.max() - scores.min())


def otsu(values: Tensor) -> float:
    """Return the threshold that splits values into two groups of least variance."""
    ordered = values.flatten().double().sort().values
    count = len(ordered)
    below = torch.arange(1, count, dtype=torch.float64)
    sums = ordered.cumsum(0)
    low, high = sums[:-1] / below, (sums[-1] - sums[:-1]) / (count - below)
    between = below * (count - below) * (high - low).square()
    best = int(between.argmax())
    return float((ordered[best] + ordered[best + 1]) / 2)


@torch.no_grad()
def patch_tokens(model: nn.Module, x: Tensor, *, layer: int = -1) -> tuple[Tensor, Size]:
    """Return the patch tokens (batch, patches, width) after a block, and their grid.

    The last block's are those that the head's norm has passed, as `tokens` of a model gives them.
    """
    inner = find_model(model)
    grid = patches_of(inner, x)
    assert isinstance(inner, ViT)
    with evaluating(model), record(model, tokens=[layer]) as tape:
        model(x)
    (tokens,) = tape.tokens.values()
    if layer in (-1, inner.spec.depth - 1):
        tokens = inner.norm(tokens)
    return tokens[:, inner.spec.prefix :], grid


@torch.no_grad()
def token_norms(model: nn.Module, x: Tensor) -> TokenNorms:
    """Measure the norm of each token after each block."""
    inner = find_model(model)
    grid = patches_of(inner, x)
    with evaluating(model), record(model, tokens="all") as tape:
        model(x)
    norms = torch.stack([tokens.float().norm(dim=-1) for tokens in tape.tokens.values()])
    return TokenNorms(norms.cpu().numpy(), 0 if isinstance(inner, BiT) else inner.spec.prefix, grid)


@torch.no_grad()
def logit_lens(model: nn.Module, x: Tensor, classes: Sequence[str] | None = None) -> LogitLens:
    """Apply the last norm and the head to each block's output (logit lens)."""
    inner = find_model(model)
    spec = inner.spec
    if isinstance(inner, BiT):
        raise InputError(f"{spec.name}'s stages have other widths than its head; take a ViT")
    if not spec.classes:
        raise InputError(f"{spec.name} has no head to look through; load one that has classes")
    with evaluating(model), record(model, tokens="all") as tape:
        model(x)
    logits = torch.stack([inner.classify(tokens) for tokens in tape.tokens.values()])
    names = tuple(classes or map(str, range(spec.classes)))
    return LogitLens(logits.float().cpu().numpy(), names)
