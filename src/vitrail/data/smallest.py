"""Choose the images of each class with the smallest keys, block by block.

Keys are random, so where the last chosen one lies is known beforehand but for a narrow band: only
keys within it are collected and sorted. So 14 million images need a mask and a few blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from vitrail.data.datasets.mapped import release_pages

Keys = Callable[[int, int], np.ndarray]
"""Gives the keys (uint64) of the images from one index up to another."""

_BLOCK = 1 << 20  # images that are looked at together
_SPREAD = 6.0  # standard deviations that the band reaches to either side


def smallest_keys(keys: Keys, labels: np.ndarray | int, wanted: np.ndarray) -> np.ndarray:
    """Mark as many images of each class as are `wanted`, those with the smallest keys (bool, N).

    Of equal keys the first image's is the smaller. `labels` are class indices (N), or a number of
    images that are of one class.
    """
    count = labels if isinstance(labels, int) else len(labels)
    if not count:
        return np.zeros(0, bool)
    sizes = np.zeros(len(wanted), np.int64)
    for _, _, owners in _blocks(labels):
        sizes += np.bincount(owners, minlength=len(wanted))
    low, high = _bands(wanted, sizes)
    chosen = np.zeros(count, bool)
    sure = np.zeros(len(wanted), np.int64)
    band: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for start, stop, owners in _blocks(labels):
        here = keys(start, stop)
        below = here < low[owners]
        chosen[start:stop] = below
        sure += np.bincount(owners[below], minlength=len(wanted))
        within = np.flatnonzero(~below & (here <= high[owners]))
        band.append((within + start, owners[within], here[within]))
    indices, classes, values = map(np.concatenate, zip(*band, strict=True))
    missing = wanted - sure
    unlucky = (missing < 0) | (missing > np.bincount(classes, minlength=len(wanted)))
    if unlucky.any():  # its keys are not random: look at all of them
        found = _of_some(keys, labels, unlucky)
        rest = ~unlucky[classes]
        indices, classes, values = (
            np.concatenate([old[rest], new])
            for old, new in zip((indices, classes, values), found, strict=True)
        )
        chosen[found[0]] = False
        missing = np.where(unlucky, wanted, missing)
    order = np.lexsort((indices, values, classes))
    firsts = np.cumsum(np.bincount(classes, minlength=len(wanted)))
    firsts = np.concatenate([[0], firsts[:-1]])
    ranks = np.arange(len(order)) - firsts[classes[order]]
    chosen[indices[order[ranks < missing[classes[order]]]]] = True
    return chosen


def grouped_places(labels: np.ndarray, counts: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Say where each image comes if the images are sorted by class, in blocks with their starts.

    Within a class the images keep their order; `counts` has the images of each class.
    """
    next_place = np.cumsum(counts) - counts
    for start, _, owners in _blocks(labels):
        order = np.argsort(owners, kind="stable")
        here = np.bincount(owners, minlength=len(counts))
        places = np.empty(len(owners), np.int64)
        sorted_owners = owners[order]
        firsts = np.cumsum(here) - here
        places[order] = np.arange(len(order)) - firsts[sorted_owners] + next_place[sorted_owners]
        next_place = next_place + here
        yield start, places


def _bands(wanted: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the keys between which each class's last chosen one lies, almost surely."""
    margin = _SPREAD * np.sqrt(np.maximum(wanted, 1)) + _SPREAD
    known = np.maximum(sizes, 1)
    low, high = (wanted - margin) / known, (wanted + margin) / known
    return _as_key(low), _as_key(high)


def _as_key(share: np.ndarray) -> np.ndarray:
    below = np.clip(share, 0, 1 - 2.0**-53) * 2.0**64
    return np.where(share >= 1, np.uint64(2**64 - 1), below.astype(np.uint64))


def _of_some(
    keys: Keys, labels: np.ndarray | int, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collect all images of some classes: indices, classes and keys."""
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for start, stop, owners in _blocks(labels):
        within = np.flatnonzero(classes[owners])
        found.append((within + start, owners[within], keys(start, stop)[within]))
    indices, owners, values = map(np.concatenate, zip(*found, strict=True))
    return indices, owners, values


def _blocks(labels: np.ndarray | int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield blocks of images, from one index to another, with their classes."""
    count = labels if isinstance(labels, int) else len(labels)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        if isinstance(labels, int):
            yield start, stop, np.zeros(stop - start, np.int64)
        else:
            yield start, stop, np.array(labels[start:stop])
            release_pages(labels)
