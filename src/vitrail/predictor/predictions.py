"""What a predictor returns for an image: the most likely classes, or why there are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.config import InputError
from vitrail.data.decoding.decode import ImageError
from vitrail.evaluation.uncertainty.novelty import FLAGGED
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
    """Whether the probability reaches the class's threshold; None unless the model is multi-label
    (sigmoid)."""

    def to_dict(self) -> dict[str, Any]:
        """Give plain data; `predicted` only for a multi-label model."""
        data = {"index": self.index, "label": self.label, "probability": self.probability}
        return data if self.predicted is None else {**data, "predicted": self.predicted}

    def cells(self) -> tuple[str, ...]:
        """Give the cells of a table: label, probability and, for a multi-label model, yes or no."""
        cells = (self.label, f"{self.probability:.1%}")
        return cells if self.predicted is None else (*cells, "yes" if self.predicted else "no")


@dataclass(frozen=True, slots=True)
class Prediction(Result):
    """The classes of one image, most likely first, or the reason why it could not be used."""

    path: str
    """The image's path; `image 3` for one that was not given as a path."""
    top: tuple[ClassScore, ...] = ()
    error: str | None = None
    error_kind: str | None = None
    """The error in two words, e.g. `not an image`."""
    unsure: bool | None = None
    """Whether the answer is withheld at the error rate that was asked for; None if none was."""
    ood: float | None = None
    """How unlike the training images it is: the fraction of held-out images that are nearer to
    them. None for a model that was never calibrated."""
    values: dict[str, float] | None = None
    """The numbers that a regression predicts, by the names of its targets; it has no classes."""

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

    @property
    def answer(self) -> str:
        """The name of the most likely class, or `unsure`."""
        return "unsure" if self.unsure else self.label

    @property
    def multilabel(self) -> bool:
        """Whether each class has a threshold, and an image any number of labels."""
        return any(score.predicted is not None for score in self.top)

    @property
    def labels(self) -> tuple[str, ...]:
        """The predicted classes: those that reach their thresholds, or else the most likely."""
        if self.multilabel:
            return tuple(score.label for score in self.top if score.predicted)
        return tuple(score.label for score in self.top[:1])

    def summary(self) -> Iterable[ResultTable | str]:
        """Give a table of the classes, or the error."""
        if self.error is not None:
            yield f"{self.path}: {self.error}"
        elif self.values is not None:
            rows = [(name, f"{value:.6g}") for name, value in self.values.items()]
            yield ResultTable((self.path, "value"), rows)
        else:
            more = ("predicted",) if self.multilabel else ()
            yield ResultTable(
                (self.path, "probability", *more), [score.cells() for score in self.top]
            )
            yield from self.doubts()

    def doubts(self) -> list[str]:
        """Say in words why the answer should not be trusted."""
        found = ["unsure"] if self.unsure else []
        return found + (["unlike the training images"] if (self.ood or 0) >= FLAGGED else [])

    def to_dict(self) -> dict[str, Any]:
        """Give plain data: the path, and `top`, `values` or `error`; `labels` if multi-label."""
        if self.error is not None:
            return {"path": self.path, "error": self.error}
        if self.values is not None:
            return {"path": self.path, "values": self.values}
        more: dict[str, Any] = {"labels": list(self.labels)} if self.multilabel else {}
        doubts = {"unsure": self.unsure, "ood": self.ood}
        more |= {name: value for name, value in doubts.items() if value is not None}
        return {"path": self.path, **more, "top": [score.to_dict() for score in self.top]}


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
    temperature: float = 1.0,
) -> list[tuple[ClassScore, ...]]:
    """Give the `top` most likely classes per row of logits (n, classes); ties in class order.

    A softmax model's logits are divided by the temperature.
    For a sigmoid model, all classes that reach their thresholds come first, also if there are more
    than `top`.
    """
    if top < 1:
        raise InputError(f"top must be at least 1, got {top}")
    logits = logits.double()
    scaled = logits / temperature
    probabilities = logits.sigmoid() if activation == "sigmoid" else scaled.softmax(-1)
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    counts, reached = [top] * len(logits), None
    if activation == "sigmoid":
        reached = reach_thresholds(probabilities, thresholds)
        first = reached.int().gather(1, order).sort(dim=-1, descending=True, stable=True).indices
        order = order.gather(1, first)
        counts = [max(top, count) for count in reached.sum(1).tolist()]
    ranked: list[tuple[ClassScore, ...]] = []
    for row, count in enumerate(counts):
        indices = order[row, :count]
        values = probabilities[row, indices].tolist()
        predicted = [None] * len(values) if reached is None else reached[row, indices].tolist()
        labels = [str(index) if classes is None else classes[index] for index in indices.tolist()]
        ranked.append(tuple(map(ClassScore, indices.tolist(), labels, values, predicted)))
    return ranked


def reach_thresholds(probabilities: Tensor, thresholds: tuple[float, ...] | None) -> Tensor:
    """Tell which probabilities (n, classes) reach a sigmoid model's thresholds, or 0.5."""
    return probabilities >= probabilities.new_tensor(0.5 if thresholds is None else thresholds)
