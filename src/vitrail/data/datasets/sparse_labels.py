"""Several labels per image in little memory: only the classes that an image has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np


class SparseLabels:
    """The labels of N images among K classes, as the rows of a sparse matrix (CSR).

    It stands for an array of 0 / 1 (uint8, N x K): indexing makes rows dense, as a batch needs
    them.
    """

    ndim = 2
    dtype = np.dtype(np.uint8)

    def __init__(self, classes: np.ndarray, ends: np.ndarray, count: int) -> None:
        self.classes = classes
        """The classes of all images, one image after the other (int32)."""
        self.ends = ends
        """Where the classes of each image end (int64, N)."""
        self.shape = (len(ends), count)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, int | np.integer):
            return self[np.array([index])][0]
        part = self.take(index)
        dense = np.zeros(part.shape, np.uint8)
        dense[np.repeat(np.arange(len(part)), part.lengths), part.classes] = 1
        return dense

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.uint8, copy=False)

    @property
    def lengths(self) -> np.ndarray:
        """How many labels each image has."""
        return np.diff(self.ends, prepend=0)

    def take(self, index: Any, axis: int = 0) -> SparseLabels:
        """Select images, in a given order; they stay sparse. The axis is that of images."""
        assert axis == 0
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        chosen = np.asarray(index, None if len(index) else np.int64)  # an empty list has no numbers
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        ends = self.ends[chosen]  # which refuses what is out of range
        chosen = np.where(chosen < 0, chosen + len(self), chosen)
        starts = np.where(chosen > 0, self.ends[chosen - 1], 0)
        lengths = ends - starts
        new = np.cumsum(lengths)
        places = np.repeat(starts - (new - lengths), lengths) + np.arange(lengths.sum())
        return SparseLabels(self.classes[places], new, self.shape[1])

    def count_images(self) -> np.ndarray:
        """Count the images of each class."""
        return np.bincount(self.classes, minlength=self.shape[1])

    def tolist(self) -> list[list[int]]:
        """Return all rows, dense."""
        return self[:].tolist()


def sparse_of(classes: np.ndarray, ends: np.ndarray, count: int) -> np.ndarray:
    """Put labels together from a sparse matrix's arrays; it stands for the dense one."""
    return cast(np.ndarray, SparseLabels(classes, ends, count))


def sparse(labels: np.ndarray | Iterable[Iterable[int]], count: int | None = None) -> np.ndarray:
    """Hold 0 / 1 for each class, or each image's classes of `count`, in little memory."""
    if isinstance(labels, np.ndarray):
        rows, classes = np.nonzero(labels)
        lengths, count = np.bincount(rows, minlength=len(labels)), labels.shape[1]
    else:
        lists = [np.fromiter(row, np.int32) for row in labels]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        classes = np.concatenate([np.empty(0, np.int32), *lists])
    assert count is not None
    return sparse_of(classes.astype(np.int32), np.cumsum(lengths).astype(np.int64), count)


def label_arrays(labels: np.ndarray | SparseLabels) -> dict[str, np.ndarray]:
    """Name the arrays that hold an image dataset's labels, to be kept in files."""
    if isinstance(labels, SparseLabels):
        return {"labels": labels.classes, "label_ends": labels.ends}
    return {"labels": labels}


def labels_of(arrays: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Put the labels of `count` classes together again."""
    labels, ends = arrays["labels"], arrays.get("label_ends")
    return labels if ends is None else sparse_of(labels, ends, count)


def relabel(labels: SparseLabels, changes: Mapping[int, int]) -> SparseLabels:
    """Give some images one label instead of what they have, in a copy."""
    pieces, last = list[np.ndarray](), 0
    lengths, starts = labels.lengths, labels.ends - labels.lengths
    for index, label in sorted(changes.items()):
        pieces += [labels.classes[last : starts[index]], np.array([label], np.int32)]
        last, lengths[index] = int(labels.ends[index]), 1
    joined = np.concatenate([*pieces, labels.classes[last:]])
    return SparseLabels(joined, np.cumsum(lengths), labels.shape[1])
