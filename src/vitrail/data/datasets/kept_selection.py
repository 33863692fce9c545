"""Choices among the images of large datasets: made once, then mapped by every process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vitrail.data.dataset import ImageDataset, Selection, select
from vitrail.data.datasets.mapped import is_mapped, keep_arrays
from vitrail.data.datasets.sparse_labels import label_arrays, labels_of

Arrays = dict[str, np.ndarray]


def keep_choice(dataset: ImageDataset, what: object, choose: Callable[[], Arrays]) -> Arrays:
    """Choose among a dataset's images; if it is mapped itself, once for all processes and runs.

    `what` says all that the choice depends on, beside the names and labels.
    """
    if not is_mapped(*label_arrays(dataset.labels).values()):
        return choose()
    return keep_arrays(repr(("choice", what, dataset.identity())), choose)


def keep_selection(
    dataset: ImageDataset, what: object, choose: Callable[[], np.ndarray], name: str | None = None
) -> ImageDataset:
    """Select the images whose indices `choose` returns."""
    if not is_mapped(*label_arrays(dataset.labels).values()):
        return select(dataset, choose(), name)

    def arrays() -> Arrays:
        indices = np.asarray(choose(), np.int64)
        return {"indices": indices, **label_arrays(dataset.labels.take(indices, axis=0))}

    found = keep_choice(dataset, what, arrays)
    return Selection(dataset, found["indices"], name, labels_of(found, len(dataset.classes)))
