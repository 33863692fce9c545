"""Linear probes: a linear classifier on frozen features, by L-BFGS or by SGD.

Features are standardized by the training images'. L-BFGS minimizes the mean cross-entropy plus
`decay / 2` times the squared weights (not the biases): scikit-learn's logistic regression with
C = 1 / (n decay). SGD trains one head a learning rate, all in the same matrix products. A fifth of
the training images chooses the decay or the rate, then all of them train the head that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.evaluation.features.extract import Features, check_pair
from vitrail.evaluation.probes.holdout import hold_out

DECAYS = tuple(10.0**power for power in range(1, -7, -1))
RATES = tuple(m * 10.0**power for power in range(-4, 1) for m in (1, 2, 5))
EPOCHS, BATCH, MOMENTUM = 50, 256, 0.9
_STEPS = 1000  # of L-BFGS, at most
_TOLERANCE = 1e-6  # of the gradient's largest entry


@dataclass(frozen=True)
class Heads:
    """Linear classifiers side by side."""

    weight: Tensor
    """(heads, width, classes)."""
    bias: Tensor
    """(heads, classes)."""

    def predict(self, x: Tensor) -> Tensor:
        """Say the class of each image (n, width) by each head: (heads, n)."""
        x, pairs = x.to(self.weight.dtype), zip(self.weight, self.bias, strict=True)
        return torch.stack([(x @ weight + bias).argmax(1) for weight, bias in pairs])


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How well linear classifiers do, and which setting held-out images choose."""

    settings: tuple[float, ...]
    """Decays of L-BFGS, or learning rates of SGD."""
    held_out: np.ndarray
    """(settings), accuracy on held-out training images."""
    best: int
    """Which setting they choose: the larger decay, or the smaller rate, of equals."""
    accuracy: float
    """Of that setting on the test images, trained on all training images."""


def probe_lbfgs(
    train: Features,
    test: Features,
    *,
    decays: Sequence[float] = DECAYS,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> Probe:
    """Train by L-BFGS for each decay, from the strongest on; `report` is told how many are done."""
    _check("decays", decays)
    order = sorted(decays, reverse=True)

    def fit(x: Tensor, y: Tensor, settings: Sequence[float]) -> Heads:
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
) -> Probe:
    """Train by SGD with momentum and a cosine schedule, all learning rates at once."""
    _check("rates", rates)
    if epochs < 1 or batch < 1:
        raise InputError(f"expected epochs and a batch of at least 1, got {epochs} and {batch}")

    def fit(x: Tensor, y: Tensor, settings: Sequence[float]) -> Heads:
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
    fit: Callable[[Tensor, Tensor, Sequence[float]], Heads],
) -> Probe:
    """Choose a setting by held-out images, the first of equals, and measure it."""
    check_pair(train, test)
    x, y = torch.from_numpy(train.values).double(), torch.from_numpy(train.labels)
    std, mean = torch.std_mean(x, 0, correction=0)
    std[std == 0] = 1.0
    x = (x - mean) / std
    rest, held = hold_out(train, seed)
    found = fit(x[rest], y[rest], settings).predict(x[held]) == y[held]
    accuracies = found.double().mean(1).numpy()
    best = int(accuracies.argmax())
    asked = (torch.from_numpy(test.values).double() - mean) / std
    right = fit(x, y, settings[best : best + 1]).predict(asked)[0].numpy() == test.labels
    return Probe(
        settings=tuple(settings), held_out=accuracies, best=best, accuracy=float(right.mean())
    )


def fit_lbfgs(
    x: Tensor,
    y: Tensor,
    classes: int,
    decays: Sequence[float],
    report: Callable[[int], None] = lambda done: None,
) -> Heads:
    """Minimise each decay's loss, starting where the last one ended."""
    weight = x.new_zeros(x.shape[1], classes)
    bias = x.new_zeros(classes)
    found: list[tuple[Tensor, Tensor]] = []
    for decay in decays:
        _minimize(x, y, weight, bias, decay)
        found.append((weight.clone(), bias.clone()))
        report(len(found))
    weights, biases = zip(*found, strict=True)
    return Heads(torch.stack(weights), torch.stack(biases))


def _minimize(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, decay: float) -> None:
    """Bring weights and biases to the minimum of one loss, in place."""
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=_STEPS,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        logits = torch.addmm(bias, x, weight)
        value = F.cross_entropy(logits, y) + decay / 2 * weight.square().sum()
        slope = _slope(logits, y)
        weight.grad = torch.addmm(weight, x.T, slope, beta=decay)
        bias.grad = slope.sum(0)
        return value

    optimizer.step(loss)
    weight.grad = bias.grad = None


def _slope(logits: Tensor, y: Tensor) -> Tensor:
    """Differentiate the mean cross-entropy by the logits (n, …, classes)."""
    slope = logits.softmax(-1)
    slope[torch.arange(len(y)), ..., y] -= 1
    return slope.div_(len(y))


def fit_sgd(
    x: Tensor,
    y: Tensor,
    classes: int,
    rates: Sequence[float],
    *,
    epochs: int = EPOCHS,
    batch: int = BATCH,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> Heads:
    """Train one head a learning rate on the same batches, which `seed` draws, in one pass."""
    x, count = x.float(), len(rates)
    weight = x.new_zeros(x.shape[1], count * classes)
    bias = x.new_zeros(count * classes)
    speeds = torch.zeros_like(weight), torch.zeros_like(bias)
    scale = torch.tensor(rates).repeat_interleave(classes)
    generator = np.random.default_rng(seed)
    total, step = epochs * -(-len(x) // batch), 0
    for epoch in range(epochs):
        for rows in torch.from_numpy(generator.permutation(len(x))).split(batch):
            logits = torch.addmm(bias, x[rows], weight).view(len(rows), count, classes)
            slope = _slope(logits, y[rows]).flatten(1)
            lr = scale * float(np.cos(np.pi / 2 * step / total) ** 2)
            slopes = x[rows].T @ slope, slope.sum(0)
            for value, speed, change in zip((weight, bias), speeds, slopes, strict=True):
                speed.mul_(MOMENTUM).add_(change)
                value.addcmul_(speed, lr, value=-1)
            step += 1
        report(epoch + 1)
    return Heads(weight.view(-1, count, classes).transpose(0, 1), bias.view(count, classes))
