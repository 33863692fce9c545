"""Token merging (ToMe, arXiv 2210.09461): each layer merges its most similar patches, no training.

Every second patch looks for its nearest among the others, by the mean of the keys over heads; the
most similar pairs become one token, a mean weighted by the number of patches that each stands for.
Attention counts a merged token once per patch (section 3, equation 1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.models import Model, ViT
from vitrail.models.layers.blocks import Block


class MergedViT(nn.Module):
    """A ViT that merges patches from layer to layer; it shares the model's weights."""

    def __init__(self, model: Model, ratio: float) -> None:
        """Merge a fraction `ratio` of the image's patches in each layer, from 0 to 0.5."""
        super().__init__()
        if not isinstance(model, ViT) or model.spec.attention != "full" or model.spec.distilled:
            raise InputError(f"{model.spec.name}: token merging needs a ViT with full attention")
        if model.spec.block == "parallel" or model.spec.branches > 1:
            raise InputError(
                f"{model.spec.name}: token merging needs blocks whose MLP follows one attention"
            )
        inside = model.spec.position_at != "input" or model.spec.rotary != "none"
        if inside or model.spec.pool in ("map", "probe") or model.spec.pool_prefix:
            raise InputError(
                f"{model.spec.name}: token merging needs positions at the input only, and a head "
                "that reads the class token or the mean of the patches"
            )
        if not 0 <= ratio <= 0.5:
            raise InputError(f"merge must be in [0, 0.5], got {ratio}; 0.08 is usual")
        self.model, self.ratio = model, ratio

    def forward(self, x: Tensor) -> Tensor:
        """Classify images (batch, channels, height, width) to logits (batch, classes)."""
        model, prefix = self.model, self.model.spec.prefix
        patches, (rows, columns) = model.embed_patches(x)
        x = model.embed_tokens(patches, (rows, columns))
        sizes = torch.ones_like(x[..., :1])
        count = int(self.ratio * rows * columns)
        for block in model.blocks:
            assert isinstance(block, Block)
            x, sizes = _run_block(block, x, sizes, count, prefix)
        x = model.norm(x)
        if model.spec.pool == "token":
            return model.head(model.head.features(model.pooled_norm(x[:, 0])))
        weights = sizes[:, prefix:] / (rows * columns)  # the mean over patches, not over tokens
        pooled = model.pooled_norm((weights * x[:, prefix:]).sum(1))
        if model.spec.pool == "token-gap":
            pooled = torch.cat([x[:, 0], pooled], dim=1)
        return model.head(model.head.features(pooled))


def _run_block(
    block: Block, x: Tensor, sizes: Tensor, count: int, prefix: int
) -> tuple[Tensor, Tensor]:
    """Run a block, merging between attention and MLP."""
    attention = block.attention
    query, key, value = attention.project(x)
    bias = sizes.log().transpose(1, 2)[:, None].to(query.dtype)  # (batch, 1, 1, tokens)
    mixed = attention.mix(query, key, value, bias)
    mixed = attention.sub_norm(mixed.transpose(1, 2).reshape(x.shape))
    x = x + block.after1(attention.output(mixed))
    x, sizes = merge_tokens(x, sizes, key.mean(1), count, prefix)
    return x + block.after2(block.mlp(x)), sizes


def merge_tokens(
    x: Tensor, sizes: Tensor, keys: Tensor, count: int, prefix: int
) -> tuple[Tensor, Tensor]:
    """Merge the `count` most similar pairs of tokens (batch, tokens, width), at most half.

    `sizes` (batch, tokens, 1) is the number of patches that each token stands for. The first
    `prefix` tokens are not patches and stay. The result has them first, then the remaining even
    patches, then the odd ones.
    """
    count = min(count, (x.shape[1] - prefix) // 2)
    if count < 1:
        return x, sizes
    keys = F.normalize(keys[:, prefix:], dim=-1)
    similar, nearest = (keys[:, ::2] @ keys[:, 1::2].mT).max(-1)
    order = similar.argsort(dim=1, descending=True)
    gone, kept = order[:, :count, None], order[:, count:].sort(dim=1).values[..., None]
    target = nearest.gather(1, gone[..., 0])[..., None]
    weighted = torch.cat([x * sizes, sizes], dim=-1)
    first, second = weighted[:, prefix::2], weighted[:, prefix + 1 :: 2]
    width = weighted.shape[-1]
    joined = second.scatter_add(
        1, target.expand(-1, -1, width), first.gather(1, gone.expand(-1, -1, width))
    )
    stays = first.gather(1, kept.expand(-1, -1, width))
    weighted = torch.cat([weighted[:, :prefix], stays, joined], dim=1)
    return weighted[..., :-1] / weighted[..., -1:], weighted[..., -1:]
