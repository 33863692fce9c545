"""Outliers: images far from all others of a dataset, by their features."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

NEIGHBORS = 5
FAR = 3.5
"""Deviations above the median from which on an image is an outlier."""
_AT_ONCE = 1024


def neighbor_distances(features: np.ndarray, neighbors: int = NEIGHBORS) -> np.ndarray:
    """Compute the mean cosine distance (n) of each image from its nearest others."""
    x = F.normalize(torch.from_numpy(features).float(), dim=1)
    count = min(neighbors, len(x) - 1)
    if count < 1:
        return np.zeros(len(x))
    found = []
    for start in range(0, len(x), _AT_ONCE):
        cosines = x[start : start + _AT_ONCE] @ x.T
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -2  # not itself
        found.append(1 - cosines.topk(count, 1).values.mean(1))
    return torch.cat(found).double().numpy()


def find_outliers(distances: np.ndarray) -> np.ndarray:
    """Find the images whose distance is far above the median, the farthest first.

    Far is `FAR` times the median absolute deviation, scaled so that it is a normal's std.
    """
    middle = np.median(distances)
    spread = 1.4826 * np.median(np.abs(distances - middle))
    rows = np.flatnonzero(distances > middle + FAR * spread) if spread > 0 else np.empty(0, int)
    return rows[np.argsort(-distances[rows], kind="stable")]
