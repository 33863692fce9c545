"""The demonstration: the paper's main job in small, on data that needs no download.

A ViT is pre-trained on `shapes`, then fine-tuned on `digits` at a higher resolution with a fresh
zero head and resized positions; another is trained on `digits` from scratch for as many steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitrail.config import Duration
from vitrail.data.transforms.augment import Augment
from vitrail.report import leave_report
from vitrail.result import Result, ResultTable
from vitrail.run import train
from vitrail.training.logging.log_setup import show_log
from vitrail.training.losses import LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.run_result import Run
from vitrail.training.train_config import TrainConfig

log = logging.getLogger("vitrail")

_SHAPE = "depth=4,width=96,heads=3,mlp=192,pool=gap"
_STEPS, _FEW = Duration(600, "steps"), Duration(90, "steps")


@dataclass(frozen=True)
class DemoRun:
    """One training of the demonstration, and what it reached."""

    what: str
    chance: float
    """What guessing reaches."""
    top1: float
    steps: int
    folder: Path
    report: Path | None
    """The page that shows what the model has learned."""


@dataclass(frozen=True)
class DemoResult(Result):
    """What the demonstration's trainings reached."""

    folder: Path
    runs: tuple[DemoRun, ...]

    def summary(self) -> Iterator[ResultTable | str]:
        """Give a row per training, what pre-training was worth, and where to look."""
        yield ResultTable(
            ("what", "steps", "top-1", "chance"),
            [
                (each.what, f"{each.steps:,}", f"{each.top1:.1%}", f"{each.chance:.1%}")
                for each in self.runs
            ],
        )
        pretrained, finetuned, scratch = self.runs
        gain = 100 * (finetuned.top1 - scratch.top1)
        said = "helped by" if gain > 0 else "did not help:"
        steps, where = scratch.steps, scratch.folder
        yield f"On digits, pre-training on shapes {said} {gain:+.1f} points in {steps} steps."
        yield f"The runs are in {self.folder}; a model is used by its folder, such as {where}"
        pages = [str(each.report) for each in (pretrained, finetuned) if each.report]
        if pages:
            yield f"What they have learned: open {' and '.join(pages)} in a browser."


def demo(out: str | Path = "runs/demo") -> DemoResult:
    """Pre-train a small ViT, transfer it at a higher resolution, and compare; takes minutes."""
    out = Path(out)
    with show_log():
        log.info("1 of 3: pre-training on shapes, 32 x 32")
        pretrained = _train("shapes:easy", "pretrain", out, f"ViT/4@32,{_SHAPE}", _STEPS)
        log.info("2 of 3: fine-tuning on digits, 48 x 48")
        weights = f"run:{pretrained.folder}"
        finetuned = _train("digits", "finetune", out, f"ViT/4@48,{_SHAPE}", _FEW, weights)
        log.info("3 of 3: the same on digits from scratch")
        scratch = _train("digits", "scratch", out, f"ViT/4@48,{_SHAPE}", _FEW)
        log.info("looking inside")
        found = (
            ("shapes, pre-trained", 1 / 6, pretrained),
            ("digits, fine-tuned", 1 / 10, finetuned),
            ("digits, from scratch", 1 / 10, scratch),
        )
        runs = [
            DemoRun(what, chance, run.top1 or 0.0, run.steps, run.folder, leave_report(run.folder))
            for what, chance, run in found
        ]
    return DemoResult(out, tuple(runs))


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
    return train(config, restart=True, report=False)
