"""The last block for only those tokens that the head reads.

With a class token, nothing reads the last block's output for the patches. They only take part in
the class token's attention, and that needs none of their keys or values either: the query goes
through the key weights once instead of every token, and the value weights are applied to the
weighted sum. The logits are the same up to rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models import BiT, ViT, build
from vitrail.models.layers.blocks import Block
from vitrail.models.layers.self_attention import AttentionBias, SelfAttention
from vitrail.models.positions.rotary import Rotation


class ReadAttention(nn.Module):
    """Self-attention from the first `count` tokens to all tokens."""

    def __init__(self, attention: SelfAttention, count: int) -> None:
        super().__init__()
        self.count, self.norm, self.output = count, attention.norm, attention.output
        heads, width = attention.heads, attention.qkv.in_features
        query, key, value = attention.qkv.weight.detach().chunk(3)
        self.query = query
        self.key = key.view(heads, -1, width) * (width // heads) ** -0.5
        self.value = value.view(heads, -1, width).mT
        bias = attention.qkv.bias
        # The key bias adds the same number to all logits of a query: softmax ignores it.
        parts = (None, None, None) if bias is None else bias.detach().chunk(3)
        self.query_bias, _, self.value_bias = parts

    def forward(self, x: Tensor) -> Tensor:
        """Attend to x (batch, tokens, width) from its first tokens: (batch, count, width)."""
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
    """A block that returns only the first `count` tokens; it shares the weights of `block`."""

    def __init__(self, block: Block, count: int) -> None:
        super().__init__()
        self.count = count
        self.attention = ReadAttention(block.attention, count)
        self.mlp, self.after1, self.after2 = block.mlp, block.after1, block.after2

    def forward(
        self,
        x: Tensor,
        relative: AttentionBias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Encode x (batch, tokens, width) to the first tokens (batch, count, width)."""
        assert relative is rotation is None, "blocks with positions inside are not pruned"
        x = x[:, : self.count] + self.after1(self.attention(x))
        return x + self.after2(self.mlp(x))


def inference_copy(model: ViT | BiT) -> ViT | BiT:
    """Give the same weights in new modules, in eval mode and without the model's hooks."""
    copy = build(model.spec, device="meta")
    copy.load_state_dict(model.state_dict(), assign=True)
    return copy.eval()


@torch.no_grad()
def prune_last_block(model: ViT | BiT) -> ViT | BiT:
    """Make an inference copy whose last block computes only the tokens that the head reads.

    Its logits and features equal the model's; its `tokens` do not. If the head reads all tokens, or
    the block has another kind of attention, nothing is pruned. It keeps the current weights.
    """
    copy = inference_copy(model)
    if not isinstance(copy, ViT):
        return copy
    spec, last = copy.spec, copy.blocks[-1]
    positions = spec.relative or spec.rotary != "none"
    other = positions or spec.qk_norm or not spec.key_bias or spec.sub_norm == "both"
    other |= spec.attention == "differential" or spec.key_heads_of(spec.depth - 1) != spec.heads
    if spec.pool == "token" and isinstance(last, Block) and not other:
        copy.blocks[-1] = LastBlock(last, 2 if spec.distilled else 1).eval()
    return copy
