"""How exactly a model computes while it trains: bfloat16 where the hardware has it.

Gradients of float16 (V100, T4, which have no bfloat16) reach down to 6e-8 only. So the loss is
multiplied by a scale on the way back, as torch's GradScaler does; here all processes decide of it
together, whether they share gradients or parameters, and it is saved with the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Precision = Literal["auto", "float32", "bfloat16", "float16"]

_TYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CALM = 2000  # steps without an overflow after which the scale is doubled, as GradScaler does


def autocast_type(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Say what products are computed in; None leaves them in float32."""
    if precision == "auto":
        precision = "bfloat16" if _has_bfloat16(device) else "float32"
    return _TYPES[precision]


def _has_bfloat16(device: torch.device) -> bool:
    """Tell whether bfloat16 has hardware; without, a CPU takes 60 times as long as in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    tiles = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return device.type == "cpu" and tiles is not None and bool(tiles())


@dataclass
class LossScale:
    """What losses are multiplied by: a power of two, so that no gradient is rounded by it."""

    value: float = 2.0**16
    calm: int = 0
    """Steps since it was changed, or since a gradient overflowed."""

    def remove(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide gradients by it."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1 / self.value)

    def settle(self, *, overflow: bool) -> bool:
        """Adapt it after a step; False where a gradient overflowed with the smallest scale."""
        if overflow:
            fits, self.calm = self.value > 1, 0
            self.value = max(self.value / 2, 1.0)
            return fits
        self.calm += 1
        if self.calm == _CALM:
            self.value, self.calm = 2 * self.value, 0
        return True
