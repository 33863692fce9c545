"""Multi-head self-attention (section 3.1), and with keys that several heads share."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers.linear import Linear
from vitrail.models.noise import Dropout
from vitrail.models.positions.rotary import Rotation

AttentionBias = Callable[[Tensor], Tensor]
"""Gives the attention logits' bias (lines, heads, tokens, tokens) for queries."""


class QueryValueBias(nn.Module):
    """A bias of queries and values, but not of keys."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(2 * width))

    def forward(self, qkv: Tensor) -> Tensor:
        """Add the bias to stacked queries, keys and values (…, 3 * width)."""
        query, value = self.bias.chunk(2)
        return qkv + torch.cat([query, torch.zeros_like(query), value])


class AttentionMix(nn.Module):
    """Values weighted by attention, by the fused kernel unless dropout is keyed."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout) if dropout else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Mix values (lines, heads, tokens, head size)."""
        if self.dropout is not None and self.dropout.keyed:
            return self.weigh(query, key, bias) @ value
        return self.attend(query, key, value, bias)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Run the fused kernel, or plain products where torch's is slower."""
        rate = self.dropout.p if self.dropout is not None and self.training else 0.0
        if not rate and _plain_is_faster(key):
            return _attention_logits(query, key, bias).softmax(-1) @ value
        return F.scaled_dot_product_attention(query, key, value, bias, rate)

    def weigh(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        """Return the weights (lines, heads, tokens, tokens) after keyed dropout."""
        assert self.dropout is not None
        assert self.dropout.keys is not None
        weights = _attention_logits(query, key, bias).softmax(-1)
        # A sample may have many lines, and its key stands for all of them.
        return self.dropout(weights.view(len(self.dropout.keys), -1)).view_as(weights)


def _attention_logits(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    logits = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    return logits if bias is None else logits + bias


def _plain_is_faster(key: Tensor) -> bool:
    """Tell where torch's fused kernel loses: in bfloat16 on a CPU, whose products it does not use.

    Forward and backward took 3 times as long at 197 tokens, 7 times at 16, on one core of a Zen 5.
    The weights of more than 1,024 tokens would take too much memory.
    """
    return key.device.type == "cpu" and key.dtype == torch.bfloat16 and key.shape[-2] <= 1024


class SelfAttention(nn.Module):
    """Multi-head self-attention; keys and values may have fewer heads, each for a group."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_heads: int = 0,
        bias: bool = True,
        key_bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        sub_norm: nn.Module | None = None,
    ) -> None:
        """Apply `norm` to the input, the others to each query, each key, and before the output."""
        super().__init__()
        self.heads, self.key_heads = heads, key_heads or heads
        self.mix = AttentionMix(dropout)
        self.norm = norm or nn.Identity()
        self.query: nn.Linear | None = None
        if self.key_heads == heads:
            self.qkv = Linear(width, 3 * width, bias=bias and key_bias)
        else:
            self.query = Linear(width, width, bias=bias)
            shared = 2 * self.key_heads * (width // heads)
            self.key_value = Linear(width, shared, bias=bias)
        self.qkv_bias = nn.Identity() if key_bias else QueryValueBias(width)
        self.query_norm = query_norm or nn.Identity()
        self.key_norm = key_norm or nn.Identity()
        self.head_norm: nn.Module = nn.Identity()
        self.sub_norm = sub_norm or nn.Identity()
        self.output = Linear(width, width, bias=output_bias)

    def project(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (lines, heads, tokens, head size)."""
        if self.query is not None:
            return self._project_grouped(x, self.query, rotation)
        qkv = self.qkv_bias(self.qkv(self.norm(x)))
        qkv = qkv.view(-1, x.shape[-2], 3, self.heads, x.shape[-1] // self.heads)
        # In this order the gradients of the three are put side by side by a single copy.
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        return *self.place(query, key, rotation), value

    def _project_grouped(
        self, x: Tensor, query_layer: nn.Linear, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project to fewer keys and values, and repeat each for its group of heads."""
        x, size = self.norm(x), x.shape[-1] // self.heads
        query = query_layer(x).view(-1, x.shape[-2], self.heads, size).transpose(1, 2)
        both = self.key_value(x).view(-1, x.shape[-2], 2, self.key_heads, size)
        key, value = (part.transpose(1, 2) for part in both.unbind(2))
        query, key = self.place(query, key, rotation)
        group = self.heads // self.key_heads
        return query, *(part.repeat_interleave(group, dim=1) for part in (key, value))  # pyright: ignore[reportReturnType]

    def place(self, query: Tensor, key: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Normalize queries and keys, and turn them by their positions."""
        query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query, key = rotation.turn(query), rotation.turn(key)
        return query, key

    def forward(
        self,
        x: Tensor,
        relative: AttentionBias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Mix the tokens of x (…, tokens, width)."""
        query, key, value = self.project(x, rotation)
        mixed = self.mix(query, key, value, None if relative is None else relative(query))
        mixed = self.head_norm(mixed)
        return self.output(self.sub_norm(mixed.transpose(1, 2).reshape(x.shape)))
