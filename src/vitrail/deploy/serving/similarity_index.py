"""A model's index: its images nearest to others, and small copies of them.

Clients refer to an image by its row number. Images are read from the dataset that the features were
computed from, opened once at the start: nothing in a request becomes a path.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_dataset
from vitrail.data.decoding.decode import ImageError, decode, read_header
from vitrail.evaluation.features.feature_index import FeatureIndex, read_index
from vitrail.evaluation.inputs import is_labeled
from vitrail.models.weight_hash import hash_weights
from vitrail.plotting.tiles import to_colors
from vitrail.predictor import Predictor

SIDE = 160
"""Longer side of a small copy, in pixels."""
_QUALITY = 80  # of its JPEG


class SimilarityIndex:
    """The index of a model."""

    def __init__(self, path: str, predictor: Predictor) -> None:
        """Read an index; InputError if it belongs to another model, or its images are missing."""
        index = read_index(Path(path))
        kind = index.facts["features"]
        if kind != "pre-logits":
            raise InputError(f"{path} has {kind} features; expected pre-logits from vitrail embed")
        if index.facts["weights"] != hash_weights(predictor.model):
            made = f"vitrail embed {predictor.name} {index.facts['data']} --out {path}"
            raise InputError(
                f"{path} was made by another model, {index.facts['model']}; make it with: {made}"
            )
        self._dataset = _open(path, index)
        predictor.preprocess = predictor.preprocess.read_as(self._dataset)  # as when it was made
        self._rows = _find_rows(index, self._dataset)
        # Without labels all images are of one class, whose name says nothing.
        self._labels = index.labels if is_labeled(self._dataset) else ("",) * len(index.labels)
        self._index = FeatureIndex(facts=index.facts, values=index.values, names=(), labels=())
        _ = self._index.norms  # computed now, not for the first client

    def __len__(self) -> int:
        return len(self._labels)

    def find(self, features: Tensor, top: int) -> list[list[dict[str, Any]]]:
        """Find the images nearest to each row of features (n, width), nearest first."""
        cosines, rows = self._index.nearest(features, top)
        return [
            [
                {"id": row, "label": self._labels[row], "similarity": round(cosine, 5)}
                for cosine, row in zip(*pair, strict=True)
            ]
            for pair in zip(cosines.tolist(), rows.tolist(), strict=True)
        ]

    def thumbnail(self, row: int) -> bytes:
        """Make a small JPEG of an image; ImageError if it is gone or unreadable."""
        if not 0 <= row < len(self):
            raise ImageError(f"no image {row}; expected 0 to {len(self) - 1}", "unreadable")
        index = int(self._rows[row])
        if index < 0:
            raise ImageError("this image is no longer in its dataset", "unreadable")
        try:
            content = self._dataset.read(index)
        except OSError:
            raise ImageError("this image is gone", "unreadable") from None
        if isinstance(content, bytes):
            header = read_header(content)
            shrink = max(1, min(header.height, header.width) / SIDE)
            reading = self._dataset.reading
            content = decode(content, header=header, shrink=shrink, reading=reading)
        image = Image.fromarray(np.ascontiguousarray(to_colors(content)))
        image.thumbnail((SIDE, SIDE))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=_QUALITY)
        return stream.getvalue()


def _open(path: str, index: FeatureIndex) -> ImageDataset:
    data, split = index.facts["data"], index.facts["split"]
    try:
        return open_dataset(data, split=split, labels=False)  # as vitrail embed opens it
    except InputError as error:
        hint = "run serve in the folder where vitrail embed ran"
        raise InputError(f"{path}: its images are missing: {error}; {hint}") from None


def _find_rows(index: FeatureIndex, dataset: ImageDataset) -> np.ndarray:
    """Find each row's image in the dataset; -1 if it is no longer there."""
    known = {dataset.where(row): row for row in range(len(dataset))}
    return np.array([known.get(name, -1) for name in index.names], np.int64)
