"""The MLP of a block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers.linear import Linear
from vitrail.models.layers.norms import make_norm
from vitrail.models.noise import Dropout
from vitrail.models.spec import Activation, ViTSpec


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
        return F.gelu(x, approximate="tanh" if self.activation == "gelu-tanh" else "none")

    def forward(self, x: Tensor) -> Tensor:
        """Map each token of x (…, width)."""
        return self.output(self.sub_norm(self.dropout(self.activate(self.hidden(self.norm(x))))))
