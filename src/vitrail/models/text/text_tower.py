"""The text tower of CLIP and SigLIP: token IDs in, one embedding per text out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.models.layers.blocks import Block
from vitrail.models.layers.linear import Linear
from vitrail.models.spec import Activation, ViTSpec
from vitrail.models.vit_checks import check_choices, check_least

TextPool = Literal["end", "last", "first"]


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """A transformer over text, with learned positions."""

    depth: int
    width: int
    heads: int
    mlp: int
    vocabulary: int
    """Number of token IDs."""
    context: int
    """Most tokens of a text, those that the tokenizer adds included."""
    output: int
    """Size of an embedding; that of the image tower's."""
    causal: bool = True
    """Whether a token attends only to those before it (CLIP)."""
    pool: TextPool = "end"
    """Which token is the text's: its end-of-text token (CLIP), the last position (SigLIP), or the
    first."""
    end: int | None = None
    """ID of the end-of-text token; None for the largest ID of a text."""
    projection: bool = True
    """Whether a linear layer follows the pooled token."""
    projection_bias: bool = False
    activation: Activation = "gelu"
    norm_eps: float = 1e-5
    layer_scale: float = 0.0
    """Initial value of the residual branches' LayerScale; 0 for none."""

    def __post_init__(self) -> None:
        check_choices(self)
        sizes = ("depth", "width", "heads", "mlp", "vocabulary", "context", "output")
        check_least(self, 1, *sizes)
        if not self.projection and self.output != self.width:
            raise InputError(
                f"without a projection, output must be width {self.width}, got {self.output}"
            )

    @property
    def blocks(self) -> ViTSpec:
        """The blocks, which are those of an image tower."""
        return ViTSpec(
            depth=self.depth,
            width=self.width,
            heads=self.heads,
            mlp=self.mlp,
            activation=self.activation,
            norm_eps=self.norm_eps,
            layer_scale=self.layer_scale,
        )


class TextTower(nn.Module):
    """Encode texts; the parameters come from a file and are not initialized here."""

    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        self.spec = spec
        blocks = spec.blocks
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = nn.Parameter(torch.empty(spec.context, spec.width))
        self.blocks = nn.ModuleList(Block(blocks, 0.0) for _ in range(spec.depth))
        self.norm = nn.LayerNorm(spec.width, spec.norm_eps)
        bias = spec.projection_bias
        layer = Linear(spec.width, spec.output, bias=bias) if spec.projection else nn.Identity()
        self.projection = layer

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode token IDs (texts, tokens) to embeddings of length 1 (texts, output)."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, _mask_future if self.spec.causal else None)
        return F.normalize(self.projection(self.norm(self._pool(x, tokens))), dim=-1)

    def _pool(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Take the token that stands for each text; every layer after it maps tokens alone."""
        if self.spec.pool != "end":
            return x[:, -1 if self.spec.pool == "last" else 0]
        marks = tokens if self.spec.end is None else (tokens == self.spec.end).int()
        return x[torch.arange(len(x), device=x.device), marks.argmax(-1)]


def _mask_future(query: Tensor) -> Tensor:
    """Give the attention bias that hides later tokens from each token."""
    count = query.shape[-2]
    return query.new_full((count, count), -torch.inf).triu(1)
