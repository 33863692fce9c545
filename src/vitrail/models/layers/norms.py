"""LayerNorm, RMSNorm, and LayerScale, the learned factor of a residual branch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.models.spec import ViTSpec


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm which, like its LayerNorm, keeps the weights' precision under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        return super().forward(x.to(self.weight.dtype))


def make_norm(spec: ViTSpec, size: int) -> nn.Module:
    """Build a norm of the spec's kind."""
    kind = RMSNorm if spec.norm == "rms" else nn.LayerNorm
    return kind(size, spec.norm_eps)


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch (arXiv 2103.17239)."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.factor = nn.Parameter(torch.full((width,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of x (…, width)."""
        return x * self.factor
