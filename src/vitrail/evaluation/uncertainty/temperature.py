"""Temperature scaling ("On Calibration of Modern Neural Networks", arXiv 1706.04599)."""

from __future__ import annotations

import math

from torch import Tensor

_RANGE = (1e-3, 1e3)
_HALVINGS = 60


def is_infinite(temperature: float) -> bool:
    """Tell whether a fitted temperature is at the end of the range: no finite one is best."""
    return temperature > 0.99 * _RANGE[1]


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Find the temperature whose softmax(logits / T) has the least cross-entropy.

    The loss is convex in 1 / T: its slope, the mean of the expected logit minus that of the label,
    is brought to 0 by bisection. Where all of n predictions are correct, no temperature is too low
    for the labels; so each may then be any class with probability 1 / (n + 2), as by Laplace's rule
    of succession.
    """
    logits = logits.double()
    doubt = 0.0 if (logits.argmax(1) != labels).any() else 1 / (len(labels) + 2)
    logits = logits - logits.gather(1, labels[:, None])
    target = doubt * logits.mean(1)
    low, high = (math.log(each) for each in _RANGE)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        slope = (((logits / math.exp(middle)).softmax(1) * logits).sum(1) - target).mean()
        low, high = (middle, high) if slope > 0 else (low, middle)
    return math.exp((low + high) / 2)
