"""Mixed precision: autocast in bfloat16 where the hardware has it, and loss scaling for float16.

float16 (V100, T4, which have no bfloat16) underflows below 6e-8, so the loss is scaled as torch's
GradScaler does. Here all processes decide together, with DDP and FSDP alike, and the scale is saved
with the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.machine import has_bfloat16
from vitrail.models.spec import Spec
from vitrail.training.checkpoints.dtensor import local_part

Precision = Literal["auto", "float32", "bfloat16", "float16"]

_TYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LEAST_FEATURES = 128  # of a model whose step is faster in bfloat16 on a CPU; others gain little
_CALM = 2000  # steps without an overflow after which the scale is doubled, as GradScaler does


def autocast_type(precision: Precision, device: torch.device, spec: Spec) -> torch.dtype | None:
    """Return autocast's dtype for a model, or None for float32.

    `auto` decides by hardware and size, never by a timing, so that it decides the same again.
    """
    if precision == "auto":
        small = device.type == "cpu" and spec.pooled < _LEAST_FEATURES
        precision = "bfloat16" if multiplies_bfloat16(device) and not small else "float32"
    return dtype_of(precision)


def dtype_of(precision: str) -> torch.dtype | None:
    """Return what a precision other than `auto` computes products in; None for float32."""
    return _TYPES[precision]


def name_precision(dtype: torch.dtype | None) -> str:
    """Name what products are computed in."""
    return next(name for name, each in _TYPES.items() if each == dtype)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Tell whether the hardware has bfloat16; a CPU without it takes 60 times as long."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and has_bfloat16()


class LossScale:
    """The factor of the loss: a power of two, so that no gradient is rounded by it.

    It stays on the device, as all that is decided by it.
    """

    def __init__(
        self, value: float = 2.0**16, calm: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        """Start with a factor, and the number of steps since the last change or overflow."""
        self.factor = torch.tensor(value, dtype=torch.float32, device=device)
        self._calm = torch.tensor(calm, dtype=torch.int32, device=device)

    def state(self) -> dict[str, float]:
        """Return what a run saves, and makes it of again."""
        return {"value": self.factor.item(), "calm": int(self._calm.item())}

    def remove(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide gradients by it."""
        inverse = 1 / self.factor
        for parameter in parameters:
            if parameter.grad is not None:
                local_part(parameter.grad).mul_(inverse)

    def settle(self, overflow: Tensor) -> Tensor:
        """Adapt it after a step; return 1 if a gradient overflowed at the smallest scale.

        `overflow` is 1 or 0, in float32 on the device.
        """
        lost = overflow * (self.factor <= 1)
        update = torch._amp_update_scale_  # pyright: ignore[reportPrivateImportUsage]
        update(self.factor, self._calm, overflow, 2.0, 0.5, _CALM)  # as GradScaler does
        self.factor.clamp_(min=1.0)
        return lost
