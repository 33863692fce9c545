"""What the results of all evaluations of frozen features have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.data.datasets.open import Data
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.features.compute import FeatureOptions, FeaturePair
from vitrail.evaluation.inputs import name_data, name_model
from vitrail.evaluation.metrics.intervals import Estimate, wilson
from vitrail.result import Result, to_plain
from vitrail.text import show
from vitrail.weights.loaded import AnyModel


@dataclass(frozen=True, kw_only=True)
class EvaluatedFeatures(Result):
    """Which features of which images an evaluation is of."""

    model: str
    data: str
    features: str
    """The kind of features."""
    images: int
    """Images evaluated."""
    skipped: int
    """Images that could not be read, of both datasets."""
    train_images: int
    """Images that were learned from."""
    names: tuple[str, str]
    """The names of the training dataset and of the one evaluated on."""
    selected: Selected | None = None
    """How many images of how many were evaluated on, and why those."""
    notes: tuple[str, ...] = ()
    """What a person should know before believing the numbers, one line each."""
    out: Path | None = None
    """The model folder that was written, if one was asked for."""

    def estimate(self, accuracy: float) -> Estimate:
        """Estimate an accuracy on the images that were evaluated, with its 95 % interval."""
        return wilson(round(accuracy * self.images), self.images)

    def head(self) -> dict[str, Any]:
        """Give what all such results have, as plain data."""
        keys = ("model", "data", "features", "images", "skipped")
        found = {key: getattr(self, key) for key in keys}
        return {**found, "selected": to_plain(self.selected), "notes": list(self.notes)}

    def written(self) -> dict[str, str]:
        """Give the model folder as plain data, where one was written."""
        return {} if self.out is None else {"out": str(self.out)}

    def next_commands(self) -> Iterator[str]:
        """Name the model folder, where one was written, and what takes it."""
        if self.out is not None:
            place = show(self.out)
            yield f"model written to {place}; try: vitrail predict {place} IMAGES"

    def datasets(self, more: str = "") -> Iterator[str]:
        """Say what was learned from and evaluated on, and what could not be read."""
        train, test = self.names
        line = f"{self.images:,} images of {test}, trained on {self.train_images:,} of {train}"
        yield f"{line}, {more}" if more else line
        if self.selected is not None:
            yield f"evaluated on {self.selected}"
        yield from self.notes
        if self.skipped:
            yield f"{self.skipped:,} images could not be read"


def evaluated_features(
    model: AnyModel, data: Data, pair: FeaturePair, options: FeatureOptions
) -> dict[str, Any]:
    """Give the fields that all such results have."""
    train, test, selected, notes = pair[:4]
    return {
        "model": name_model(model),
        "data": name_data(data),
        "features": options.get("features", "pre-logits"),
        "images": len(test),
        "skipped": len(train.bad) + len(test.bad),
        "train_images": len(train),
        "names": (train.name, test.name),
        "selected": selected,
        "notes": notes,
    }
