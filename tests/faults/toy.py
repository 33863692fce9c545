"""A run so small that it can be killed twenty times in some seconds, and what is left of it."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Ended, in_processes
from tests.runs import read_repeatable, train
from vitrail.config import Duration
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment, RandAugment
from vitrail.run import TrainConfig
from vitrail.training.loop import Trainer
from vitrail.training.optimization.optim import OptimConfig

MODEL = "ViT/4@8,depth=2,width=32,heads=2,mlp=64,channels=1,dropout=0.1,stochastic_depth=0.1"


def steps(count: int) -> Duration:
    return Duration(count, "steps")


TOY = TrainConfig(
    data="digits",
    model=MODEL,
    out=Path("."),
    length=steps(10),
    batch=16,
    augment=Augment(randaugment=RandAugment(), mixup=0.2),
    optim=OptimConfig(lr=3e-3, weight_decay=0.1),
    ema=0.9,
    eval_every=steps(4),
    save_every=steps(3),
    log_every=3,
    seed=5,
    loader=LoaderConfig(workers=2),
    loggers=(),
)
"""All that is random is on: dropout, stochastic depth, crops, RandAugment, mixup."""


def toy(out: Path, **changes: Any) -> TrainConfig:
    return replace(TOY, out=out, **changes)


def fail_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let runs end with a ZeroDivisionError after so many steps."""
    real = Trainer.launch

    def fail(self: Trainer, number: int, *args: Any) -> Any:
        if number == step:
            raise ZeroDivisionError
        return real(self, number, *args)

    patch.setattr(Trainer, "launch", fail)


def print_of(out: Path) -> dict[str, str]:
    """Hash what a run computed: the model, the last state's tensors, the metrics, the result."""
    (*_, state) = sorted(out.glob("checkpoints/step-*"))
    files = [out / "model" / "model.safetensors", state / "tensors.safetensors"]
    files += [out / "metrics.jsonl", out / "result.json"]
    prints = {path.name: hashlib.sha256(read_repeatable(path)).hexdigest() for path in files}
    return {**prints, "step": state.name}


def leftovers(out: Path) -> list[str]:
    """List what a run leaves behind but should not."""
    hidden = [path for path in out.rglob(".*") if path.name != "run.lock"]
    return [str(path.relative_to(out)) for path in hidden]


def in_child(work: Callable[[], object], *, kill_after: float | None = None) -> Ended:
    """Work in a child that has torch already; kill it, if asked, after some seconds."""

    def strike(processes: list[ForkServerProcess]) -> None:
        if kill_after is not None:
            processes[0].join(kill_after)
            processes[0].kill()

    (ended,) = in_processes(work, 1, meanwhile=strike)
    return replace(ended, value=None)


def train_in_child(config: TrainConfig, *, kill_after: float | None = None) -> Ended:
    return in_child(lambda: train(config), kill_after=kill_after)
