"""Differential attention (arXiv 2410.05258): the difference of two attentions.

Each head has two queries and two keys of half its size, and one value.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models.layers.norms import RMSNorm
from vitrail.models.layers.self_attention import AttentionMix, SelfAttention
from vitrail.models.positions.rotary import Rotation


class DifferentialMix(AttentionMix):
    """Values weighted by softmax(q1 k1) - factor * softmax(q2 k2)."""

    def __init__(self, size: int, initial: float, dropout: float) -> None:
        super().__init__(dropout)
        self.initial = initial
        self.lambdas = nn.Parameter(torch.empty(4, size // 2))
        """Those of q1, k1, q2 and k2, in the paper's equation 2."""

    @property
    def factor(self) -> Tensor:
        """What the second attention is multiplied by."""
        query1, key1, query2, key2 = self.lambdas
        return (query1 * key1).sum().exp() - (query2 * key2).sum().exp() + self.initial

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Mix values (lines, heads, tokens, size) by queries and keys of twice as many heads."""
        factor = self.factor.to(value.dtype)
        if self.dropout is not None and self.dropout.keyed:
            first, second = split_pairs(self.weigh(query, key, bias))
            return (first - factor * second) @ value
        (query1, query2), (key1, key2) = split_pairs(query), split_pairs(key)
        second = self.attend(query2, key2, value, bias)
        return self.attend(query1, key1, value, bias) - factor * second


def split_pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split (lines, 2 * heads, …) to the first and the second of each head (lines, heads, …)."""
    first, second = x.unflatten(1, (-1, 2)).unbind(2)
    return first, second


class _HeadNorm(RMSNorm):
    """A norm of each head, scaled so that it starts as it would with plain attention."""

    def __init__(self, size: int, scale: float) -> None:
        super().__init__(size, 1e-5)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Normalize and scale the last axis of x."""
        return super().forward(x) * self.scale


class DifferentialAttention(SelfAttention):
    """Self-attention with two queries and two keys for each head."""

    def __init__(
        self, width: int, heads: int, layer: int, *, dropout: float = 0.0, **options: Any
    ) -> None:
        """Take the options of `SelfAttention`; the layer's number sets the initial factor."""
        super().__init__(width, heads, **options)
        initial = 0.8 - 0.6 * math.exp(-0.3 * layer)  # section 2.1
        self.mix = DifferentialMix(width // heads, initial, dropout)
        self.head_norm = _HeadNorm(width // heads, 1 - initial)

    def project(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys (lines, 2 * heads, tokens, half) and values (lines, heads, …)."""
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        query, key = (self._split(part, 2 * self.heads) for part in (query, key))
        return *self.place(query, key, rotation), self._split(value, self.heads)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads).transpose(1, 2)
