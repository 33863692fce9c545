"""K-fold cross-validation of a whole run: every training image is held out once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.evaluation.metrics.intervals import Estimate, over_folds, student_t
from vitrail.result import ResultTable
from vitrail.text import show
from vitrail.training.checkpoints.run_folder import CONFIG
from vitrail.training.run_result import MEASURES, Run
from vitrail.training.train_config import TrainConfig

log = logging.getLogger("vitrail")


@dataclass(frozen=True, kw_only=True)
class FoldsResult(Run):
    """What the runs of all folds reached: their means over images, with 95 % intervals."""

    runs: tuple[Run, ...]
    """One for each fold, evaluated on the images that it did not see."""

    grouped: bool = False
    """Whether folds keep groups of images whole."""

    def mean(self) -> Estimate:
        """Give the mean of the folds' scores, each image counting the same, with its interval.

        An accuracy, or a mean average precision taken for one, has Wilson's of all images; R2 and
        losses have Student's t over the folds.
        """
        name = self.score()[0]
        scores = np.array([run.score()[1] for run in self.runs])
        images = np.array([run.images for run in self.runs], float)
        if name in ("top-1", "mAP"):
            return over_folds(scores, images, grouped=self.grouped)
        found, value = student_t(scores), float(scores @ images / images.sum())
        moved = Estimate(value, found.low + value - found.value, found.high + value - found.value)
        least, most = (-math.inf, 1.0) if name == "R2" else (0.0, math.inf)
        return moved.within(least, most)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        mean, whole = self.mean(), {"run": str(self.folder), "metric": self.score()[0]}
        whole |= {"mean": mean.value, "interval": [mean.low, mean.high]}
        return {**whole, "runs": [run.to_dict() for run in self.runs]}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give each fold's score, then the mean."""
        name, mean = self.score()[0], self.mean()
        rows = [
            (str(n), f"{run.images:,}", f"{run.score()[1]:.4f}")
            for n, run in enumerate(self.runs, 1)
        ]
        yield ResultTable(("fold", "images", name), rows)
        yield (
            f"{name} {mean.value:.4f} (95 % interval {mean.low:.4f} to {mean.high:.4f}) over "
            f"{len(self.runs)} folds of {self.images:,} images, in {show(self.folder)}"
        )
        yield "next     the same command without --folds trains one model, for use"


def run_folds(config: TrainConfig, train: Callable[[TrainConfig], Run]) -> FoldsResult:
    """Train once for each fold with `train`; folds that were finished before are taken as they are.

    The runs are in the folder's `fold-1`, `fold-2`, ….
    """
    if (config.out / CONFIG).exists():
        raise InputError(f"{config.out} is the folder of a single run; choose another --out")
    runs: list[Run] = []
    for fold in range(1, config.folds + 1):
        log.info("fold %d of %d", fold, config.folds)
        runs.append(train(replace(config, fold=fold, out=config.out / f"fold-{fold}")))
    means: dict[str, Any] = {
        name: _mean([(getattr(run, name), run.images) for run in runs]) for name in MEASURES
    }
    return FoldsResult(
        folder=config.out,
        ending="finished",
        steps=sum(run.steps for run in runs),
        images=sum(run.images for run in runs),
        skipped=sum(run.skipped for run in runs),
        runs=tuple(runs),
        grouped=config.group is not None,
        **means,
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(each, images) for each, images in values if each is not None]
    total = sum(images for _, images in known)
    return sum(each * images for each, images in known) / total if total else None
