"""The catalog of published checkpoints as a list to read. Torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.result import Result, ResultTable
from vitrail.weights.catalog import CATALOG, RECOMMENDED, PublishedWeights


@dataclass(frozen=True)
class WeightsList(Result):
    """Published checkpoints, with their published accuracy."""

    weights: tuple[PublishedWeights, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: one row per checkpoint, also by whom its accuracy was published."""
        sizes = ("resolution", "megabytes")
        rows = [{**asdict(e), **{key: getattr(e, key) for key in sizes}} for e in self.weights]
        return {"weights": rows}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per checkpoint, under its short name if it has one."""
        short = {full: name for name, full in RECOMMENDED.items()}
        rows = []
        for entry in self.weights:
            name = short.get(entry.source, entry.source)
            top1 = f"{entry.top1:.2f}" if entry.cited else ""
            pixels = "x".join(map(str, sorted(set(entry.resolution))))
            figures = (pixels, f"{entry.megabytes:,.0f}", top1, entry.license)
            rows.append((name, entry.model.partition(",")[0], entry.data, *figures))
        columns = ("source", "model", "trained on", "px", "MB", "top-1", "license")
        yield ResultTable(columns, rows)
        yield "Top-1 on ImageNet as published; --json says by whom, and the preprocessing."


def list_weights() -> WeightsList:
    """List known published checkpoints; `load` reaches many more."""
    return WeightsList(CATALOG)
