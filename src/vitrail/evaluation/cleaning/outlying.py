"""Outliers: images far from all others of a dataset, by their features."""

from __future__ import annotations

import numpy as np
import torch

from vitrail.evaluation.features.neighbors import nearest

NEIGHBORS = 5
FAR = 3.5
"""Deviations above the median from which on an image is an outlier."""


def neighbor_distances(features: np.ndarray, neighbors: int = NEIGHBORS) -> np.ndarray:
    """Compute the mean cosine distance (n) of each image from its nearest others."""
    x = torch.from_numpy(features)
    count = min(neighbors, len(x) - 1)
    if count < 1:
        return np.zeros(len(x))
    cosines, indices = nearest(x, x, count + 1)
    itself = indices == torch.arange(len(x))[:, None]
    itself[:, -1] |= ~itself.any(1)  # where more copies are as near as the image itself
    others = cosines[~itself].view(len(x), count)
    return (1 - others.mean(1)).double().numpy()


def find_outliers(distances: np.ndarray) -> np.ndarray:
    """Find the images whose distance is far above the median, the farthest first.

    Far is `FAR` times the median absolute deviation, scaled so that it is a normal's std.
    """
    middle = np.median(distances)
    spread = 1.4826 * np.median(np.abs(distances - middle))
    rows = np.flatnonzero(distances > middle + FAR * spread) if spread > 0 else np.empty(0, int)
    return rows[np.argsort(-distances[rows], kind="stable")]
