"""What a predictor returns for an image: the most likely classes, or why there are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.config import InputError
from vitrail.data.decoding.decode import ImageError
from vitrail.result import Result, ResultTable
from vitrail.weights.checkpoint import Activation


@dataclass(frozen=True, slots=True)
class ClassScore:
    """A class and its probability."""

    index: int
    """The output of the head."""
    label: str
    """The class's name, or its number if the weights came without names."""
    probability: float
    predicted: bool | None = None
    """Whether the probability reaches the threshold of a multi-label (sigmoid) model."""

    def to_dict(self) -> dict[str, Any]:
        """Give plain data; `predicted` only for a multi-label model."""
        data = {"index": self.index, "label": self.label, "probability": self.probability}
        return data if self.predicted is None else {**data, "predicted": self.predicted}


@dataclass(frozen=True, slots=True)
class Prediction(Result):
    """The classes of one image, most likely first, or the reason why it could not be used."""

    path: str
    """The image's path; `image 3` for one that was not given as a path."""
    top: tuple[ClassScore, ...] = ()
    error: str | None = None
    error_kind: str | None = None
    """The error in two words, e.g. `not an image`."""

    @property
    def index(self) -> int:
        """The number of the most likely class."""
        return self.top[0].index

    @property
    def label(self) -> str:
        """The name of the most likely class."""
        return self.top[0].label

    @property
    def probability(self) -> float:
        """The probability of the most likely class."""
        return self.top[0].probability

    def summary(self) -> Iterable[ResultTable | str]:
        """Give a table of the classes, or the error."""
        if self.error is not None:
            yield f"{self.path}: {self.error}"
        else:
            rows = [(score.label, f"{score.probability:.1%}") for score in self.top]
            yield ResultTable((self.path, "probability"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Give plain data: the path, and either `top` or `error`."""
        if self.error is not None:
            return {"path": self.path, "error": self.error}
        return {"path": self.path, "top": [score.to_dict() for score in self.top]}


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What the model computed for one of many images, or why the image could not be used."""

    path: str
    """The image's path; `image 3` for one that was not given as a path."""
    values: Tensor | None
    """Logits (classes) or features (width), on the CPU."""
    error: ImageError | None = None


def rank(
    logits: Tensor,
    classes: tuple[str, ...] | None,
    top: int,
    *,
    activation: Activation = "softmax",
    thresholds: tuple[float, ...] | None = None,
) -> list[tuple[ClassScore, ...]]:
    """Give the `top` most likely classes per row of logits (n, classes); ties in class order.

    A sigmoid model's classes are predicted from their thresholds on, 0.5 if it has none.
    """
    if top < 1:
        raise InputError(f"top must be at least 1, got {top}")
    logits = logits.double()
    probabilities = logits.sigmoid() if activation == "sigmoid" else logits.softmax(-1)
    values, indices = probabilities.sort(dim=-1, descending=True, stable=True)
    ranked: list[tuple[ClassScore, ...]] = []
    for row, places in zip(values[:, :top].tolist(), indices[:, :top].tolist(), strict=True):
        labels = [str(place) if classes is None else classes[place] for place in places]
        predicted: list[bool | None] = [None] * len(places)
        if activation == "sigmoid":
            limits = [0.5 if thresholds is None else thresholds[place] for place in places]
            predicted = [value >= limit for value, limit in zip(row, limits, strict=True)]
        ranked.append(tuple(map(ClassScore, places, labels, row, predicted)))
    return ranked
