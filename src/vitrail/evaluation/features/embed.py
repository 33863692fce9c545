"""Write a model's features of a dataset to a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from vitrail.data.datasets.open import Data
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.features.compute import FeatureOptions, features_of
from vitrail.evaluation.features.feature_files import check_out, write_features
from vitrail.evaluation.features.feature_kinds import parse_feature_kind
from vitrail.evaluation.inputs import name_data, name_model, open_images
from vitrail.models.weight_hash import hash_weights
from vitrail.result import Result, plain_fields
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel


@dataclass(frozen=True, kw_only=True)
class EmbedResult(Result):
    """The files with a model's features, and where these come from."""

    model: str
    data: str
    split: str
    features: str
    """The kind of features."""
    weights: str
    """Hash of the model's weights, by which others recognize whose features these are."""
    files: tuple[Path, ...]
    images: int
    width: int
    """Features of each image."""
    skipped: int
    """Images that could not be read."""
    selected: Selected | None = None
    """How many images of how many these are, and how many of them were trained on."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return plain_fields(self)

    def summary(self) -> Iterator[str]:
        """Give the files, then what they hold."""
        yield from map(str, self.files)
        skipped = f", {self.skipped:,} could not be read" if self.skipped else ""
        yield f"{self.images:,} images, {self.width} features each{skipped}"
        if self.selected is not None:
            yield f"features of {self.selected}"
        yield from self.notes


def embed(
    model: AnyModel,
    data: Data,
    *,
    out: str | Path,
    split: str = "all",
    **options: Unpack[FeatureOptions],
) -> EmbedResult:
    """Write a model's features of all images of a dataset to FILE.parquet, .npy or .safetensors.

    Run it again after it was stopped: it resumes from the cache, and writes the same bytes.
    `options` say how features are computed.
    """
    kind = options.get("features", "pre-logits")
    parse_feature_kind(kind)
    check_out(Path(out))
    opened = open_images(data, split, (model,), labels=False)
    dataset = opened.dataset
    loaded = as_loaded(model)
    found = features_of(loaded, [dataset], **options)[0]
    facts = {"model": name_model(model), "data": name_data(data), "split": split, "features": kind}
    facts["weights"] = hash_weights(loaded.model)
    return EmbedResult(
        **facts,
        files=tuple(write_features(found, Path(out), facts)),
        images=len(found),
        width=found.values.shape[1],
        skipped=len(found.bad),
        selected=opened.selected,
        notes=opened.notes,
    )
