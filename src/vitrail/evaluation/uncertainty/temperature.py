"""Temperature scaling ("On Calibration of Modern Neural Networks", arXiv 1706.04599)."""

from __future__ import annotations

import math

from torch import Tensor

_RANGE = (1e-3, 1e3)  # where no temperature is best (all correct, or none), its end is taken
_HALVINGS = 60


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Find the temperature whose softmax(logits / T) has the least cross-entropy.

    The loss is convex in 1 / T: its slope, the mean of the expected logit minus that of the label,
    is brought to 0 by bisection.
    """
    logits = logits.double()
    logits = logits - logits.gather(1, labels[:, None])
    low, high = (math.log(each) for each in _RANGE)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        slope = ((logits / math.exp(middle)).softmax(1) * logits).sum(1).mean()
        low, high = (middle, high) if slope > 0 else (low, middle)
    return math.exp((low + high) / 2)
