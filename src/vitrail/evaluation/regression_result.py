"""What an evaluation of predicted numbers found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from vitrail.evaluation.evaluation_result import EvaluationResult
from vitrail.evaluation.metrics.errors import TargetResult
from vitrail.evaluation.metrics.intervals import Estimate
from vitrail.result import ResultTable, to_plain
from vitrail.text import printable


@dataclass(frozen=True, kw_only=True)
class RegressionResult(EvaluationResult):
    """How near a model's numbers are; there are targets instead of classes."""

    targets: tuple[TargetResult, ...]
    r2: Estimate
    """The mean over the targets."""
    table: ClassVar[str] = "targets.csv"

    def scores(self) -> dict[str, Estimate]:
        """Give the mean R2 over the targets."""
        return {"R2": self.r2}

    def metrics(self) -> dict[str, Any]:
        """Give the metrics as plain data; an estimate with its 95 % interval."""
        found: dict[str, Any] = {"images": self.images, "skipped": self.skipped}
        found["targets"] = [
            {name: to_plain(value) for name, value in each.row().items()} for each in self.targets
        ]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        about = ("model", "data", "dataset", "image")
        found = {name: getattr(self, name) for name in about}
        found |= {"notes": list(self.notes), "selected": to_plain(self.selected)}
        return {**found, **self.metrics()}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give a row for each target."""
        rows = [
            (printable(each.name), *(_show(getattr(each, name)) for name in ("mae", "rmse", "r2")))
            for each in self.targets
        ]
        yield ResultTable(("target", "mean absolute error", "root mean square", "R2"), rows)
        yield from self.notes
        if self.selected is not None:
            yield f"evaluated on {self.selected}"
        yield f"{self.evaluated_on()}; with 95 % intervals"
        if self.out is not None:
            yield f"{self.out}: report.json, {self.table}, images.csv, scatter plot"


def _show(estimate: Estimate) -> str:
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"
