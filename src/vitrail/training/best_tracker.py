"""How a run does on its validation images, from one evaluation to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class EvalResult(NamedTuple):
    """What an evaluation during training found, whatever the task."""

    score: float
    """What the best evaluation has most of."""
    values: dict[str, float]
    """Metrics by name, for example top1 and loss."""
    images: int
    """Images evaluated."""
    skipped: int
    """Images that could not be read."""
    thresholds: tuple[float, ...] | None = None
    """Each class's probability from which on an image has the label, where it may have several."""
    interval: tuple[float, float] | None = None
    """95 % interval of the accuracy, or of R2, where there is one."""
    worst: tuple[tuple[str, int, int], ...] = ()
    """The three classes with the most mistakes for their size: name, images, correct ones."""


@dataclass(frozen=True, kw_only=True)
class BestTracker:
    """The last evaluation and the best."""

    evaluated: int = 0
    """The step of the last one; 0 before the first."""
    worse: int = 0
    """Evaluations since the best."""
    last: EvalResult | None = None
    best: EvalResult | None = None

    def after(self, step: int, found: EvalResult) -> BestTracker:
        """Take an evaluation in; of equal scores the first is the best, and NaN never is."""
        known = not math.isnan(found.score)
        if known and (self.best is None or found.score > self.best.score):
            return BestTracker(evaluated=step, last=found, best=found)
        return BestTracker(evaluated=step, worse=self.worse + 1, last=found, best=self.best)

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> BestTracker:
        """Read what `dataclasses.asdict` made, after JSON turned tuples into lists."""
        last, best = (load_result(saved[name]) for name in ("last", "best"))
        return cls(evaluated=saved["evaluated"], worse=saved["worse"], last=last, best=best)


def load_result(saved: Sequence[Any] | None) -> EvalResult | None:
    """Read an evaluation, after JSON turned tuples into lists."""
    if not saved:
        return None
    found = EvalResult(*saved)
    return found._replace(
        thresholds=found.thresholds and tuple(found.thresholds),
        interval=found.interval and (found.interval[0], found.interval[1]),
        worst=tuple((name, images, correct) for name, images, correct in found.worst),
    )
