"""The part of the training images that chooses settings, so that the test images do not."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.evaluation.features.extract import Features
from vitrail.evaluation.probes.fewshot import permute
from vitrail.text import quoted

_PART = 5  # one of so many is held out


def hold_out(train: Features, seed: int) -> tuple[Tensor, Tensor]:
    """Split images' numbers into the rest and a fifth of each class, at least one of both."""
    orders = permute(train.labels, len(train.classes), seed)
    if lacking := [train.classes[number] for number, each in enumerate(orders) if len(each) < 2]:
        raise InputError(
            f"class {quoted(lacking)} of {train.name} has fewer than 2 usable images: one to "
            "learn from and one to choose by"
        )
    counts = [max(1, len(order) // _PART) for order in orders]
    held = np.concatenate([each[:count] for each, count in zip(orders, counts, strict=True)])
    rest = np.concatenate([each[count:] for each, count in zip(orders, counts, strict=True)])
    return torch.from_numpy(np.sort(rest)), torch.from_numpy(np.sort(held))
