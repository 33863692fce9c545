"""How a run does on its validation split, from one evaluation to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitrail.evaluation.accuracy import Accuracy


class EvalResult(NamedTuple):
    """What an evaluation found, whatever is learnt."""

    merit: float
    """What makes one evaluation better than another: more of it."""
    values: dict[str, float]
    """Measures by name, such as top1 and loss."""
    images: int
    """Images that were measured."""
    skipped: int
    """Images that could not be read."""

    @classmethod
    def of_accuracy(cls, found: Accuracy) -> EvalResult:
        """Judge by the most likely class."""
        values = {"top1": found.top1, "top5": found.top5, "loss": found.loss}
        return cls(found.top1, values, found.images, found.skipped)


@dataclass(frozen=True, kw_only=True)
class BestTracker:
    """The last evaluation and the best."""

    evaluated: int = 0
    """The step of the last one; 0 while there was none."""
    worse: int = 0
    """Evaluations since the best."""
    last: EvalResult | None = None
    best: EvalResult | None = None

    def after(self, step: int, found: EvalResult) -> BestTracker:
        """Take an evaluation in; the first of equals is the best."""
        if self.best is None or found.merit > self.best.merit:
            return BestTracker(evaluated=step, last=found, best=found)
        return BestTracker(evaluated=step, worse=self.worse + 1, last=found, best=self.best)

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> BestTracker:
        """Read what `dataclasses.asdict` made, after JSON has made lists of tuples."""
        last, best = (facts[name] and EvalResult(*facts[name]) for name in ("last", "best"))
        return cls(evaluated=facts["evaluated"], worse=facts["worse"], last=last, best=best)
