"""Linear probes: a linear classifier on frozen features, by L-BFGS or by SGD.

Features are standardized with the training images' mean and std. L-BFGS minimizes the mean
cross-entropy plus `decay / 2` times the squared weights (not the biases): scikit-learn's logistic
regression with C = 1 / (n decay). SGD trains one head per learning rate, all in the same matrix
products. A fifth of the training images chooses the decay or the learning rate, then the final head
is trained on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.datasets.open import Data
from vitrail.evaluation.evaluation_result import show_estimate
from vitrail.evaluation.features.compute import FeatureOptions, features_of_pair
from vitrail.evaluation.features.image_features import Features, check_pair
from vitrail.evaluation.features.mapped_rows import StandardizedRows
from vitrail.evaluation.probes.holdout import hold_out_features
from vitrail.evaluation.probes.linear_fits import Heads, Rows, fit_lbfgs, fit_sgd
from vitrail.evaluation.probes.probe_model import (
    FitHead,
    LinearHead,
    calibrate_head,
    check_probe_out,
    unstandardize,
    write_probe,
)
from vitrail.evaluation.probes.probe_result import EvaluatedFeatures, evaluated_features
from vitrail.result import ResultTable
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel

DECAYS = tuple(10.0**power for power in range(1, -7, -1))
RATES = tuple(m * 10.0**power for power in range(-4, 1) for m in (1, 2, 5))
EPOCHS, BATCH = 50, 256


@dataclass(frozen=True, kw_only=True)
class LinearProbe:
    """How well linear classifiers do, and which setting is best on held-out images."""

    settings: tuple[float, ...]
    """Decays of L-BFGS, or learning rates of SGD."""
    held_out: np.ndarray
    """(settings), accuracy on held-out training images."""
    best: int
    """Which setting is best on them: of equals the larger decay or the smaller learning rate."""
    accuracy: float
    """On the test images, with that setting, trained on all training images."""
    head: LinearHead = field(repr=False)
    """The classifier that was evaluated."""
    fit: FitHead = field(repr=False)
    """Fits a head with that setting to other images."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult(EvaluatedFeatures):
    """Accuracy of a linear classifier on a model's features."""

    by: Literal["lbfgs", "sgd"]
    probe: LinearProbe

    @property
    def top1(self) -> float:
        """Accuracy on the test images."""
        return self.probe.accuracy

    @property
    def _setting(self) -> str:
        return "decay" if self.by == "lbfgs" else "rate"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the accuracy, the chosen setting, and each that was tried."""
        found, name = self.probe, self._setting
        tried = [
            {name: value, "held_out": accuracy}
            for value, accuracy in zip(found.settings, found.held_out.tolist(), strict=True)
        ]
        top1 = self.estimate(self.top1)
        said = {"top1": top1.value, "top1_interval": [top1.low, top1.high]}
        said |= {name: found.settings[found.best], "by": self.by}
        return {**self.head(), **said, "each": tried, **self.written()}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per setting, then the accuracy."""
        found, name = self.probe, "weight decay" if self.by == "lbfgs" else "learning rate"
        rows = [
            (f"{value:g}", f"{accuracy:.2%}", "chosen" if place == found.best else "")
            for place, (value, accuracy) in enumerate(
                zip(found.settings, found.held_out.tolist(), strict=True)
            )
        ]
        yield ResultTable((name, "held-out accuracy", ""), rows)
        top1, setting = self.estimate(self.top1), found.settings[found.best]
        yield f"top-1 {show_estimate(top1)}, trained with {name} {setting:g}"
        yield from self.datasets()
        yield from self.next_commands()


def probe(
    model: AnyModel,
    data: Data,
    *,
    by: Literal["lbfgs", "sgd"] = "lbfgs",
    values: Sequence[float] | None = None,
    epochs: int | None = None,
    test: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    **options: Unpack[FeatureOptions],
) -> ProbeResult:
    """Train a linear classifier on frozen features, and evaluate it.

    `by` L-BFGS or SGD; `values` are the weight decays or learning rates to choose from, `seed` is
    that of the 20 % validation split that chooses. SGD trains for `epochs`, by default 50. `test`
    is the split to evaluate on, by default test, or val if there is none. With `out`, the backbone
    with the classifier as its head is written there: a model folder for every command. `options`
    say how features are computed.
    """
    if by == "lbfgs" and epochs is not None:
        raise InputError("--epochs requires --by sgd; lbfgs goes on until the loss is least")
    check_probe_out(out, options.get("features", "pre-logits"), data)
    loaded = as_loaded(model, patches=options.get("patches"))
    pair = features_of_pair(loaded, data, test, model, **options)
    epochs = EPOCHS if epochs is None else epochs
    chosen = values or (DECAYS if by == "lbfgs" else RATES)
    total = len(chosen) if by == "lbfgs" else epochs
    with show_progress("decays" if by == "lbfgs" else "epochs", total) as report:
        if by == "lbfgs":
            found = probe_lbfgs(*pair[:2], decays=chosen, seed=seed, report=report)
        else:
            found = probe_sgd(*pair[:2], rates=chosen, epochs=epochs, seed=seed, report=report)
    if out is not None:
        head, uncertainty = calibrate_head(found.head, pair[0], None, found.fit, seed)
        said = f"linear probe ({by}) of {len(pair[0]):,} images of {pair[0].name}"
        write_probe(loaded, head, pair[0], out, said, uncertainty, datasets=pair.datasets)
    fields = evaluated_features(model, data, pair, options)
    return ProbeResult(**fields, by=by, probe=found, out=None if out is None else Path(out))


def probe_lbfgs(
    train: Features,
    test: Features,
    *,
    decays: Sequence[float] = DECAYS,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> LinearProbe:
    """Train with L-BFGS for each decay, the strongest first; `report` is told how many are done."""
    _check("decays", decays)
    order = sorted(decays, reverse=True)

    def fit(x: Rows, y: Tensor, settings: Sequence[float]) -> Heads:
        return fit_lbfgs(x, y, len(train.classes), settings, report)

    return _probe(train, test, order, seed, fit)


def probe_sgd(
    train: Features,
    test: Features,
    *,
    rates: Sequence[float] = RATES,
    epochs: int = EPOCHS,
    batch: int = BATCH,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> LinearProbe:
    """Train with SGD, momentum and a cosine schedule, all learning rates at once."""
    _check("rates", rates)
    if epochs < 1 or batch < 1:
        raise InputError(f"expected epochs and a batch of at least 1, got {epochs} and {batch}")

    def fit(x: Rows, y: Tensor, settings: Sequence[float]) -> Heads:
        options = {"epochs": epochs, "batch": batch, "seed": seed}
        return fit_sgd(x, y, len(train.classes), settings, **options, report=report)

    return _probe(train, test, sorted(rates), seed, fit)


def _check(name: str, values: Sequence[float]) -> None:
    if not values or not all(0 < value < float("inf") for value in values):
        raise InputError(f"expected {name} above 0, got {[*values]}")


def _probe(
    train: Features,
    test: Features,
    settings: Sequence[float],
    seed: int,
    fit: Callable[[Rows, Tensor, Sequence[float]], Heads],
) -> LinearProbe:
    """Choose a setting on held-out images, the first of equals, and evaluate it."""
    check_pair(train, test)
    x, y = StandardizedRows(torch.from_numpy(train.values)), torch.from_numpy(train.labels)
    rest, held = hold_out_features(train, seed)
    found = fit(x.only(rest), y[rest], settings).predict(x.only(held)) == y[held]
    accuracies = found.double().mean(1).numpy()
    best = int(accuracies.argmax())
    asked = StandardizedRows(torch.from_numpy(test.values), x.mean, x.std)
    final = fit(x, y, settings[best : best + 1])
    correct = final.predict(asked)[0].numpy() == test.labels

    def fit_again(features: Tensor, labels: Tensor) -> LinearHead:
        x = StandardizedRows(features)
        heads = fit(x, labels, settings[best : best + 1])
        return unstandardize(heads.weight[0], heads.bias[0], x.mean, x.std)

    return LinearProbe(
        settings=tuple(settings),
        held_out=accuracies,
        best=best,
        accuracy=float(correct.mean()),
        head=unstandardize(final.weight[0], final.bias[0], x.mean, x.std),
        fit=fit_again,
    )


def fit_head_to(features: Tensor, labels: Tensor, classes: int, decay: float) -> LinearHead:
    """Fit one head by L-BFGS to features (n, width) as they are."""
    x = StandardizedRows(features)
    heads = fit_lbfgs(x, labels, classes, (decay,))
    return unstandardize(heads.weight[0], heads.bias[0], x.mean, x.std)
