"""How often a step makes the host wait for an accelerator, counted on torch's meta device.

Its tensors have no values, so that nothing could be read in secret: a read is either seen by the
dispatch mode below or fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices
from torch.utils._python_dispatch import TorchDispatchMode

from tests.cases import slow
from tests.training.tasks_of import (
    classification,
    distillation,
    masked_image_modeling,
    regression,
)
from tests.training.trainers import (
    ADAM,
    BATCH,
    GRAY,
    NOISY,
    PLAIN,
    QUIET,
    STEPS,
    STRONG,
    make_batches,
)
from vitrail.data.transforms.augment import Augment
from vitrail.distributed import Processes
from vitrail.models import Model, build
from vitrail.models.pretraining.mim import MIMConfig
from vitrail.tasks.masked_image_modeling import MaskedImageModeling
from vitrail.tasks.regression import Regression
from vitrail.training.loop import Trainer
from vitrail.training.losses import DistillConfig, LossConfig
from vitrail.training.optimization import optim
from vitrail.training.optimization.ema import EMA
from vitrail.training.optimization.optim import OptimConfig, make_optimizer
from vitrail.training.optimization.precision import LossScale
from vitrail.training.optimization.schedule import LRSchedule, rate_at
from vitrail.training.task import Task

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


class HostTraffic(TorchDispatchMode):
    """Notes, in order, reads of the device, copies from it, and steps of the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        given = [arg for arg in args if isinstance(arg, torch.Tensor)]
        from_device = any(tensor.is_meta for tensor in given)
        if name in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero") and from_device:
            self.seen.append("read")
            return 0.0
        if name == "_to_copy" and from_device and kwargs.get("device") == torch.device("cpu"):
            self.seen.append("copy")
            return torch.zeros(given[0].shape, dtype=kwargs.get("dtype") or given[0].dtype)
        if name == "_fused_sgd_":  # which the meta device lacks
            return None
        return func(*args, **kwargs)


def trainer_on_meta(
    task: Task, model: Model, optimizer: torch.optim.Optimizer, traffic: HostTraffic, micro: int
) -> Trainer:
    """Make a trainer with all that users turn on, whose optimizer's steps the traffic notes."""
    optimizer.register_step_post_hook(lambda *_: traffic.seen.append("step"))
    Task.setup(task, GRAY, META)
    if isinstance(task, Regression):
        task.setup(GRAY, META)
    return Trainer(
        model,
        task,
        optimizer,
        partial(rate_at, plan=LRSchedule(kind="cosine", total=STEPS, warmup=2)),
        forward=model,
        lr=0.1,
        clip=1.0,
        batch=BATCH,
        micro_batch=micro,
        seed=7,
        processes=Processes(0, 1, META),
        ema=EMA(model, 0.9),
    )


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("micro_batch", [BATCH, 5])
def test_a_step_copies_its_numbers_once_and_after_the_optimizer(
    scaled: bool, micro_batch: int
) -> None:
    model, traffic = build(NOISY, classes=10, device="meta"), HostTraffic()
    groups = [{"params": list(model.parameters()), "lr_scale": 1.0}]
    task, optimizer = classification(10, GRAY), GatedOptimizer(groups, lr=0.1)
    trainer = trainer_on_meta(task, model, optimizer, traffic, micro_batch)
    trainer.scale = LossScale(device=META) if scaled else None  # as float16 has it
    batches = make_batches(STRONG)
    with traffic:
        launched = [trainer.launch(step, batches[step], QUIET) for step in range(2)]
        assert traffic.seen == ["step", "copy"] * 2
        launched[0].read()  # of what was copied: the device is not asked again
    assert traffic.seen == ["step", "copy"] * 2


OPTIMIZERS = {
    "adamw": OptimConfig(weight_decay=0.1),
    "adam": OptimConfig(kind="adam", weight_decay=0.1),
    "sgd": OptimConfig(kind="sgd", momentum=0.9, nesterov=True),
    "plain sgd": OptimConfig(kind="sgd", momentum=0.0),
    "muon": OptimConfig(kind="muon", momentum=0.95, nesterov=True, weight_decay=0.1),
}


@pytest.mark.parametrize("checkpointing", [False, slow(True)])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_decides_on_the_device(
    kind: str, checkpointing: bool, fused_on_meta: None
) -> None:
    """But for a momentum's first step, which must not be left out half."""
    model, traffic = build(NOISY, classes=10, device="meta"), HostTraffic()
    model.checkpointing = checkpointing
    optimizer = make_optimizer(model, OPTIMIZERS[kind])
    trainer = trainer_on_meta(classification(10, GRAY), model, optimizer, traffic, 5)
    trainer.scale = LossScale(device=META)
    batches = make_batches(STRONG)
    with traffic:
        for step in range(3):
            trainer.launch(step, batches[step], QUIET)
    first = ["read"] if kind in ("sgd", "muon") else []
    assert traffic.seen == [*first, *(["step", "copy"] * 3)]


def several_labels() -> Task:
    return classification(10, GRAY, LossConfig(kind="sigmoid", smoothing=0.1))


def taught() -> Task:
    teach = build(PLAIN, classes=10, device="meta")
    return distillation(10, GRAY, DistillConfig(teacher="none"), teach)


def with_weights() -> Task:
    task = classification(10, GRAY)
    task.class_weights = torch.ones(10, device=META)
    return task


PIXELS = MIMConfig(target="pixels")
TASKS: dict[str, Callable[[], Task]] = {
    "several labels": several_labels,
    "distillation": taught,
    "class weights": with_weights,
    "masked patches": lambda: masked_image_modeling(PLAIN, GRAY, mim=PIXELS),
    "mae": lambda: masked_image_modeling(PLAIN, GRAY, task="mae", mim=PIXELS),
    "numbers": lambda: regression(GRAY),
}


@pytest.mark.parametrize("name", TASKS)
def test_no_task_asks_the_device(name: str, fused_on_meta: None) -> None:
    task, traffic = TASKS[name](), HostTraffic()
    model = build(PLAIN, classes=2 if name == "numbers" else 10)
    if isinstance(task, MaskedImageModeling):
        model = task.build(task.start())
    model = model.to(META)
    trainer = trainer_on_meta(task, model, make_optimizer(model, ADAM), traffic, 5)
    mixes = name in ("several labels", "distillation", "class weights")
    batches = make_batches(STRONG if mixes else Augment())
    with traffic:
        for step in range(2):
            batch = batches[step]
            if name == "numbers":
                batch = replace(batch, labels=torch.rand(BATCH, 2))
            trainer.launch(step, batch, QUIET)
    assert traffic.seen == ["step", "copy"] * 2


@pytest.fixture
def fused_on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let optimizers be fused on the meta device, as they are on a GPU."""
    monkeypatch.setattr(optim, "_FUSED", (*optim._FUSED, "meta"))
    known = [*_get_fused_kernels_supported_devices(), "meta"]
    for module in ("adam", "adamw", "sgd", "optimizer"):
        known_to = sys.modules[f"torch.optim.{module}"]
        monkeypatch.setattr(
            known_to, "_get_fused_kernels_supported_devices", lambda: known, raising=False
        )


def test_reads_are_seen() -> None:
    number = torch.ones((), device=META)
    with HostTraffic() as traffic:
        float(number)
        number.cpu()
    assert traffic.seen == ["read", "copy"]
