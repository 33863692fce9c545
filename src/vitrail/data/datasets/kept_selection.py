"""Choices among the images of large datasets: made once, then mapped by every process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from vitrail.data.dataset import ImageDataset, Selection, select
from vitrail.data.datasets.mapped import Parts, is_mapped, keep_arrays, release_pages
from vitrail.data.datasets.sparse_labels import SparseLabels, label_arrays, labels_of, relabel

_BLOCK = 1 << 20  # images that are looked at together
_NONE: Mapping[int, int] = {}


def keep_selection(
    dataset: ImageDataset, what: object, choose: Callable[[], np.ndarray], name: str | None = None
) -> ImageDataset:
    """Select the images that `choose` marks (bool, N); if the dataset is mapped, once for all runs.

    `what` says all that the choice depends on, beside the names and labels.
    """
    if not is_mapped(*label_arrays(dataset.labels).values()):
        return select(dataset, np.flatnonzero(choose()), name)
    found = keep_marked(dataset, what, lambda: (choose(), _NONE))
    return Selection(dataset, found["indices"], name, labels_of(found, len(dataset.classes)))


def keep_marked(
    dataset: ImageDataset,
    what: object,
    choose: Callable[[], tuple[np.ndarray, Mapping[int, int]]],
) -> dict[str, np.ndarray]:
    """Select the images that `choose` marks, with new labels for some: arrays of both."""

    def make() -> dict[str, np.ndarray | Parts]:
        marked, changes = choose()
        count = int(marked.sum())
        indices = Parts(np.dtype(np.int64), (count,), lambda: _numbers(marked))
        extra = {"relabeled": np.array([len(changes)])}
        labels = dataset.labels
        if isinstance(labels, SparseLabels):
            relabeled = relabel(labels, changes) if changes else labels
            chosen = relabeled.take(np.flatnonzero(marked), axis=0)
            return {"indices": indices, **label_arrays(chosen), **extra}
        parts = Parts(
            labels.dtype, (count, *labels.shape[1:]), lambda: _labels(labels, marked, changes)
        )
        return {"indices": indices, "labels": parts, **extra}

    if is_mapped(*label_arrays(dataset.labels).values()):
        return keep_arrays(repr(("choice", what, dataset.identity())), make)
    return {k: a.whole() if isinstance(a, Parts) else a for k, a in make().items()}


def _numbers(marked: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(marked), _BLOCK):
        yield np.flatnonzero(marked[start : start + _BLOCK]) + start


def _labels(
    labels: np.ndarray, marked: np.ndarray, changes: Mapping[int, int]
) -> Iterator[np.ndarray]:
    changed = np.array(sorted(changes), np.int64)
    for start in range(0, len(marked), _BLOCK):
        here = np.array(labels[start : start + _BLOCK])
        release_pages(labels)
        first, last = np.searchsorted(changed, (start, start + len(here)))
        for index in changed[first:last].tolist():
            here[index - start] = changes[index]
        yield here[marked[start : start + _BLOCK]]
