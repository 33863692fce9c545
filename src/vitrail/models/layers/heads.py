"""What follows the encoder: attention pooling and the head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers.linear import Linear
from vitrail.models.layers.mlp import MLP
from vitrail.models.spec import ViTSpec


class AttentionPool(nn.Module):
    """Pool tokens with one learned query (big_vision's MAP head, arXiv 2106.04560).

    AIMv2's query is not projected, and no MLP follows.
    """

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.heads = spec.pool_heads or spec.heads
        self.probe = nn.Parameter(torch.empty(1, 1, spec.width))
        whole = spec.pool == "map"
        self.query = Linear(spec.width, spec.width) if whole else nn.Identity()
        self.key_value = Linear(spec.width, 2 * spec.width, bias=whole or spec.qkv_bias)
        self.output = Linear(spec.width, spec.width)
        self.mlp = MLP(spec, spec.pool_mlp or spec.mlp, dropout=0.0) if whole else None

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Pool x (batch, tokens, width) to (batch, width); tokens that are not valid count none."""
        batch, tokens, width = x.shape
        query = self.query(self.probe).view(1, 1, self.heads, -1).expand(batch, -1, -1, -1)
        size = width // self.heads  # said, because an empty batch leaves it open
        key, value = self.key_value(x).view(batch, tokens, 2, self.heads, size).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mask = None if valid is None else valid[:, None, None]
        mixed = F.scaled_dot_product_attention(query, key, value, mask)
        x = self.output(mixed.reshape(batch, width))
        return x if self.mlp is None else x + self.mlp(x)


def mean_tokens(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Average x (batch, tokens, width) over the tokens, or over the valid ones."""
    if valid is None:
        return x.mean(1)
    weights = valid.to(x.dtype)[..., None]
    return (x * weights).sum(1) / weights.sum(1)


class Head(nn.Module):
    """The pre-training head (a tanh layer, then a linear one) or the fine-tuning head (linear).

    With `unit` the last layer reads features of length 1; without `tanh` the first is a projection.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        *,
        representation: int = 0,
        tanh: bool = True,
        hidden_bias: bool = True,
        unit: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.tanh, self.unit = tanh, unit
        hidden = Linear(width, representation, bias=hidden_bias) if representation else None
        self.hidden = hidden
        self.output = Linear(representation or width, classes, bias=bias) if classes else None

    def features(self, x: Tensor) -> Tensor:
        """Return the pre-logits of pooled tokens x (batch, width)."""
        if self.hidden is not None:
            x = self.hidden(x).tanh() if self.tanh else self.hidden(x)
        return F.normalize(x, dim=-1) if self.unit else x

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of pre-logits; without classes, the pre-logits themselves."""
        return features if self.output is None else self.output(features)
