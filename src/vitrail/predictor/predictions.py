"""What a predictor answers: for an image, the most likely classes, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitrail.config import InputError
from vitrail.data.decoding.decode import ImageError


@dataclass(frozen=True)
class ClassScore:
    """A class that an image may show."""

    index: int
    """The head's output."""
    label: str
    """The class's name; its number where the weights came without names."""
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What an image shows, the most likely class first."""

    top: tuple[ClassScore, ...]

    @property
    def index(self) -> int:
        """The most likely class's number."""
        return self.top[0].index

    @property
    def label(self) -> str:
        """The most likely class's name."""
        return self.top[0].label

    @property
    def probability(self) -> float:
        """How likely the most likely class is."""
        return self.top[0].probability


@dataclass(frozen=True)
class Answer:
    """What a model gave for one image of many, or why the image could not be used."""

    where: str
    """The image's path, or its place among those given."""
    output: Tensor | None
    """Logits (classes), or the representation (width), on the processor."""
    error: ImageError | None = None


def rank(logits: Tensor, classes: tuple[str, ...] | None, top: int) -> list[Prediction]:
    """Name the `top` most likely classes of each row of logits (n, classes); of equals the first.

    Fewer are named where the model has fewer.
    """
    if top < 1:
        raise InputError(f"the top {top} classes: expected a number from 1 on")
    probabilities = logits.double().softmax(-1)
    values, indices = probabilities.sort(dim=-1, descending=True, stable=True)
    found: list[Prediction] = []
    for row, places in zip(values[:, :top].tolist(), indices[:, :top].tolist(), strict=True):
        labels = [str(place) if classes is None else classes[place] for place in places]
        found.append(Prediction(tuple(map(ClassScore, places, labels, row))))
    return found
