"""Record what a model computes, while it runs as usual.

The fused attention kernel never returns its weights, so the requested ones are computed again from
its queries and keys: for some layers, heads or rows, a few images at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.inspection.hooks import (
    AttentionCall,
    Layers,
    attention_layers,
    choose_layers,
    find_model,
    hooked,
)
from vitrail.models import BiT, ViT
from vitrail.models.spec import Size

_CHUNK = 2**19
"""Weights that are computed at once: what a processor's cache holds."""


class Chunk(NamedTuple):
    """A part of a layer's attention: some of a call's images, some of the asked heads."""

    layer: int
    images: slice
    heads: slice
    """Which of the heads that were asked for."""
    weights: Tensor
    """(images, heads, rows, tokens); the callee's to write into."""
    grid: Size | None
    """Rows and columns of the tokens, where attention is axial; there are no others then."""


class _Recorded(dict[int, Tensor]):
    """Tensors by layer; negative layers count from the end."""

    def __init__(self, what: str, count: int) -> None:
        super().__init__()
        self.what, self.count = what, count

    def __missing__(self, layer: int) -> Tensor:
        if -self.count <= layer < 0 and layer + self.count in self:
            return self[layer + self.count]
        have = (
            f"those of {', '.join(map(str, self))}" if self else "nothing: the model was not called"
        )
        raise InputError(f"the tape has no {self.what} of layer {layer}; it holds {have}")


class Tape:
    """What the last forward pass recorded: detached, and on the model's device."""

    def __init__(self, model: ViT | BiT) -> None:
        self.attention = _Recorded("attention", len(attention_layers(model)))
        """Weights (batch, heads, rows, tokens) by layer; float32 where the model has half
        precision. An axial block is two layers, over rows and then over columns."""
        self.tokens = _Recorded("tokens", len(model.blocks))
        """Output (batch, tokens, width) of each block that was asked for, before the last norm."""
        self.pooling: Tensor | None = None
        """Weights (batch, heads, patches) of attention pooling, where the model has it."""


@contextmanager
def record(
    model: nn.Module,
    *,
    attention: Layers | None = None,
    tokens: Layers | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    each: Callable[[Chunk], None] | None = None,
) -> Iterator[Tape]:
    """Record attention and block outputs of the given layers, inside a `with` block.

    The model may be compiled, in half precision or under autocast, and its outputs do not change
    by a bit. `rows` are query tokens (0 is the class token). With `each`, attention is not kept
    but handed over part by part, and no map is ever whole. A compiled model runs twice, the second
    time without its compiled code, for the tape; then only calls of the model itself are recorded,
    not of `features`.
    """
    inner = find_model(model)
    sites, name = attention_layers(inner), inner.spec.name
    if attention is not None and not sites:
        raise InputError(
            f"{name} has no attention to record; its blocks' outputs can be: tokens='all'"
        )
    if attention is None and not (heads is rows is each is None):
        raise InputError("heads, rows and each require attention, for example attention='all'")
    layers = choose_layers(attention, len(sites), "attention layer", name)
    chosen = None if heads is None else choose_layers(heads, sites[0].heads, "head", name)
    tape = Tape(inner)

    def on_attention(found: AttentionCall) -> None:
        asked = None if rows is None else choose_layers(rows, found.tokens, "token", name)
        chunks = chunks_of(found, chosen, asked)
        if each is None:
            tape.attention[found.layer] = join_chunks(chunks)
        else:
            for chunk in chunks:
                each(chunk)

    def on_tokens(layer: int, output: Tensor) -> None:
        cells = output.flatten(2).transpose(1, 2) if isinstance(inner, BiT) else output
        tape.tokens[layer] = cells.flatten(1, -2).detach()

    def on_pooling(query: Tensor, key: Tensor) -> None:
        assert isinstance(inner, ViT)
        tape.pooling = pooling_weights(query, key, inner.spec.pool_heads or inner.spec.heads)

    with hooked(
        model,
        attention=layers,
        on_attention=on_attention,
        tokens=choose_layers(tokens, len(inner.blocks), "block", name),
        on_tokens=on_tokens,
        on_pooling=on_pooling if layers else None,
    ):
        yield tape


def chunks_of(
    found: AttentionCall,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    *,
    skip: int = 0,
) -> Iterator[Chunk]:
    """Compute a layer's attention a few images, or a few heads of one, at a time.

    The first `skip` tokens neither attend nor are attended to, as if they were not there.
    """
    count = found.query.shape[1] if heads is None else len(heads)
    batch = len(found.query) // found.lines
    together = _CHUNK // (found.tokens * (found.tokens if rows is None else len(rows)))
    step = max(together // count, 1)
    together = min(max(together, 1), count)
    for first in range(0, batch, step):
        images = slice(first, min(first + step, batch))
        for head in range(0, count, together):
            part = slice(head, min(head + together, count))
            chosen = part if heads is None else list(heads[part])
            weights, grid = _compute(found, images, chosen, rows, skip)
            yield Chunk(found.layer, images, part, weights, grid)


@torch.no_grad()
def _compute(
    found: AttentionCall,
    images: slice,
    heads: slice | list[int],
    rows: Sequence[int] | None,
    skip: int,
) -> tuple[Tensor, Size | None]:
    """Compute the weights of some images' heads."""
    lines = slice(images.start * found.lines, images.stop * found.lines)
    some = slice(skip, None) if rows is None or found.axis != "grid" else list(rows)
    # At least in float32: so does the fused kernel, even of halves.
    exact = torch.promote_types(found.query.dtype, torch.float32)
    bias = found.bias
    if bias is not None:
        bias = bias if len(bias) == 1 else bias[lines]
        bias = (bias if bias.shape[1] == 1 else bias[:, heads])[:, :, some, skip:].to(exact)

    def weigh(query: Tensor, key: Tensor) -> Tensor:
        query, key = query[lines].to(exact), key[lines].to(exact)
        query = query[:, heads][:, :, some] * query.shape[-1] ** -0.5
        logits = query @ key[:, heads, skip:].mT
        return (logits if bias is None else logits.add_(bias)).softmax(-1)

    weights = weigh(found.query, found.key)
    if found.subtracted is not None:
        *second, factor = found.subtracted
        weights -= factor.to(exact) * weigh(*second)
    if found.axis == "grid":
        return weights, None
    weights, grid = spread(weights, found)
    return weights if rows is None else weights[:, :, list(rows)], grid


def pooling_weights(query: Tensor, key: Tensor, heads: int) -> Tensor:
    """Compute attention pooling's weights (batch, heads, patches)."""
    exact = torch.promote_types(query.dtype, torch.float32)
    sides = (side.detach().to(exact).unflatten(-1, (heads, -1)) for side in (query, key))
    query, key = (side.transpose(1, 2) for side in sides)
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)[:, :, 0]


def spread(weights: Tensor, found: AttentionCall) -> tuple[Tensor, Size]:
    """Write the attention of lines (lines, heads, side, side) as one over all their tokens."""
    lines, (_, heads, side, _) = found.lines, weights.shape
    grid = (lines, side) if found.axis == "row" else (side, lines)
    whole = weights.new_zeros(len(weights) // lines, heads, *grid, *grid)
    own = whole.diagonal(dim1=2, dim2=4) if found.axis == "row" else whole.diagonal(dim1=3, dim2=5)
    own.copy_(weights.unflatten(0, (-1, lines)).permute(0, 2, 3, 4, 1))
    return whole.flatten(4, 5).flatten(2, 3), grid


def join_chunks(chunks: Iterable[Chunk]) -> Tensor:
    """Put a layer's chunks together to (batch, heads, rows, tokens)."""
    chunks = list(chunks)
    if len(chunks) == 1:
        return chunks[0].weights
    starts = dict.fromkeys(chunk.images.start for chunk in chunks)
    return torch.cat(
        [torch.cat([c.weights for c in chunks if c.images.start == s], dim=1) for s in starts]
    )
