"""How many images fit into memory at a time, and how to tell when they did not."""

from __future__ import annotations

import torch

from vitrail.machine import available_memory
from vitrail.models.cost.training_cost import TaskName, Tuning, training_cost
from vitrail.models.pretraining.mim import MIMConfig
from vitrail.models.spec import Spec


def choose_micro(
    spec: Spec,
    *,
    most: int,
    device: torch.device,
    checkpointing: int,
    task: TaskName = "classification",
    mim: MIMConfig | None = None,
    tune: Tuning | None = None,
) -> int:
    """Estimate how many images' activations fit into half of the memory that this process may use.

    It is all of them or a power of two, so that a little more free memory changes nothing. `task`,
    `mim` and `tune` are as for `training_cost`.
    """
    cost = training_cost(spec, task=task, mim=mim, tune=tune, checkpointing=checkpointing)
    each = cost.activation_bytes
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory()
    fit = max(1, int(free / 2 / max(each, 1)))
    return most if fit >= most else 1 << (fit.bit_length() - 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out; on CPUs only its text does."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return "can't allocate memory" in text or "not enough memory" in text
