"""How exactly a model computes while it trains: bfloat16 where the hardware has it."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16"]


def autocast_type(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Say what products are computed in; None leaves them in float32."""
    if precision == "auto":
        precision = "bfloat16" if _has_bfloat16(device) else "float32"
    return torch.bfloat16 if precision == "bfloat16" else None


def _has_bfloat16(device: torch.device) -> bool:
    """Tell whether bfloat16 has hardware; without, a CPU takes 60 times as long as in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    tiles = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return device.type == "cpu" and tiles is not None and bool(tiles())
