"""The same model for inference: nothing that is never read, and oneDNN's layers on a CPU.

Their weights are packed once, and bias and GELU are fused into the matrix product, at the cost of a
second copy of the weights. These are the operators that torch's own compiler uses; where they are
missing, torch's usual layers stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models import BiT, ViT
from vitrail.models.layers.blocks import Block, ParallelBlock
from vitrail.models.layers.mlp import MLP
from vitrail.predictor.last_block import (
    LastBlock,
    ReadAttention,
    inference_copy,
    prune_last_block,
)

_GELU = {"gelu": "none", "gelu-tanh": "tanh"}
"""oneDNN's name for each form of GELU."""
_ROWS = 1024  # number of tokens that the weights are laid out for; any other number runs too


class _Dense(nn.Module):
    """A linear layer, optionally followed by GELU."""

    def __init__(self, layer: nn.Linear, gelu: str | None = None) -> None:
        super().__init__()
        operators: Any = torch.ops.mkldnn
        self.packed = operators._reorder_linear_weight(layer.weight.detach(), _ROWS)
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.run = operators._linear_pointwise
        self.after = ("none", [None], "") if gelu is None else ("gelu", [None], gelu)
        self(torch.zeros(1, layer.in_features))  # fails now if it can't run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.packed, self.bias, *self.after)


class _FusedMLP(nn.Module):
    """A norm and two linear layers; the activation is fused where oneDNN knows it."""

    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        gelu = _GELU.get(mlp.activation)
        self.norm, self.hidden, self.output = mlp.norm, _Dense(mlp.hidden, gelu), _Dense(mlp.output)
        self.activate = mlp.activate if gelu is None else nn.Identity()
        self.sub_norm = mlp.sub_norm

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.sub_norm(self.activate(self.hidden(self.norm(x)))))


@torch.no_grad()
def fuse(model: ViT | BiT, *, prune: bool = True) -> ViT | BiT:
    """Make an inference copy that computes the same logits and features faster.

    It keeps the current weights. The layers are oneDNN's for float32 on a CPU; without `prune`, the
    last block stays complete.
    """
    copy = prune_last_block(model) if prune else inference_copy(model)
    parameter = next(copy.parameters())
    suited = parameter.device.type == "cpu" and parameter.dtype == torch.float32
    if not (suited and isinstance(copy, ViT) and torch.backends.mkldnn.is_available()):
        return copy
    try:
        kinds = Block | LastBlock | ParallelBlock
        for block in [part for part in copy.modules() if isinstance(part, kinds)]:
            attention: Any = block.attention
            mlp: Any = block.mlp
            # The MLP first: if it fails, the block is unchanged.
            block.mlp = _FusedMLP(mlp)
            attention.output = _Dense(attention.output)
            if isinstance(attention, ReadAttention):
                continue
            for name in ("qkv",) if attention.query is None else ("query", "key_value"):
                setattr(attention, name, _Dense(getattr(attention, name)))
    except (AttributeError, RuntimeError, NotImplementedError):  # another torch's operators
        pass
    return copy.eval()
