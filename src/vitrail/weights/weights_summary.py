"""What weights hold, as a table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vitrail.config import to_dict
from vitrail.data import Preprocess
from vitrail.result import Result, ResultTable, plain_fields
from vitrail.weights.checkpoint import Activation
from vitrail.weights.license import find_license
from vitrail.weights.load import read_resolved
from vitrail.weights.loaded import AnyModel, as_checkpoint
from vitrail.weights.published.catalog import find
from vitrail.weights.sources.resolve import resolve


@dataclass(frozen=True, kw_only=True)
class WeightsSummary(Result):
    """What weights hold."""

    source: str
    format: str
    """Whose names the file uses."""
    spec: str
    parameters: int
    tensors: int
    classes: int
    activation: Activation
    thresholds: tuple[float, ...] | None
    preprocess: Preprocess | None
    license: str | None
    """As the catalog, the config or the model card says; None where none of them does."""
    sha256: str | None
    changes: tuple[str, ...]
    """What was done to the weights since they were read."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the preprocessing is as in a model folder."""
        preprocess = None if self.preprocess is None else to_dict(self.preprocess)
        return plain_fields(self) | {"preprocess": preprocess}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one line per fact, then the changes."""
        shown = self.to_dict()
        changes = shown.pop("changes")
        shown["license"] = self.license or "not stated: see where the weights come from"
        for key, value in (shown.pop("preprocess") or {}).items():
            shown[f"preprocess.{key}"] = " x ".join(map(str, value)) if key == "size" else value
        rows = [(key, f"{v:,}" if type(v) is int else str(v)) for key, v in shown.items() if v]
        yield ResultTable(("", ""), rows, justify="left")
        yield from changes


def show_weights(source: AnyModel, *, model: str | None = None) -> WeightsSummary:
    """Say what a source, or a loaded model, holds; the file is hashed."""
    if isinstance(source, str | os.PathLike):
        named = os.fspath(source)
        found = resolve(named)
        checkpoint = read_resolved(found, model=model)
        license = find_license(found)
    else:
        checkpoint, license = as_checkpoint(source), None
        named = str(checkpoint.spec)
    provenance = checkpoint.provenance
    origin = find(provenance.source) if provenance else None
    return WeightsSummary(
        source=named,
        format=provenance.format if provenance else "vitrail",
        spec=str(checkpoint.spec),
        parameters=sum(tensor.numel() for tensor in checkpoint.tensors.values()),
        tensors=len(checkpoint.tensors),
        classes=checkpoint.spec.classes,
        activation=checkpoint.activation,
        thresholds=checkpoint.thresholds,
        preprocess=checkpoint.preprocess,
        license=license or (origin.license if origin else None),
        sha256=provenance.sha256 if provenance else None,
        changes=provenance.changes if provenance else (),
    )
