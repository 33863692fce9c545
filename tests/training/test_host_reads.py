"""How often a step makes the host wait for an accelerator, counted on torch's meta device.

Its tensors have no values, so that nothing could be read in secret: a read is either seen by the
dispatch mode below or fails.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.tasks_of import classification
from tests.training.trainers import BATCH, GRAY, NOISY, QUIET, STEPS, STRONG, make_batches
from vitrail.distributed import Processes
from vitrail.models import build
from vitrail.training.loop import Trainer
from vitrail.training.optimization.ema import EMA
from vitrail.training.optimization.precision import LossScale
from vitrail.training.optimization.schedule import LRSchedule, rate_at

META = torch.device("meta")


class GatedOptimizer(torch.optim.SGD):
    """Steps as a fused optimizer does: whether it may is decided on the device."""

    _step_supports_amp_scaling = True
    found_inf: torch.Tensor

    def step(self, closure: Any = None) -> None:
        assert closure is None
        assert self.found_inf.device == META
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad * group["lr"] * (1 - self.found_inf))
        torch.ops.aten.set_.source_Tensor(torch.empty(0), torch.empty(0))  # the mode sees the step


class HostTraffic(TorchDispatchMode):
    """Notes, in order, reads of the device, copies from it, and steps of the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        given = [arg for arg in args if isinstance(arg, torch.Tensor)]
        from_device = any(tensor.is_meta for tensor in given)
        if name == "set_":
            self.seen.append("step")
        if name in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero") and from_device:
            self.seen.append("read")
            return 0.0
        if name == "_to_copy" and from_device and kwargs.get("device") == torch.device("cpu"):
            self.seen.append("copy")
            return torch.zeros(given[0].shape, dtype=kwargs.get("dtype") or given[0].dtype)
        return func(*args, **kwargs)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("micro_batch", [BATCH, 5])
def test_a_step_copies_its_numbers_once_and_after_the_optimizer(
    scaled: bool, micro_batch: int
) -> None:
    model = build(NOISY, classes=10, device="meta")
    task = classification(10, GRAY)
    task.setup(GRAY, META)
    trainer = Trainer(
        model,
        task,
        GatedOptimizer([{"params": list(model.parameters()), "lr_scale": 1.0}], lr=0.1),
        partial(rate_at, plan=LRSchedule(kind="cosine", total=STEPS, warmup=2)),
        forward=model,
        lr=0.1,
        clip=1.0,
        batch=BATCH,
        micro_batch=micro_batch,
        seed=7,
        processes=Processes(0, 1, META),
        ema=EMA(model, 0.9),
    )
    trainer.scale = LossScale(device=META) if scaled else None  # as float16 has it
    batches = make_batches(STRONG)
    with HostTraffic() as traffic:
        launched = [trainer.launch(step, batches[step], QUIET) for step in range(2)]
        assert traffic.seen == ["step", "copy"] * 2
        launched[0].read()  # of what was copied: the device is not asked again
    assert traffic.seen == ["step", "copy"] * 2


def test_reads_are_seen() -> None:
    number = torch.ones((), device=META)
    with HostTraffic() as traffic:
        float(number)
        number.cpu()
    assert traffic.seen == ["read", "copy"]
