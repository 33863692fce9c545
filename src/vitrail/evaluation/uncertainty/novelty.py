"""Images unlike those that a model was trained on, by the distance of their features.

The distance is the cosine distance from the nearest class's mean. It needs a vector per class and
few images; on photos of classes that were held out, it separates as well as Mahalanobis distances
and better than the nearest neighbors (docs/uncertainty.md).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FLAGGED = 0.95
"""OOD score from which on an image is said to be unlike the training images: one in twenty of those
that are like them."""

_ROWS = 4096  # that are read at a time, perhaps from a mapped file


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Average the features (n, width) of each class to length 1: (classes, width).

    A class without images has a mean of zeros, from which everything is at distance 1.
    """
    sums = features.new_zeros(classes, features.shape[1])
    for rows, own in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
        sums.index_add_(0, own, rows)
    return F.normalize(sums, dim=1)


def feature_distance(features: Tensor, means: Tensor) -> Tensor:
    """Compute the cosine distance (n) of features (n, width) from the nearest class's mean."""
    blocks = features.split(_ROWS)
    return torch.cat([1 - (F.normalize(rows, dim=1) @ means.T).amax(1) for rows in blocks])


def ood_score(distances: Tensor, held_out: Tensor) -> Tensor:
    """Compute the fraction of held-out images that are nearer than each image, in [0, 1).

    An image from where the held-out ones came scores `s` or more with a probability of at most
    1 - s (a conformal p-value).
    """
    ranked = held_out.double().sort().values
    nearer = torch.searchsorted(ranked, distances.double())
    return nearer / (len(ranked) + 1)
