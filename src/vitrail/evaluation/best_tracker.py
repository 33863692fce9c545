"""How a run does on its validation split, from one evaluation to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitrail.evaluation.accuracy import Accuracy


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

    @classmethod
    def of_accuracy(cls, found: Accuracy) -> EvalResult:
        """Take top-1 accuracy for the score."""
        values = {"top1": found.top1, "top5": found.top5, "loss": found.loss}
        return cls(found.top1, values, found.images, found.skipped)


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
        """Take an evaluation in; of equal scores the first is the best."""
        if self.best is None or found.score > self.best.score:
            return BestTracker(evaluated=step, last=found, best=found)
        return BestTracker(evaluated=step, worse=self.worse + 1, last=found, best=self.best)

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> BestTracker:
        """Read what `dataclasses.asdict` made, after JSON turned tuples into lists."""
        last, best = (facts[name] and EvalResult(*facts[name]) for name in ("last", "best"))
        return cls(evaluated=facts["evaluated"], worse=facts["worse"], last=last, best=best)
