"""A run so small that it can be killed twenty times in some seconds, and what is left of it."""

import hashlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forks import Ended, in_processes
from vitrail.config import Duration
from vitrail.data.augment import Augment, RandAugment
from vitrail.data.loader import LoaderConfig
from vitrail.run import TrainConfig, train
from vitrail.train.loop import Trainer
from vitrail.train.optim import OptimConfig

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
    average=0.9,
    evaluate=steps(4),
    save=steps(3),
    log=3,
    seed=5,
    loader=LoaderConfig(workers=2),
    loggers=(),
)
"""All that is random is on: dropout, stochastic depth, crops, RandAugment, mixup."""


def toy(out: Path, **changes: Any) -> TrainConfig:
    return replace(TOY, out=out, **changes)


def fail_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let runs end with a ZeroDivisionError after so many steps."""
    real = Trainer.step

    def fail(self: Trainer, number: int, *args: Any) -> Any:
        if number == step:
            raise ZeroDivisionError
        return real(self, number, *args)

    patch.setattr(Trainer, "step", fail)


def print_of(out: Path) -> dict[str, str]:
    """Hash what a run computed: the model, the last state's tensors, the metrics, the result."""
    (*_, state) = sorted(out.glob("states/step-*"))
    files = [out / "model" / "model.safetensors", state / "tensors.safetensors"]
    files += [out / "metrics.jsonl", out / "result.json"]
    prints = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {**prints, "step": state.name}


def leftovers(out: Path) -> list[str]:
    """List what a run leaves behind but should not."""
    hidden = [path for path in out.rglob(".*") if path.name != ".lock"]
    return [str(path.relative_to(out)) for path in hidden]


def in_child(work: Callable[[], object], *, kill_after: float | None = None) -> Ended:
    """Work in a forked child, which has torch already; kill it, if asked, after some seconds."""

    def strike(pids: list[int]) -> None:
        """Kill the child unless it has ended; until waited for, it keeps its number."""
        deadline = time.monotonic() + (kill_after or 0)
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while kill_after is not None and os.waitid(os.P_PID, pids[0], look) is None:
            if time.monotonic() >= deadline:
                os.kill(pids[0], signal.SIGKILL)
                return
            time.sleep(0.001)

    def clean() -> None:
        """Let torch make its threads anew before there are others, whom it would trip."""
        torch.set_num_threads(1)
        work()

    (ended,) = in_processes(clean, 1, meanwhile=strike)
    return ended


def warm_up(folder: Path) -> None:
    """Import what torch imports when it is first used, so that each child has it."""
    short = {"length": steps(1), "evaluate": steps(1), "loader": LoaderConfig(workers=0)}
    train(toy(folder, **short))


def train_in_child(config: TrainConfig, *, kill_after: float | None = None) -> Ended:
    return in_child(lambda: train(config), kill_after=kill_after)
