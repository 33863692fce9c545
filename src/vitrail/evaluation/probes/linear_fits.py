"""Linear classifiers fitted to features: by L-BFGS one after the other, by SGD side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.evaluation.features.mapped_rows import StandardizedRows, split_rows

Rows = Tensor | StandardizedRows
"""Features (n, width) that are read a block at a time."""
_STEPS = 1000  # of L-BFGS, at most
_TOLERANCE = 1e-6  # of the gradient's largest entry
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Heads:
    """Linear classifiers side by side."""

    weight: Tensor
    """(heads, width, classes)."""
    bias: Tensor
    """(heads, classes)."""

    def predict(self, x: Rows) -> Tensor:
        """Predict the class of each image (n, width) with each head: (heads, n)."""
        found = []
        for block in split_rows(len(x), sum(self.weight.shape[1:])):
            rows, pairs = x[block].to(self.weight.dtype), zip(self.weight, self.bias, strict=True)
            found.append(torch.stack([(rows @ weight + bias).argmax(1) for weight, bias in pairs]))
        return torch.cat(found, dim=1)


def fit_lbfgs(
    x: Rows,
    y: Tensor,
    classes: int,
    decays: Sequence[float],
    report: Callable[[int], None] = lambda done: None,
) -> Heads:
    """Minimize each decay's loss, starting where the last one ended."""
    weight = x[:0].new_zeros(x.shape[1], classes)
    bias = weight.new_zeros(classes)
    found: list[tuple[Tensor, Tensor]] = []
    for decay in decays:
        _minimize(x, y, weight, bias, decay)
        found.append((weight.clone(), bias.clone()))
        report(len(found))
    weights, biases = zip(*found, strict=True)
    return Heads(torch.stack(weights), torch.stack(biases))


def _minimize(x: Rows, y: Tensor, weight: Tensor, bias: Tensor, decay: float) -> None:
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
        value = decay / 2 * weight.square().sum()
        weight.grad, bias.grad = decay * weight, torch.zeros_like(bias)
        for block in split_rows(len(x), x.shape[1] + 2 * len(bias)):
            rows, labels = x[block], y[block]
            logits = torch.addmm(bias, rows, weight)
            value += F.cross_entropy(logits, labels, reduction="sum") / len(y)
            gradient = _gradient(logits, labels, len(y))
            weight.grad.addmm_(rows.T, gradient)
            bias.grad += gradient.sum(0)
        return value

    optimizer.step(loss)
    weight.grad = bias.grad = None


def _gradient(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """Differentiate the mean cross-entropy of `count` images by the logits (n, …, classes)."""
    gradient = logits.softmax(-1)
    gradient[torch.arange(len(y)), ..., y] -= 1
    return gradient.div_(count)


def fit_sgd(
    x: Rows,
    y: Tensor,
    classes: int,
    rates: Sequence[float],
    *,
    epochs: int,
    batch: int,
    seed: int,
    report: Callable[[int], None] = lambda done: None,
) -> Heads:
    """Train one head per learning rate on the same batches, which `seed` shuffles, in one pass."""
    count = len(rates)
    weight = torch.zeros(x.shape[1], count * classes)
    bias = torch.zeros(count * classes)
    velocities = torch.zeros_like(weight), torch.zeros_like(bias)
    scale = torch.tensor(rates).repeat_interleave(classes)
    generator = np.random.default_rng(seed)
    total, step = epochs * -(-len(x) // batch), 0
    for epoch in range(epochs):
        for rows in torch.from_numpy(generator.permutation(len(x))).split(batch):
            images = x[rows].float()
            logits = torch.addmm(bias, images, weight).view(len(rows), count, classes)
            gradient = _gradient(logits, y[rows], len(rows)).flatten(1)
            lr = scale * float(np.cos(np.pi / 2 * step / total) ** 2)
            gradients = images.T @ gradient, gradient.sum(0)
            for value, velocity, change in zip((weight, bias), velocities, gradients, strict=True):
                velocity.mul_(_MOMENTUM).add_(change)
                value.addcmul_(velocity, lr, value=-1)
            step += 1
        report(epoch + 1)
    return Heads(weight.view(-1, count, classes).transpose(0, 1), bias.view(count, classes))
