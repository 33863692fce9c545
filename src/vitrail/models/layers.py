"""The transformer's layers: attention, MLP, pre-norm block, pooling, head (section 3.1).

A block knows nothing of images: it mixes the second last axis of its input and maps the last,
so the same block runs over all tokens, over rows and over columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.noise import Dropout, StochasticDepth
from vitrail.models.positions import RelativePositions
from vitrail.models.spec import Activation, ViTSpec


class SelfAttention(nn.Module):
    """Multi-head self-attention; the fused kernel computes it, but for keyed dropout."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        norm: nn.Module | None = None,
        bias: bool = True,
        qk_norm_eps: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Take `norm` to normalize the input, `qk_norm_eps` to normalize each query and key."""
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout) if dropout else None
        self.norm = norm or nn.Identity()
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        size = width // heads
        self.query_norm = nn.Identity() if qk_norm_eps is None else nn.LayerNorm(size, qk_norm_eps)
        self.key_norm = nn.Identity() if qk_norm_eps is None else nn.LayerNorm(size, qk_norm_eps)
        self.output = nn.Linear(width, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give queries, keys and values, each (lines, heads, tokens, head size)."""
        qkv = self.qkv(self.norm(x))
        qkv = qkv.view(-1, x.shape[-2], 3, self.heads, x.shape[-1] // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        return self.query_norm(query), self.key_norm(key), value

    def forward(self, x: Tensor, relative: RelativePositions | None = None) -> Tensor:
        """Mix the tokens of x (…, tokens, width)."""
        query, key, value = self.project(x)
        bias = None if relative is None else relative(query)
        if self.dropout is not None and self.dropout.keyed:
            logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
            weights = (logits if bias is None else logits + bias).softmax(-1)
            # A sample may have many lines, and its key stands for all of them.
            mixed = self.dropout(weights.view(len(x), -1)).view_as(weights) @ value
        else:
            rate = self.dropout.p if self.dropout is not None and self.training else 0.0
            mixed = F.scaled_dot_product_attention(query, key, value, bias, rate)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))


class MLP(nn.Module):
    """A norm, then two dense layers with a GELU between them, or a gated pair (SwiGLU).

    The norm stands in here, not before, so that its output is freed before the MLP's peak.
    """

    def __init__(self, spec: ViTSpec, dropout: float) -> None:
        super().__init__()
        self.activation: Activation = spec.activation
        self.norm = nn.LayerNorm(spec.width, spec.norm_eps)
        branches = 2 if spec.activation == "swiglu" else 1
        self.hidden = nn.Linear(spec.width, branches * spec.mlp)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(spec.mlp, spec.width)

    def activate(self, x: Tensor) -> Tensor:
        """Apply the non-linearity to the hidden layer's output."""
        if self.activation == "swiglu":
            gate, value = x.chunk(2, dim=-1)
            return F.silu(gate) * value
        if self.activation == "quick-gelu":
            return x * torch.sigmoid(1.702 * x)
        return F.gelu(x, approximate="tanh" if self.activation == "gelu-tanh" else "none")

    def forward(self, x: Tensor) -> Tensor:
        """Map each token of x (…, width)."""
        return self.output(self.dropout(self.activate(self.hidden(self.norm(x)))))


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch (arXiv 2103.17239)."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.factor = nn.Parameter(torch.full((width,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of x (…, width)."""
        return x * self.factor


class Block(nn.Module):
    """A pre-norm encoder block: equations 2 and 3 of the paper."""

    def __init__(self, spec: ViTSpec, stochastic_depth: float) -> None:
        super().__init__()
        self.attention = SelfAttention(
            spec.width,
            spec.heads,
            norm=nn.LayerNorm(spec.width, spec.norm_eps),
            bias=spec.qkv_bias,
            qk_norm_eps=spec.norm_eps if spec.qk_norm else None,
            dropout=spec.attention_dropout,
        )
        self.after1 = _after_branch(spec, stochastic_depth)
        self.mlp = MLP(spec, spec.dropout)
        self.after2 = _after_branch(spec, stochastic_depth)

    def forward(self, x: Tensor, relative: RelativePositions | None = None) -> Tensor:
        """Encode x (batch, …, tokens, width)."""
        x = x + self.after1(self.attention(x, relative))
        return x + self.after2(self.mlp(x))


def _after_branch(spec: ViTSpec, stochastic_depth: float) -> nn.Sequential:
    """Collect what stands between a residual branch and its sum; usually nothing."""
    after = nn.Sequential()
    if spec.dropout:
        after.append(Dropout(spec.dropout))
    if spec.layer_scale:
        after.add_module("scale", LayerScale(spec.width, spec.layer_scale))
    if stochastic_depth:
        after.append(StochasticDepth(stochastic_depth))
    return after


class AxialBlock(nn.Module):
    """A row block, then a column block (Appendix D.6), over a grid of tokens."""

    def __init__(self, spec: ViTSpec, stochastic_depth: float) -> None:
        super().__init__()
        self.row = Block(spec, stochastic_depth)
        self.column = Block(spec, stochastic_depth)

    def forward(self, x: Tensor, relative: RelativePositions | None = None) -> Tensor:
        """Encode x (batch, rows, columns, width)."""
        assert relative is None, "the spec refuses relative positions with axial attention"
        x = self.row(x)
        return self.column(x.transpose(1, 2)).transpose(1, 2)


class AttentionPool(nn.Module):
    """Pool tokens with one learned query (big_vision's MAP head, arXiv 2106.04560)."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.probe = nn.Parameter(torch.empty(1, 1, spec.width))
        self.query = nn.Linear(spec.width, spec.width)
        self.key_value = nn.Linear(spec.width, 2 * spec.width)
        self.output = nn.Linear(spec.width, spec.width)
        self.mlp = MLP(spec, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Pool x (batch, tokens, width) to (batch, width)."""
        batch, tokens, width = x.shape
        query = self.query(self.probe).view(1, 1, self.heads, -1).expand(batch, -1, -1, -1)
        size = width // self.heads  # said, because an empty batch leaves it open
        key, value = self.key_value(x).view(batch, tokens, 2, self.heads, size).unbind(2)
        heads = (part.transpose(1, 2) for part in (query, key, value))
        x = self.output(F.scaled_dot_product_attention(*heads).reshape(batch, width))
        return x + self.mlp(x)


class Head(nn.Module):
    """The pre-training head (a tanh layer, then a linear one) or the fine-tuning head (linear)."""

    def __init__(
        self, width: int, classes: int, *, representation: int = 0, bias: bool = True
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, representation) if representation else None
        self.output = nn.Linear(representation or width, classes, bias=bias) if classes else None

    def features(self, x: Tensor) -> Tensor:
        """Give the pre-logits of pooled tokens x (batch, width)."""
        return x if self.hidden is None else self.hidden(x).tanh()

    def forward(self, features: Tensor) -> Tensor:
        """Give the logits of pre-logits; without classes, the pre-logits themselves."""
        return features if self.output is None else self.output(features)
