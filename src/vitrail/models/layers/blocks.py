"""The encoder's blocks.

A block mixes the second last axis of its input and maps the last, so that the same block runs over
all tokens, over rows and over columns.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitrail.models.layers.differential import DifferentialAttention
from vitrail.models.layers.mlp import MLP
from vitrail.models.layers.norms import LayerScale, make_norm
from vitrail.models.layers.self_attention import AttentionBias, SelfAttention
from vitrail.models.noise import Dropout, StochasticDepth
from vitrail.models.positions.rotary import Rotation
from vitrail.models.spec import ViTSpec


class Block(nn.Module):
    """An encoder block: equations 2 and 3 of the paper, unless the norms follow the branches."""

    def __init__(self, spec: ViTSpec, stochastic_depth: float, layer: int = 0) -> None:
        super().__init__()
        pre = spec.norm_place == "pre"
        self.attention = make_attention(spec, layer, normed=pre)
        self.after1 = _after_branch(spec, stochastic_depth)
        self.mlp = _make_mlp(spec, normed=pre)
        self.after2 = _after_branch(spec, stochastic_depth, scaled=spec.layer_scale_at == "both")

    def forward(
        self,
        x: Tensor,
        relative: AttentionBias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Encode x (batch, …, tokens, width)."""
        x = x + self.after1(self.attention(x, relative, rotation))
        return x + self.after2(self.mlp(x))


class ParallelBlock(nn.Module):
    """Attention and MLP side by side after one norm (ViT-22B, arXiv 2302.05442)."""

    def __init__(self, spec: ViTSpec, stochastic_depth: float, layer: int = 0) -> None:
        super().__init__()
        self.norm = make_norm(spec, spec.width)
        self.attention = make_attention(spec, layer, normed=False)
        self.mlp = _make_mlp(spec, normed=False)
        self.after = _after_branch(spec, stochastic_depth)

    def forward(
        self,
        x: Tensor,
        relative: AttentionBias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Encode x (batch, tokens, width)."""
        y = self.norm(x)
        return x + self.after(self.attention(y, relative, rotation) + self.mlp(y))


class BranchedBlock(nn.Module):
    """Several attentions side by side, then as many MLPs (arXiv 2203.09795)."""

    def __init__(self, spec: ViTSpec, stochastic_depth: float, layer: int = 0) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            Block(spec, stochastic_depth, layer) for _ in range(spec.branches)
        )

    def forward(
        self,
        x: Tensor,
        relative: AttentionBias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Encode x (batch, tokens, width)."""
        blocks: list[Any] = list(self.branches)
        x = sum((b.after1(b.attention(x, relative, rotation)) for b in blocks), start=x)
        return sum((block.after2(block.mlp(x)) for block in blocks), start=x)


class AxialBlock(nn.Module):
    """A row block, then a column block (Appendix D.6), over a grid of tokens."""

    def __init__(self, spec: ViTSpec, stochastic_depth: float, layer: int = 0) -> None:
        super().__init__()
        self.row = Block(spec, stochastic_depth, layer)
        self.column = Block(spec, stochastic_depth, layer)

    def forward(
        self,
        x: Tensor,
        relative: AttentionBias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Encode x (batch, rows, columns, width)."""
        assert relative is rotation is None, "the spec refuses such positions with axial attention"
        x = self.row(x)
        return self.column(x.transpose(1, 2)).transpose(1, 2)


def make_block(spec: ViTSpec, stochastic_depth: float, layer: int) -> nn.Module:
    """Build the block of a layer, of the spec's kind."""
    if spec.attention == "axial":
        kind = AxialBlock
    elif spec.block == "parallel":
        kind = ParallelBlock
    else:
        kind = BranchedBlock if spec.branches > 1 else Block
    return kind(spec, stochastic_depth, layer)


def make_attention(spec: ViTSpec, layer: int, *, normed: bool) -> SelfAttention:
    """Build the attention of a layer, of the spec's kind, with a norm before it or without."""
    width, differential = spec.width, spec.attention == "differential"
    size = width // spec.heads // (2 if differential else 1)
    options: dict[str, Any] = {
        "bias": spec.qkv_bias,
        "key_bias": spec.key_bias,
        "output_bias": spec.attention_output_bias,
        "dropout": spec.attention_dropout,
        "norm": make_norm(spec, width) if normed else None,
        "query_norm": make_norm(spec, size) if spec.qk_norm else None,
        "key_norm": make_norm(spec, size) if spec.qk_norm else None,
        "sub_norm": make_norm(spec, width) if spec.sub_norm == "both" else None,
    }
    if differential:
        return DifferentialAttention(width, spec.heads, layer, **options)
    return SelfAttention(width, spec.heads, key_heads=spec.key_heads_of(layer), **options)


def _make_mlp(spec: ViTSpec, *, normed: bool) -> MLP:
    mlp = MLP(spec, spec.mlp, spec.dropout)
    if not normed:
        mlp.norm = nn.Identity()
    if spec.sub_norm != "none":
        mlp.sub_norm = make_norm(spec, spec.mlp)
    return mlp


def _after_branch(spec: ViTSpec, stochastic_depth: float, *, scaled: bool = True) -> nn.Sequential:
    """Collect what follows a residual branch before its sum; usually nothing."""
    after = nn.Sequential()
    if spec.dropout:
        after.append(Dropout(spec.dropout))
    if spec.norm_place == "post":
        after.add_module("norm", make_norm(spec, spec.width))
    if spec.layer_scale and scaled:
        after.add_module("scale", LayerScale(spec.width, spec.layer_scale))
    if stochastic_depth:
        after.append(StochasticDepth(stochastic_depth))
    return after
