"""The MLP of a block, and the tanh form of GELU for processors."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers.linear import Linear, is_traced
from vitrail.models.layers.norms import make_norm
from vitrail.models.noise import Dropout
from vitrail.models.spec import Activation, ViTSpec

_SCALE = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _SCALE
_LEAST = 2**16  # fewer numbers take torch's kernel no longer
_BLOCK = 2**17  # numbers of a thread, whose intermediate results then stay in its core's cache


class MLP(nn.Module):
    """A norm, then two dense layers with a GELU between them, or a gated pair (SwiGLU, GEGLU).

    The norm is in here, not before, so that its output is freed before the MLP's peak.
    """

    def __init__(self, spec: ViTSpec, mlp: int, dropout: float) -> None:
        super().__init__()
        self.activation: Activation = spec.activation
        self.norm = make_norm(spec, spec.width)
        self.gated = spec.gated
        self.hidden = Linear(spec.width, (1 + spec.gated) * mlp, bias=spec.dense_bias)
        self.dropout = Dropout(dropout)
        self.sub_norm: nn.Module = nn.Identity()
        self.output = Linear(mlp, spec.width, bias=spec.dense_bias)

    def activate(self, x: Tensor) -> Tensor:
        """Apply the non-linearity to the hidden layer's output."""
        if self.gated:
            gate, value = x.chunk(2, dim=-1)
            return (F.silu(gate) if self.activation == "swiglu" else F.gelu(gate)) * value
        if self.activation == "quick-gelu":
            return x * torch.sigmoid(1.702 * x)
        return gelu_tanh(x) if self.activation == "gelu-tanh" else F.gelu(x)

    def forward(self, x: Tensor) -> Tensor:
        """Map each token of x (…, width)."""
        return self.output(self.sub_norm(self.dropout(self.activate(self.hidden(self.norm(x))))))


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU's tanh form; on a CPU by a sigmoid, as torch's tanh takes three times as long.

    0.5 (1 + tanh(z)) is sigmoid(2z). What reads graphs or operators sees `F.gelu`.
    """
    if is_traced() or not _suits_sigmoid(x):
        return F.gelu(x, approximate="tanh")
    if torch.is_grad_enabled() and x.requires_grad:
        return _TanhGELU.apply(x)
    return _by_sigmoid(x, None)


def _suits_sigmoid(x: Tensor) -> bool:
    return (
        x.is_cpu
        and type(x) is Tensor
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() >= _LEAST
        and x.is_contiguous()
        and torch.autograd.forward_ad._current_level < 0
    )


class _TanhGELU(torch.autograd.Function):
    """Keeps the derivative in place of the input, so that a step computes one sigmoid, not two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        derivative = torch.empty_like(x)
        ctx.save_for_backward(derivative)
        return _by_sigmoid(x, derivative)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # of the derivative's own derivative nothing is kept
            raise RuntimeError("create_graph in float32: take it by torch.func, or in float64")
        return grads[0] * ctx.saved_tensors[0]


def _by_sigmoid(x: Tensor, derivative: Tensor | None) -> Tensor:
    """Compute the values and write the derivative, block by block in float32."""
    y, one = torch.empty_like(x), torch.tensor(_SCALE)
    size = min(_BLOCK * torch.get_num_threads(), x.numel())
    sigmoid, slope, wide = torch.empty(3, size)
    whole = (x, y, y if derivative is None else derivative)
    for part, result, found in zip(*(each.view(-1).split(size) for each in whole), strict=True):
        if len(part) < size:
            sigmoid, slope, wide = (each[: len(part)] for each in (sigmoid, slope, wide))
        part = part if x.dtype == torch.float32 else wide.copy_(part)
        torch.addcmul(one, part, part, value=_CUBIC, out=sigmoid).mul_(part).sigmoid_()
        torch.mul(part, sigmoid, out=result)
        if derivative is not None:  # s + x s (1 - s) * the slope of 2z
            torch.addcmul(one, part, part, value=3 * _CUBIC, out=slope)
            torch.ops.aten.sigmoid_backward.grad_input(slope, sigmoid, grad_input=slope)
            torch.addcmul(sigmoid, slope, part, out=found)
    return y
