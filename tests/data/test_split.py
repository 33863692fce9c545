"""split.py: which split is meant, and what a held-out part is, against brute force."""

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.split import (
    choose_split,
    members,
    round_half_up,
    spell,
    split_dataset,
    split_indices,
)


class Named(ImageDataset):
    """Images that are nothing but their names."""

    def __init__(self, names: Sequence[str], labels: np.ndarray, classes: int) -> None:
        super().__init__("set", [f"class {number}" for number in range(classes)], labels)
        self.names = names

    def read(self, index: int) -> bytes:
        return self.names[index].encode()

    def where(self, index: int) -> str:
        return self.names[index]


def names(dataset: ImageDataset) -> list[str]:
    return [dataset.where(index) for index in range(len(dataset))]


LABELS = st.lists(st.integers(0, 4), max_size=60).map(lambda labels: np.array(labels, np.int64))
FRACTIONS = st.sampled_from([0.01, 0.1, 0.29, 0.5, 0.9, 0.999])


@settings(max_examples=60)
@given(LABELS, FRACTIONS, st.integers(-5, 2**70))
def test_split_agrees_with_brute_force(labels: np.ndarray, fraction: float, seed: int) -> None:
    dataset = Named([f"{number}.jpg" for number in range(len(labels))], labels, 5)
    train, held_out = split_dataset(dataset, fraction, seed)
    key = (seed % 2**64).to_bytes(8, "little")

    def rank(name: str) -> int:
        return int.from_bytes(
            hashlib.blake2b(name.encode(), digest_size=8, key=key).digest(), "little"
        )

    expected = []
    for label in range(5):
        group = [name for name, own in zip(dataset.names, labels, strict=True) if own == label]
        count = math.floor(Fraction(str(fraction)) * len(group) + Fraction(1, 2))
        count = 0 if len(group) < 2 else min(max(count, 1), len(group) - 1)
        expected += sorted(group, key=rank)[:count]
    assert sorted(names(held_out)) == sorted(expected)
    assert [name for name in dataset.names if name not in expected] == names(train)
    assert names(held_out) == [name for name in dataset.names if name in expected]
    assert held_out.name == "set (held out)"


@settings(max_examples=60)
@given(LABELS, FRACTIONS, st.integers(0, 4), st.integers(0, 60))
def test_one_image_more_moves_at_most_one(
    labels: np.ndarray, fraction: float, label: int, place: int
) -> None:
    before = Named([f"{number}.jpg" for number in range(len(labels))], labels, 5)
    place = min(place, len(labels))
    more = [*before.names[:place], "new.jpg", *before.names[place:]]
    after = Named(more, np.insert(labels, place, label), 5)
    was, now = (set(names(split_dataset(dataset, fraction, 7)[1])) for dataset in (before, after))
    assert len((was ^ now) - {"new.jpg"}) <= 1


def test_exact_counts_and_seeds() -> None:
    labels = np.repeat(np.arange(4), [1, 2, 25, 1000])
    dataset = Named([str(number) for number in range(len(labels))], labels, 4)
    train, held_out = split_dataset(dataset, 0.1, 0)
    assert np.bincount(held_out.labels, minlength=4).tolist() == [0, 1, 3, 100]
    assert np.bincount(train.labels).tolist() == [1, 1, 22, 900]
    assert names(split_dataset(dataset, 0.1, 0)[1]) == names(held_out)
    assert names(split_dataset(dataset, 0.1, 1)[1]) != names(held_out)


def test_several_labels_are_held_out_at_random() -> None:
    labels = np.zeros((200, 3), np.uint8)
    train, held_out = split_dataset(Named([str(n) for n in range(200)], labels, 3), 0.1, 0)
    assert (len(train), len(held_out)) == (180, 20)
    assert held_out.labels.shape == (20, 3)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_part_is_between_nothing_and_all(fraction: float) -> None:
    with pytest.raises(InputError, match=r"^the held-out fraction must be in \(0, 1\), got"):
        split_dataset(Named([], np.zeros(0, np.int64), 2), fraction, 0)


def test_hold_out_is_split_at_a_tenth() -> None:
    dataset = Named([str(n) for n in range(90)], np.repeat(np.arange(3), 30), 3)
    train, held_out = split_dataset(dataset, 0.1, 5)
    assert [str(index) for index in split_indices(dataset, "train", 5)] == names(train)
    assert [str(index) for index in split_indices(dataset, "val", 5)] == names(held_out)
    assert split_indices(dataset, "all", 5).tolist() == list(range(90))
    with pytest.raises(InputError, match=r"^set has no split 'test'; it has train, val, all$"):
        split_indices(dataset, "test", 5)


@pytest.mark.parametrize(
    ("asked", "there", "chosen"),
    [
        ("train", ("train", "val", "test"), "train"),
        ("val", ("train", "val", "test"), "val"),
        ("val", ("train", "test"), "test"),
        ("test", ("train", "test"), "test"),
        ("all", ("train",), "all"),
    ],
)
def test_choose(asked: str, there: tuple[str, ...], chosen: str) -> None:
    assert choose_split(asked, there, "set") == chosen


def test_choose_names_the_splits_there_are() -> None:
    with pytest.raises(InputError) as caught:
        choose_split("tests", ("train", "test"), "Pets")
    assert str(caught.value) == (
        "Pets has no split 'tests'; it has train, test, all; did you mean 'test'?"
    )
    with pytest.raises(InputError, match=r"^Pets has no split 'test'; it has train, val, all"):
        choose_split("test", ("train", "val"), "Pets")


def test_spellings() -> None:
    words = ["training", "Train", "valid", "validation", "DEV", "testing", "other", "ALL"]
    assert [*map(spell, words)] == ["train", "train", "val", "val", "val", "test", "other", "ALL"]


@given(LABELS)
def test_members(labels: np.ndarray) -> None:
    groups = members(labels, 5)
    assert [group.tolist() for group in groups] == [
        [place for place, label in enumerate(labels) if label == number] for number in range(5)
    ]


@pytest.mark.parametrize(
    ("fraction", "total", "count"), [(0.1, 5, 1), (0.1, 4, 0), (0.29, 50, 15), (1.0, 7, 7)]
)
def test_round_half_up(fraction: float, total: int, count: int) -> None:
    assert round_half_up(fraction, total) == count
