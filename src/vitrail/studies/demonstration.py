"""The demonstration: the paper's story in small, on data that needs no download.

A ViT is pre-trained on many drawn `characters`, then fine-tuned on ten handwritten `digits` of each
class at a higher resolution, with a fresh zero head and resized positions; another one learns from
the same digits from scratch, for as many steps. Three samples of the digits say how much is luck.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.config import Duration
from vitrail.data.transforms.augment import Augment
from vitrail.evaluation.probes.fewshot import fewshot
from vitrail.report import leave_report
from vitrail.result import Result, ResultTable
from vitrail.run import train
from vitrail.text import show
from vitrail.training.logging.log_setup import show_log
from vitrail.training.losses import LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.run_result import Run
from vitrail.training.train_config import TrainConfig

log = logging.getLogger("vitrail")

_CHARACTERS, _SHOTS, _SEEDS = 100_000, 10, 3
_SHAPE = "depth=4,width=96,heads=3,mlp=192,pool=gap"
_LOW, _HIGH = f"ViT/4@24,{_SHAPE}", f"ViT/4@32,{_SHAPE}"
_STEPS, _FEW = Duration(600, "steps"), Duration(60, "steps")


@dataclass(frozen=True)
class DemoRow:
    """One way to learn, and what it reached."""

    what: str
    labels: int
    """Labeled images that it learned from."""
    steps: int | None
    """None where a closed form is solved."""
    top1: tuple[float, ...]
    """One per sample of the digits."""

    @property
    def mean(self) -> float:
        """The mean of the samples."""
        return statistics.fmean(self.top1)


@dataclass(frozen=True)
class DemoResult(Result):
    """What pre-training was worth."""

    pretrained: DemoRow
    frozen: DemoRow
    """A linear model on the pre-trained model's features, by the paper's least squares."""
    finetuned: DemoRow
    scratch: DemoRow
    folder: Path
    report: Path | None
    """The page that shows a digit and where the fine-tuned model looks."""

    @property
    def gain(self) -> float:
        """Accuracy that fine-tuning has above training from scratch, in points."""
        return 100 * (self.finetuned.mean - self.scratch.mean)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the gain in points."""
        return {**super().to_dict(), "gain": self.gain}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give a row per way to learn, what pre-training was worth, and what to do next."""
        rows = (self.pretrained, self.scratch, self.frozen, self.finetuned)
        yield ResultTable(
            ("what", "labels", "steps", "top-1", "std"),
            [
                (
                    each.what,
                    f"{each.labels:,}",
                    "" if each.steps is None else f"{each.steps:,}",
                    f"{each.mean:.1%}",
                    f"{statistics.stdev(each.top1):.1%}" if len(each.top1) > 1 else "",
                )
                for each in rows
            ],
        )
        labels, samples = self.finetuned.labels // 10, len(self.finetuned.top1)
        yield f"Pre-training on drawn characters is worth {self.gain:+.1f} points on handwritten"
        yield f"digits with {labels} labels per class (mean of {samples} samples; chance is 10 %)."
        if self.report is not None:
            yield f"Where it looks: open {show(self.report)} in a browser."
        yield ""
        yield "Next, with photos of your own, one folder per class:"
        yield "  vitrail finetune photos/"
        yield "  vitrail predict runs/photos new/"
        yield "  vitrail serve runs/photos"


def demo(out: str | Path = "runs/demo") -> DemoResult:
    """Pre-train a small ViT, transfer it to few labels at a higher resolution, and compare.

    It takes about three minutes of one core, half of that on two.
    """
    out = Path(out)
    with show_log():
        log.info("1 of 4: pre-training on %s drawn characters, 24 x 24", f"{_CHARACTERS:,}")
        characters = f"characters:size=8,count={_CHARACTERS}"
        pretrained = _train(characters, out / "pretrain", _LOW, _STEPS, batch=128)
        weights = f"run:{pretrained.folder}"
        log.info("2 of 4: a linear model on its frozen features, %d digits per class", _SHOTS)
        (solved,) = fewshot(weights, "digits", shots=[_SHOTS], seeds=_SEEDS).shots
        log.info("3 of 4: fine-tuning on as many digits, 32 x 32, with %d seeds", _SEEDS)
        finetuned = [_learn_digits(out, "finetune", seed, weights) for seed in range(_SEEDS)]
        log.info("4 of 4: learning the same digits from scratch")
        scratch = [_learn_digits(out, "scratch", seed) for seed in range(_SEEDS)]
        log.info("looking inside")
        report = leave_report(finetuned[0].folder)
    labels = 10 * _SHOTS
    return DemoResult(
        DemoRow("characters, pre-trained", _CHARACTERS, pretrained.steps, _reached([pretrained])),
        DemoRow("digits, frozen features", labels, None, tuple(solved.accuracy[0].tolist())),
        DemoRow("digits, fine-tuned", labels, finetuned[0].steps, _reached(finetuned)),
        DemoRow("digits, from scratch", labels, scratch[0].steps, _reached(scratch)),
        out,
        report,
    )


def _reached(runs: list[Run]) -> tuple[float, ...]:
    return tuple(run.top1 or 0.0 for run in runs)


def _learn_digits(out: Path, name: str, seed: int, weights: str | None = None) -> Run:
    """Train on a sample of the digits; test on those of other writers."""
    data, folder = f"digits,per_class={_SHOTS},seed={seed}", out / f"{name}-{seed}"
    lr = 5e-3 if weights is None else 2e-3
    return _train(data, folder, _HIGH, _FEW, weights=weights, seed=seed, lr=lr)


def _train(
    data: str,
    out: Path,
    model: str,
    length: Duration,
    *,
    weights: str | None = None,
    batch: int = 64,
    lr: float = 5e-3,
    seed: int = 0,
) -> Run:
    config = TrainConfig(
        data=data,
        model=model,
        weights=weights,
        out=out,
        length=length,
        batch=batch,
        augment=Augment(crop="pad", flip=0.0),
        optim=OptimConfig(kind="muon", lr=lr, momentum=0.95, nesterov=True, weight_decay=0.05),
        schedule=ScheduleConfig(warmup=Duration(10, "%")),
        loss=LossConfig(smoothing=0.1),
        eval_every=length,
        save_every=length,
        seed=seed,
        loggers=(),
    )
    return train(config, restart=True, report=False)
