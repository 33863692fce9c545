"""Attention for inference: plain products, a few heads or images at a time.

torch's fused kernel multiplies small blocks by MKL. Whole matrices by oneDNN take two thirds of its
time in float32 on AMD's processors; in bfloat16 they help many tokens. The
weights of a few heads stay in the processor's cache, in memory that each thread keeps.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from vitrail.models.layers.batched_products import has_products, products_by_onednn
from vitrail.models.layers.linear import is_traced
from vitrail.models.layers.self_attention import AttentionMix

_LEAST_TOKENS, _MOST_TOKENS = 48, 1024  # the fused kernel is faster, or needs less memory, beyond
_LEAST_ROUNDED = 256  # tokens in bfloat16, whose usual products are as fast for fewer
_BYTES = 2**21
"""Size of the weights that are computed at once; those of one head may take more."""
_SHAPES = 3  # for which a thread keeps memory


class _Kept(threading.local):
    """Memory that a thread uses again, by the shape that it was made for."""

    def __init__(self) -> None:
        self.parts: dict[tuple[object, ...], tuple[Tensor, ...]] = {}


_kept = _Kept()


class AttentionProducts(nn.Module):
    """Computes what an `AttentionMix` does; what doesn't suit it is left to that."""

    def __init__(self, mix: AttentionMix) -> None:
        super().__init__()
        self.usual = mix

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Mix values (lines, heads, tokens, head size)."""
        if bias is not None or not _suits(query, value):
            return self.usual(query, key, value, bias)
        with products_by_onednn() if query.dtype == torch.float32 else nullcontext():
            return _attend(query, key, value)


def _suits(query: Tensor, value: Tensor) -> bool:
    rounded = query.dtype == torch.bfloat16
    return (
        query.is_cpu
        and (rounded or (query.dtype == torch.float32 and has_products()))
        and (_LEAST_ROUNDED if rounded else _LEAST_TOKENS) <= query.shape[2] <= _MOST_TOKENS
        and not (torch.is_grad_enabled() and (query.requires_grad or value.requires_grad))
        and not is_traced()
    )


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    lines, heads, tokens, size = query.shape
    mixed = query.new_empty(lines, tokens, heads, size).transpose(1, 2)
    parts = (query, key, value, mixed)
    if lines > heads:  # fewer, larger products
        parts = [part.transpose(0, 1) for part in parts]
    most = max(1, _BYTES // (tokens * tokens * query.element_size()))
    for each in zip(*(part.unbind() for part in parts), strict=True):
        for q, k, v, out in zip(*(part.split(most) for part in each), strict=True):
            queries, keys, turned, logits, weights = _memory(len(q), tokens, size, query.dtype)
            queries.copy_(q)  # torch would turn them while it copies, which is slower
            keys.copy_(k)
            torch.baddbmm(logits, queries, turned, beta=0, alpha=size**-0.5, out=logits)
            torch.softmax(logits, -1, out=weights)
            torch.bmm(weights, v, out=out)
    return mixed


def _memory(count: int, tokens: int, size: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Give tensors in memory that the thread keeps: new memory would be as slow as a product."""
    kept, wanted = _kept.parts, (count, tokens, size, dtype)
    if wanted not in kept:
        if len(kept) >= _SHAPES:
            kept.clear()
        with torch.inference_mode(mode=False):
            queries, keys = torch.empty(2, count, tokens, size, dtype=dtype)
            logits, weights = torch.zeros(2, count, tokens, tokens, dtype=dtype)
        kept[wanted] = (queries, keys, keys.mT, logits, weights)
    return kept[wanted]
