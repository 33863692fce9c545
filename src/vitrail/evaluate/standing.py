"""How a run does on its validation split, from one evaluation to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.evaluate.accuracy import Accuracy


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The last evaluation and the best."""

    evaluated: int = 0
    """The step of the last one; 0 while there was none."""
    worse: int = 0
    """Evaluations since the best."""
    last: Accuracy | None = None
    best: Accuracy | None = None

    def after(self, step: int, found: Accuracy) -> Standing:
        """Take an evaluation in; the first of equals is the best."""
        if self.best is None or found.top1 > self.best.top1:
            return Standing(evaluated=step, last=found, best=found)
        return Standing(evaluated=step, worse=self.worse + 1, last=found, best=self.best)

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> Standing:
        """Read what `dataclasses.asdict` made, after JSON has made lists of tuples."""
        last, best = (facts[name] and Accuracy(*facts[name]) for name in ("last", "best"))
        return cls(evaluated=facts["evaluated"], worse=facts["worse"], last=last, best=best)
