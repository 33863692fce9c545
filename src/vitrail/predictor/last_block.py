"""The last block for those tokens alone that the head reads: a ViT's layers but one.

With a class token, nothing reads what the last block makes of the patches. What is left of it are
their part in the class token's attention, and for that no key or value of theirs is needed either:
a query goes through the keys' weights once instead of every token, and the values' weights are
applied to what was mixed. The logits are the same but for rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models import BiT, ViT, build
from vitrail.models.layers import Block, SelfAttention
from vitrail.models.positions import RelativePositions


class ReadAttention(nn.Module):
    """Self-attention of the first `count` tokens to all."""

    def __init__(self, attention: SelfAttention, count: int) -> None:
        super().__init__()
        self.count, self.norm, self.output = count, attention.norm, attention.output
        heads, width = attention.heads, attention.qkv.in_features
        query, key, value = attention.qkv.weight.detach().chunk(3)
        self.query = query
        self.key = key.view(heads, -1, width) * (width // heads) ** -0.5
        self.value = value.view(heads, -1, width).mT
        bias = attention.qkv.bias
        # The keys' bias adds the same to all of a query's products, which a softmax does not see.
        parts = (None, None, None) if bias is None else bias.detach().chunk(3)
        self.query_bias, _, self.value_bias = parts

    def forward(self, x: Tensor) -> Tensor:
        """Mix all tokens of x (batch, tokens, width) for the first ones (batch, count, width)."""
        x = self.norm(x)
        batch, _, width = x.shape
        heads, size, _ = self.key.shape
        query = F.linear(x[:, : self.count], self.query, self.query_bias)
        query = query.view(-1, heads, size).transpose(0, 1) @ self.key
        query = query.view(heads, batch, self.count, width).transpose(0, 1).flatten(1, 2)
        mixed = (query @ x.mT).softmax(-1) @ x  # (batch, heads x count, width)
        mixed = mixed.view(batch, heads, self.count, width).transpose(0, 1).flatten(1, 2)
        value = (mixed @ self.value).view(heads, batch, self.count, size)
        value = value.permute(1, 2, 0, 3).flatten(2)
        return self.output(value if self.value_bias is None else value + self.value_bias)


class LastBlock(nn.Module):
    """A block that gives the first `count` tokens only; it shares the other's weights."""

    def __init__(self, block: Block, count: int) -> None:
        super().__init__()
        self.count = count
        self.attention = ReadAttention(block.attention, count)
        self.mlp, self.after1, self.after2 = block.mlp, block.after1, block.after2

    def forward(self, x: Tensor, relative: RelativePositions | None = None) -> Tensor:
        """Encode x (batch, tokens, width) to the tokens that are read (batch, count, width)."""
        assert relative is None, "such a block is left whole"
        x = x[:, : self.count] + self.after1(self.attention(x))
        return x + self.after2(self.mlp(x))


def twin_of(model: ViT | BiT) -> ViT | BiT:
    """Give the same weights in other modules, in eval mode, which nobody's hooks hear."""
    twin = build(model.spec, device="meta")
    twin.load_state_dict(model.state_dict(), assign=True)
    return twin.eval()


@torch.no_grad()
def shorten(model: ViT | BiT) -> ViT | BiT:
    """Give a twin whose last block is for the tokens alone that the head reads.

    Its logits and features are the model's; its `tokens` are not. Where the head reads all tokens,
    or attention is of another kind, it is all of the model. It keeps the weights of this moment.
    """
    twin = twin_of(model)
    if not isinstance(twin, ViT):
        return twin
    spec, last = twin.spec, twin.blocks[-1]
    relative = any(isinstance(table, RelativePositions) for table in twin.positions)
    if spec.pool == "token" and isinstance(last, Block) and not (spec.qk_norm or relative):
        twin.blocks[-1] = LastBlock(last, 2 if spec.distilled else 1).eval()
    return twin
