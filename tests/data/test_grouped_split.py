"""Whole groups are held out and dealt to folds, by rules that are spelled out here."""

import hashlib
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.config import InputError
from vitrail.data.grouped_split import assign_group_folds, hold_out_groups, torn_groups

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=2, max_size=120)
"""Classes and groups of images."""


@given(ROWS, st.sampled_from([0.1, 0.2, 0.5]))
def test_no_group_is_torn_apart(rows: list[tuple[int, int]], fraction: float) -> None:
    labels, groups = np.array([row[0] for row in rows]), np.array([f"g{row[1]}" for row in rows])
    if len(set(groups.tolist())) == 1:
        with pytest.raises(InputError, match="all images are of one group"):
            hold_out_groups(labels, groups, fraction)
        return
    chosen = hold_out_groups(labels, groups, fraction)
    assert torn_groups(groups[chosen], groups[~chosen]) == []
    assert 0 < chosen.sum() < len(rows)


def test_each_class_gives_its_fraction() -> None:
    """Forty groups of five, each of one class of four: a fifth of each class is held out."""
    labels = np.repeat(np.arange(4), 50)
    groups = np.array([f"g{number // 5}" for number in range(200)])
    chosen = hold_out_groups(labels, groups, 0.2)
    assert np.bincount(labels[chosen]).tolist() == [10, 10, 10, 10]


def place_greedily(labels: np.ndarray, folds: int, groups: np.ndarray, seed: int) -> list[int]:
    """Deal groups to folds by computing the whole cost each time."""
    names, classes = sorted(set(groups.tolist())), labels.max() + 1
    counts = np.array([np.bincount(labels[groups == name], minlength=classes) for name in names])
    shares = counts / np.maximum(counts.sum(0), 1)
    order = np.random.default_rng(seed).permutation(len(names))
    order = sorted(order, key=lambda number: -counts[number].max())
    filled, found = np.zeros((folds, classes)), {}
    for number in order:
        costs: list[tuple[float, float]] = []
        for fold in range(folds):
            there = filled.copy()
            there[fold] += shares[number]
            # Rounded, as folds that are equally full must cost the same to the last bit.
            spread, full = there.std(0).sum(), filled[fold].sum()
            costs.append((round(float(spread), 9), round(float(full), 9)))
        best = costs.index(min(costs))
        filled[best] += shares[number]
        found[names[number]] = best
    return [found[name] for name in groups.tolist()]


@settings(max_examples=50)
@given(ROWS, st.integers(2, 4), st.integers(0, 9))
def test_folds_are_those_of_the_whole_cost(
    rows: list[tuple[int, int]], folds: int, seed: int
) -> None:
    labels, groups = np.array([row[0] for row in rows]), np.array([f"g{row[1]}" for row in rows])
    rng = np.random.default_rng(seed)
    if len(set(groups.tolist())) < folds:
        with pytest.raises(InputError, match=f"--folds {folds}: there are only "):
            assign_group_folds(labels, 4, folds, groups, rng)
        return
    found = assign_group_folds(labels, 4, folds, groups, rng)
    assert found.tolist() == place_greedily(labels, folds, groups, seed)


def hold_out_greedily(
    labels: np.ndarray, groups: np.ndarray, fraction: float, order: list[str]
) -> np.ndarray:
    """Take groups in their order as exact arithmetic over all classes has it."""
    wanted = [Fraction(fraction) * int((labels == label).sum()) for label in set(labels.tolist())]
    mine = [labels == label for label in set(labels.tolist())]
    held = np.zeros(len(labels), bool)

    def miss(chosen: np.ndarray) -> Fraction | int:
        counts = [int((chosen & own).sum()) for own in mine]
        pairs = zip(counts, wanted, strict=True)
        return sum(((count - want) / want) ** 2 for count, want in pairs)

    for name in order:
        if miss(held | (groups == name)) < miss(held):
            held |= groups == name
    return held


@settings(max_examples=50)
@given(ROWS)
def test_groups_held_out_are_those_of_the_whole_cost(rows: list[tuple[int, int]]) -> None:
    labels, groups = np.array([row[0] for row in rows]), np.array([f"g{row[1]}" for row in rows])
    order = sorted(set(groups), key=lambda n: hashlib.blake2b(n.encode(), digest_size=8).digest())
    expected = hold_out_greedily(labels, groups, 0.5, order)
    if 0 < expected.sum() < len(rows):  # otherwise one is taken, or given back
        assert (hold_out_groups(labels, groups, 0.5) == expected).all()


def test_many_groups_of_many_classes_take_little_memory() -> None:
    """A table of all groups and classes would have 80 MB."""
    labels = np.arange(20_000) % 1000
    groups = np.array([f"g{number // 2}" for number in range(20_000)])
    tracemalloc.start()
    hold_out_groups(labels, groups, 0.1)
    found = assign_group_folds(labels, 1000, 5, groups, np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15e6
    assert np.ptp(np.bincount(found * 1000 + labels)) == 0
