"""The smallest keys of each class, and the places of sorted images, against brute force."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data import smallest
from vitrail.data.smallest import grouped_places, smallest_keys


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smallest, "_BLOCK", 7)
        yield


def brute_force(keys: np.ndarray, labels: np.ndarray, wanted: list[int]) -> list[int]:
    chosen = []
    for label, count in enumerate(wanted):
        own = [n for n in range(len(keys)) if labels[n] == label]
        chosen += sorted(own, key=lambda n: (keys[n], n))[:count]
    return sorted(chosen)


KEYS = {
    "random": st.integers(0, 2**64 - 1),
    "equal": st.sampled_from([5, 2**64 - 1]),
    "small": st.integers(0, 9),
    "large": st.integers(2**64 - 9, 2**64 - 1),
}


@pytest.mark.parametrize("kind", KEYS)
@given(st.data())
def test_the_smallest_of_each_class(kind: str, data: st.DataObject) -> None:
    """Also of keys that are not spread evenly, whose band misses the last chosen one."""
    rows = data.draw(st.lists(st.tuples(KEYS[kind], st.integers(0, 2)), max_size=60))
    keys = np.array([key for key, _ in rows], np.uint64)
    labels = np.array([label for _, label in rows], np.int64)
    sizes = np.bincount(labels, minlength=3).tolist()
    wanted = [data.draw(st.integers(0, size)) for size in sizes]
    marked = smallest_keys(lambda start, stop: keys[start:stop], labels, np.array(wanted))
    assert np.flatnonzero(marked).tolist() == brute_force(keys, labels, wanted)


def test_most_keys_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smallest, "_BLOCK", 1 << 14)
    keys = np.random.default_rng(0).integers(0, 2**64, 200_000, np.uint64)
    sorted_, plain = list[int](), np.lexsort
    monkeypatch.setattr(np, "lexsort", lambda rows: sorted_.append(len(rows[0])) or plain(rows))
    marked = smallest_keys(lambda start, stop: keys[start:stop], len(keys), np.array([20_000]))
    assert np.array_equal(np.flatnonzero(marked), np.sort(np.argsort(keys)[:20_000]))
    assert sorted_[0] < 2_000


@given(st.lists(st.integers(0, 3), max_size=40))
def test_places_among_images_sorted_by_class(labels: list[int]) -> None:
    counts = np.bincount(np.array(labels, np.int64), minlength=4)
    places = np.empty(len(labels), np.int64)
    for start, here in grouped_places(np.array(labels, np.int64), counts):
        places[start : start + len(here)] = here
    order = np.argsort(labels, kind="stable")
    assert places[order].tolist() == list(range(len(labels)))
