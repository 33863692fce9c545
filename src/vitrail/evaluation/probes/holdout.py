"""The training images that are held out to choose settings, so that test images do not."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.split import sample_order
from vitrail.evaluation.features.image_features import Features
from vitrail.text import quoted

_FOLDS = 5  # one of them is held out


def hold_out_features(train: Features, seed: int) -> tuple[Tensor, Tensor]:
    """Split the images' positions into the rest and a fifth of each class, at least one of both."""
    orders = sample_order(train.labels, len(train.classes), seed)
    if too_few := [train.classes[number] for number, each in enumerate(orders) if len(each) < 2]:
        raise InputError(
            f"class {quoted(too_few)} of {train.name} has fewer than 2 usable images: one to "
            "learn from and one to choose with; add images, or remove the class"
        )
    counts = [max(1, len(order) // _FOLDS) for order in orders]
    held = np.concatenate([each[:count] for each, count in zip(orders, counts, strict=True)])
    rest = np.concatenate([each[count:] for each, count in zip(orders, counts, strict=True)])
    return torch.from_numpy(np.sort(rest)), torch.from_numpy(np.sort(held))
