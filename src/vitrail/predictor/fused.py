"""The same model for inference: nothing that no one reads, and on a processor oneDNN's layers.

Their weights are packed once, and bias and GELU are done in the product's own pass, for a second
copy of the weights. The operators are those that torch's own compiler uses; where they are missing,
torch's usual layers stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models import BiT, ViT
from vitrail.models.layers import MLP, Block
from vitrail.predictor.last_block import LastBlock, ReadAttention, shorten, twin_of

_GELU = {"gelu": "none", "gelu-tanh": "tanh"}
"""oneDNN's word for each form of GELU."""
_ROWS = 1024  # tokens for which weights are laid out; any other number runs too


class _Dense(nn.Module):
    """A dense layer, with a GELU behind it if asked."""

    def __init__(self, layer: nn.Linear, gelu: str | None = None) -> None:
        super().__init__()
        operators: Any = torch.ops.mkldnn
        self.packed = operators._reorder_linear_weight(layer.weight.detach(), _ROWS)
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.run = operators._linear_pointwise
        self.after = ("none", [None], "") if gelu is None else ("gelu", [None], gelu)
        self(torch.zeros(1, layer.in_features))  # where it can't run, that shows now

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.packed, self.bias, *self.after)


class _FusedMLP(nn.Module):
    """A norm and two dense layers; what stands between them is fused where oneDNN knows it."""

    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        gelu = _GELU.get(mlp.activation)
        self.norm, self.hidden, self.output = mlp.norm, _Dense(mlp.hidden, gelu), _Dense(mlp.output)
        self.activate = mlp.activate if gelu is None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.activate(self.hidden(self.norm(x))))


def fuse(model: ViT | BiT) -> ViT | BiT:
    """Give a twin that computes the same logits and features faster.

    It keeps the weights of this moment.
    """
    return _pack(shorten(model))


def pack(model: ViT | BiT) -> ViT | BiT:
    """Give a twin with packed layers, all of whose blocks are whole."""
    return _pack(twin_of(model))


@torch.no_grad()
def _pack(twin: ViT | BiT) -> ViT | BiT:
    """Put oneDNN's layers into a twin's blocks, for float32 on a processor."""
    parameter = next(twin.parameters())
    suited = parameter.device.type == "cpu" and parameter.dtype == torch.float32
    if not (suited and isinstance(twin, ViT) and torch.backends.mkldnn.is_available()):
        return twin
    try:
        for block in [part for part in twin.modules() if isinstance(part, Block | LastBlock)]:
            attention: Any = block.attention
            # The MLP first: what fails leaves a block whole.
            block.mlp = _FusedMLP(block.mlp)  # pyright: ignore[reportAttributeAccessIssue]
            attention.output = _Dense(attention.output)
            if not isinstance(attention, ReadAttention):
                attention.qkv = _Dense(attention.qkv)
    except (AttributeError, RuntimeError, NotImplementedError):  # another torch's operators
        pass
    return twin.eval()
