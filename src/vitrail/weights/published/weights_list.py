"""The catalog of published checkpoints as a list to read. Torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.config import InputError
from vitrail.result import Result, ResultTable
from vitrail.weights.published.at_hand import is_free
from vitrail.weights.published.catalog import CATALOG, RECOMMENDED, PublishedWeights
from vitrail.weights.published.published_weights import Use


@dataclass(frozen=True)
class WeightsList(Result):
    """Published checkpoints, with their published accuracy."""

    weights: tuple[PublishedWeights, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: one row per checkpoint, also by whom its accuracy was published."""
        sizes = ("resolution", "parameters", "megabytes")
        rows = [{**asdict(e), **{key: getattr(e, key) for key in sizes}} for e in self.weights]
        return {"weights": rows}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per checkpoint, under its short name if it has one."""
        short = {full: name for name, full in RECOMMENDED.items()}
        rows = []
        for entry in self.weights:
            name = short.get(entry.source, entry.source)
            top1 = f"{entry.top1:.2f}" if entry.cited else ""
            figures = (f"{entry.parameters / 1e6:,.1f}", top1, entry.use, entry.license)
            rows.append((name, entry.model.partition(",")[0], *figures))
        columns = ("source", "model", "M params", "top-1", "use", "license")
        yield ResultTable(columns, rows)
        yield "Top-1 on ImageNet as published; --json says by whom, the data and the preprocessing."
        gated = sum(bool(entry.access) for entry in self.weights)
        if gated:
            yield f"{gated} are gated: accept the license on their page at huggingface.co, log in."


def list_weights(
    *, use: Use | None = None, free: bool = False, at_most: float | None = None
) -> WeightsList:
    """List known published checkpoints; `load` reaches many more.

    Only those for a `use`, `free` for any use, or of `at_most` so many million parameters.
    """
    if at_most is not None and not at_most > 0:
        raise InputError(f"--at-most must be above 0 million parameters, got {at_most:g}")
    found = [
        each
        for each in CATALOG
        if use in (None, each.use)
        and (not free or (is_free(each) and not each.access))
        and (at_most is None or each.parameters <= 1e6 * at_most)
    ]
    return WeightsList(tuple(found))
