"""k-nearest-neighbor classification on frozen features, with votes weighted as in DINO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.datasets.open import Data
from vitrail.evaluation.evaluation_result import show_estimate
from vitrail.evaluation.features.compute import FeatureOptions, features_of_pair
from vitrail.evaluation.features.image_features import Features, check_pair
from vitrail.evaluation.features.mapped_rows import split_rows, take_rows
from vitrail.evaluation.features.neighbors import nearest
from vitrail.evaluation.probes.holdout import hold_out_features
from vitrail.evaluation.probes.probe_result import EvaluatedFeatures, evaluated_features
from vitrail.result import ResultTable
from vitrail.weights.loaded import AnyModel

K = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
"""DINO's: a vote counts exp(cosine / temperature)."""


def vote(cosines: Tensor, labels: Tensor, classes: int, temperature: float | None) -> Tensor:
    """Let neighbors (n, k) of classes `labels` (n, k) vote; of equals the first class wins.

    Without a temperature every vote counts the same.
    """
    weights = torch.ones_like(cosines, dtype=torch.float64)
    if temperature is not None:  # the nearest's vote is 1, since exp(1 / 0.01) is beyond float32
        behind = cosines.double() - cosines.amax(1, keepdim=True)
        weights = (behind / temperature).exp()
    votes = torch.zeros(len(labels), classes, dtype=torch.float64)
    return votes.scatter_add_(1, labels, weights).argmax(1)


@dataclass(frozen=True, kw_only=True)
class KNN:
    """Accuracies of k-nearest-neighbor classification, and which k is best on held-out images."""

    k: tuple[int, ...]
    accuracy: np.ndarray
    """(k), of the test images among all training images."""
    held_out: np.ndarray | None
    """(k), of held-out training images among the others; None where there is one k to choose."""

    @property
    def best(self) -> int:
        """The k that is best on held-out images, the larger of equals."""
        held = self.held_out
        if held is None:
            return 0
        return max(range(len(self.k)), key=lambda place: (held[place], self.k[place]))


@dataclass(frozen=True, kw_only=True)
class KNNResult(EvaluatedFeatures):
    """Accuracy of k-nearest-neighbor classification on a model's features."""

    found: KNN

    @property
    def top1(self) -> float:
        """Accuracy on the test images, with the chosen k."""
        return float(self.found.accuracy[self.found.best])

    def _rows(self) -> list[dict[str, Any]]:
        found = self.found
        held = [None] if found.held_out is None else found.held_out.tolist()
        ends = [self.estimate(float(accuracy))[1:] for accuracy in found.accuracy]
        return [
            {"k": k, "top1": float(accuracy), "top1_interval": [*span], "held_out": held_out}
            for k, accuracy, span, held_out in zip(found.k, found.accuracy, ends, held, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the accuracy, the chosen k, and each that was tried."""
        rows = self._rows()
        best = rows[self.found.best]
        said = {key: best[key] for key in ("top1", "top1_interval", "k")}
        return {**self.head(), **said, "each": rows}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per k, then the accuracy."""
        best = self.found.k[self.found.best]
        rows = [
            (f"{row['k']}", "" if row["held_out"] is None else f"{row['held_out']:.2%}",
             f"{row['top1']:.2%}", "chosen" if row["k"] == best else "")
            for row in self._rows()
        ]  # fmt: skip
        if len(rows) > 1:
            yield ResultTable(("k", "held-out accuracy", "test accuracy", ""), rows)
        top1, neighbors = self.estimate(self.top1), "neighbor" if best == 1 else "neighbors"
        yield f"top-1 {show_estimate(top1)} with {best} {neighbors}"
        yield from self.datasets()


def knn(
    model: AnyModel,
    data: Data,
    *,
    k: Sequence[int] | None = None,
    temperature: float = TEMPERATURE,
    uniform: bool = False,
    test: str | None = None,
    seed: int = 0,
    **options: Unpack[FeatureOptions],
) -> KNNResult:
    """Classify images by their nearest training images, and evaluate that.

    `k` are by default those of 1, 5, 10, 20, 50, 100, 200 that the data allows; a vote counts
    exp(cosine / temperature), or the same with `uniform`. `seed` is that of the 20 % validation
    split that chooses k. `test` is the split to evaluate on, by default test, or val if there is
    none. `options` say how features are computed.
    """
    pair = features_of_pair(model, data, test, **options)
    chosen = k or [count for count in K if count <= len(hold_out_features(pair[0], seed)[0])]
    with show_progress("images", len(pair[1])) as report:
        weight = None if uniform else temperature
        found = classify_by_neighbors(
            *pair[:2], k=chosen, temperature=weight, seed=seed, report=report
        )
    return KNNResult(**evaluated_features(model, data, pair, options), found=found)


def classify_by_neighbors(
    train: Features,
    test: Features,
    *,
    k: Sequence[int] = K,
    temperature: float | None = TEMPERATURE,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> KNN:
    """Classify test images by their nearest training images, for several k at once.

    If several `k` are given, one is chosen on a fifth of the training images, held out of each
    class with `seed`.
    """
    check_pair(train, test)
    if temperature is not None and not 0 < temperature < float("inf"):
        raise InputError(f"expected a temperature above 0, got {temperature}")
    x, y = torch.from_numpy(train.values), torch.from_numpy(train.labels)
    rest, held = hold_out_features(train, seed) if len(k) > 1 else (torch.arange(len(x)), None)
    if not k or not 1 <= min(k) <= max(k) <= len(rest):
        raise InputError(f"expected k of 1 to {len(rest):,} (training images), got {[*k]}")
    options = (len(train.classes), k, temperature)
    chosen, done = None, 0
    if held is not None:
        known, others = ((take_rows(x, rows), y[rows]) for rows in (rest, held))
        chosen, done = _evaluate(known, others, *options), len(held)
        report(done)
    asked = torch.from_numpy(test.values), torch.from_numpy(test.labels)
    accuracy = _evaluate((x, y), asked, *options)
    report(done + len(test))
    return KNN(k=tuple(k), accuracy=accuracy, held_out=chosen)


def _evaluate(
    references: tuple[Tensor, Tensor],
    asked: tuple[Tensor, Tensor],
    classes: int,
    k: Sequence[int],
    temperature: float | None,
) -> np.ndarray:
    cosines, indices = nearest(references[0], asked[0], max(k))
    correct = torch.zeros(len(k), dtype=torch.int64)
    for block in split_rows(len(cosines), classes):
        near, labels, own = cosines[block], references[1][indices[block]], asked[1][block]
        for place, count in enumerate(k):
            votes = vote(near[:, :count], labels[:, :count], classes, temperature)
            correct[place] += (votes == own).sum()
    return (correct.double() / len(cosines)).numpy()
