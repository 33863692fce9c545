"""The demonstration: the paper's main job in small, on data that needs no download.

A ViT is pre-trained on `shapes`, then fine-tuned on `digits` at a higher resolution with a fresh
zero head and resized positions; another is trained on `digits` from scratch for as many steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrail.config import Duration
from vitrail.data.transforms.augment import Augment
from vitrail.report import leave_report
from vitrail.run import Run, TrainConfig, train
from vitrail.training.optim import OptimConfig
from vitrail.training.schedule import ScheduleConfig
from vitrail.training.tasks import LossConfig

_SHAPE = "depth=4,width=96,heads=3,mlp=192,pool=gap"
_STEPS, _FEW = Duration(600, "steps"), Duration(90, "steps")


@dataclass(frozen=True)
class Row:
    """One training of the demonstration, and what it reached."""

    what: str
    chance: float
    """What guessing reaches."""
    top1: float
    steps: int
    folder: Path
    report: Path | None
    """The page that shows what the model has learnt."""


def run(out: Path, say: Callable[[str], object]) -> list[Row]:
    """Pre-train, fine-tune, and train from scratch; each in a run folder of its own."""
    say("1 of 3: pre-training on shapes, 32 x 32")
    pretrained = _train("shapes:easy", "pretrain", out, f"ViT/4@32,{_SHAPE}", _STEPS)
    say("2 of 3: fine-tuning on digits, 48 x 48")
    weights = f"run:{pretrained.folder}"
    finetuned = _train("digits", "finetune", out, f"ViT/4@48,{_SHAPE}", _FEW, weights)
    say("3 of 3: the same on digits from scratch")
    scratch = _train("digits", "scratch", out, f"ViT/4@48,{_SHAPE}", _FEW)
    rows = [("shapes, pre-trained", 1 / 6, pretrained), ("digits, fine-tuned", 1 / 10, finetuned)]
    say("looking inside")
    return [
        Row(what, chance, done.top1 or 0.0, done.steps, done.folder, leave_report(done.folder))
        for what, chance, done in [*rows, ("digits, from scratch", 1 / 10, scratch)]
    ]


def _train(
    data: str, name: str, out: Path, model: str, length: Duration, weights: str | None = None
) -> Run:
    config = TrainConfig(
        data=data,
        model=model,
        weights=weights,
        out=out / name,
        length=length,
        batch=64,
        augment=Augment(crop="pad", flip=0.0),
        optim=OptimConfig(kind="muon", lr=5e-3, momentum=0.95, nesterov=True, weight_decay=0.05),
        schedule=ScheduleConfig(warmup=Duration(10, "%")),
        loss=LossConfig(smoothing=0.1),
        eval_every=length,
        save_every=length,
        loggers=(),
    )
    return train(config, restart=True)
