"""Several labels, held sparse: the dense array's rows, for any selection."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.data.sets import HALF, Listed, encode, photo
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import select
from vitrail.data.datasets.sparse_labels import SparseLabels, relabel, sparse

SHAPE = st.tuples(st.integers(0, 6), st.integers(1, 4))
DENSE = arrays(np.uint8, SHAPE, elements=st.integers(0, 1))


@given(DENSE, st.data())
def test_rows_are_those_of_the_dense_array(dense: np.ndarray, data: st.DataObject) -> None:
    labels = sparse(dense)
    assert isinstance(labels, SparseLabels)
    assert (len(labels), labels.shape, labels.ndim) == (len(dense), dense.shape, 2)
    index = st.integers(-len(dense), max(len(dense) - 1, 0))
    chosen = np.array(data.draw(st.lists(index, max_size=8 if len(dense) else 0)), np.int64)
    odd = np.arange(len(dense)) % 2 > 0
    whats: list[Any] = [chosen, slice(None), slice(1, 4), odd, chosen.tolist(), odd.tolist()]
    for what in whats:
        assert np.array_equal(labels[what], dense[what])
        assert np.array_equal(labels.take(what)[:], dense[what])
    for one in chosen:
        assert np.array_equal(labels[one], dense[one])
        assert labels[int(one)].dtype == np.uint8
    assert np.array_equal(np.asarray(labels), dense)
    assert labels.count_images().tolist() == dense.sum(0).tolist()
    rows = sparse([np.flatnonzero(row).tolist() for row in dense], dense.shape[1])
    assert np.array_equal(rows[:], dense)
    changes = {n: data.draw(st.integers(0, dense.shape[1] - 1)) for n in set(chosen[chosen >= 0])}
    changed = dense.copy()
    for n, label in changes.items():
        changed[n] = np.eye(dense.shape[1], dtype=np.uint8)[label]
    assert np.array_equal(relabel(labels, changes)[:], changed)


def test_a_dataset_of_many_classes_is_small_and_its_batches_are_dense() -> None:
    """21,000 classes of a million images would be 21 GB."""
    count, classes = 1_000_000, 21_000
    labels = sparse(([n % classes, 7] for n in range(count)), classes)
    assert isinstance(labels, SparseLabels)
    assert labels.classes.nbytes + labels.ends.nbytes == 16 * count
    assert np.flatnonzero(labels[999_999]).tolist() == [7, 999_999 % classes]
    with pytest.raises(IndexError):
        labels[count]
    dataset = Listed(
        [encode(photo(n)) for n in range(3)], np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.uint8)
    )
    part = select(dataset, np.array([2, 0]))
    assert part.multilabel
    assert isinstance(part.labels, SparseLabels)
    assert part.class_counts().tolist() == [1, 1, 1]
    batch = EvalBatches(part, HALF, batch=2)[0]
    assert batch.labels.tolist() == [[0, 1, 0], [1, 0, 1]]
