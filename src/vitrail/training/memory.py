"""How many images fit into memory at a time, and how to tell when they did not."""

from __future__ import annotations

from pathlib import Path

import torch

from vitrail.models.cost.total import cost_of
from vitrail.models.spec import Spec

_ASSUMED = 8e9  # bytes, where nobody says


def choose_micro(spec: Spec, *, most: int, checkpointing: bool, device: torch.device) -> int:
    """Estimate how many images' activations fit into half of the free memory.

    It is all of them, or else a power of two: a little more free memory is to change nothing.
    """
    cost = cost_of(spec)
    each = cost.checkpointed_bytes if checkpointing else cost.activation_bytes
    fit = max(1, int(_free_memory(device) / 2 / max(each, 1)))
    return most if fit >= most else 1 << (fit.bit_length() - 1)


def _free_memory(device: torch.device) -> float:
    """Give the bytes that can still be had on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return _ASSUMED
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024  # kB; what files may give back counts


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out; on CPUs only its text does."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return "can't allocate memory" in text or "not enough memory" in text
