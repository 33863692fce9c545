"""The same model for inference: nothing that is never read, and oneDNN's layers on a CPU.

Their weights are packed once, and bias and GELU are fused into the matrix product, at the cost of a
second copy of the weights. These are the operators that torch's own compiler uses; where they are
missing, torch's usual layers stay. In bfloat16 and int8 only products are rounded: norms and the
residual stream stay in float32, which takes no longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.machine import has_bfloat16, has_vnni
from vitrail.models import BiT, ViT
from vitrail.models.layers.blocks import Block, ParallelBlock
from vitrail.models.layers.mlp import MLP
from vitrail.models.layers.self_attention import AttentionMix
from vitrail.predictor.attention_products import AttentionProducts
from vitrail.predictor.int8 import InputRange, Int8Dense
from vitrail.predictor.last_block import (
    LastBlock,
    ReadAttention,
    inference_copy,
    prune_last_block,
)

InferencePrecision = Literal["float32", "bfloat16", "int8"]
"""What matrix products are computed in."""

_GELU = {"gelu": "none", "gelu-tanh": "tanh"}
"""oneDNN's name for each form of GELU."""
_ROWS = 1024  # number of tokens that the weights are laid out for; any other number runs too


class _Dense(nn.Module):
    """A linear layer, optionally followed by GELU."""

    def __init__(self, layer: nn.Linear, gelu: str | None, dtype: torch.dtype) -> None:
        super().__init__()
        operators: Any = torch.ops.mkldnn
        self.packed = operators._reorder_linear_weight(layer.weight.detach().to(dtype), _ROWS)
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        self.dtype, self.run = dtype, operators._linear_pointwise
        self.after = ("none", [None], "") if gelu is None else ("gelu", [None], gelu)
        self(torch.zeros(1, layer.in_features))  # fails now if it can't run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.to(self.dtype), self.packed, self.bias, *self.after)


class _FusedMLP(nn.Module):
    """A norm and two linear layers; the activation is fused where oneDNN knows it."""

    def __init__(self, mlp: MLP, layers: _Layers, name: str) -> None:
        super().__init__()
        gelu = _GELU.get(mlp.activation)
        self.norm, self.sub_norm = mlp.norm, mlp.sub_norm
        output = layers.make(mlp.output, f"{name}.output", smooth=False)
        hidden = layers.make(mlp.hidden, f"{name}.hidden", gelu)
        direct = gelu is not None and isinstance(mlp.sub_norm, nn.Identity)
        if direct and isinstance(hidden, Int8Dense) and isinstance(output, Int8Dense):
            hidden.give_levels_of(output)  # nothing between them needs floats
        self.hidden, self.output = hidden, output
        self.activate = mlp.activate if gelu is None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.sub_norm(self.activate(self.hidden(self.norm(x)))))


class _Layers:
    """Makes the layers of a precision."""

    def __init__(
        self, precision: InferencePrecision, ranges: Mapping[str, InputRange] | None
    ) -> None:
        rounded = precision != "float32" and has_bfloat16()
        self.dtype = torch.bfloat16 if rounded else torch.float32
        self._ranges = (ranges or {}) if precision == "int8" else {}

    def make(
        self, layer: nn.Linear, name: str, gelu: str | None = None, *, smooth: bool = True
    ) -> nn.Module:
        """Make a layer: in int8 where its input's range is known and has no high peaks."""
        if (seen := self._ranges.get(name)) is not None:
            smoothed = seen.smoothed(layer.weight if smooth else None)
            if not smoothed.peaked:
                return Int8Dense(layer, smoothed, gelu, self.dtype)
        return _Dense(layer, gelu, self.dtype)

    def fuse_block(self, block: Any, name: str) -> None:
        """Replace the linear layers of a block."""
        attention = block.attention
        # The MLP first: if it fails, the block is unchanged.
        block.mlp = _FusedMLP(block.mlp, self, f"{name}.mlp")
        attention.output = self.make(attention.output, f"{name}.attention.output")
        if isinstance(attention, ReadAttention):
            return
        if type(attention.mix) is AttentionMix:
            attention.mix = AttentionProducts(attention.mix)
        for part in ("qkv",) if attention.query is None else ("query", "key_value"):
            made = self.make(getattr(attention, part), f"{name}.attention.{part}")
            setattr(attention, part, made)


def check_precision(model: ViT | BiT, precision: InferencePrecision) -> None:
    """Refuse what a CPU is not faster in, or has no layers for."""
    if precision == "float32":
        return
    if not isinstance(model, ViT):
        raise InputError(f"--precision {precision} on a CPU needs a ViT, got {model.spec.name}")
    if precision == "bfloat16" and not has_bfloat16():
        raise InputError("--precision bfloat16: this CPU has neither AVX-512 BF16 nor AMX")
    if precision == "int8" and not has_vnni():
        raise InputError("--precision int8: this CPU has no VNNI, without which sums overflow")


@torch.no_grad()
def fuse(
    model: ViT | BiT,
    *,
    prune: bool = True,
    precision: InferencePrecision = "float32",
    ranges: Mapping[str, InputRange] | None = None,
) -> ViT | BiT:
    """Make an inference copy that computes the same logits and features faster.

    It keeps the current weights. The layers are oneDNN's for float32 weights on a CPU; without
    `prune`, the last block stays complete. Layers whose `ranges` are known compute in int8.
    """
    copy = prune_last_block(model) if prune else inference_copy(model)
    parameter = next(copy.parameters())
    suited = parameter.device.type == "cpu" and parameter.dtype == torch.float32
    if not (suited and isinstance(copy, ViT) and torch.backends.mkldnn.is_available()):
        return copy
    check_precision(model, precision)
    layers, kinds = _Layers(precision, ranges), Block | LastBlock | ParallelBlock
    try:
        for name, block in [each for each in copy.named_modules() if isinstance(each[1], kinds)]:
            # The one token of a pruned last block is not worth quantizing.
            layers.fuse_block(block, "" if isinstance(block, LastBlock) else name)
    except (AttributeError, RuntimeError, NotImplementedError):  # another torch's operators
        if precision != "float32":
            raise InputError(f"this torch has no {precision} layers; use float32") from None
    return copy.eval()
