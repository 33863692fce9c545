"""The digits in the package against scikit-learn's, and the rule of their split."""

from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from vitrail.config import InputError
from vitrail.data.dataset import FixedSizeDataset
from vitrail.data.datasets.builtin.digits import open_digits


def pixels(split: str) -> np.ndarray:
    dataset = open_digits(split)
    assert isinstance(dataset, FixedSizeDataset)
    return dataset.take(np.arange(len(dataset)))


def test_all_digits_are_those_of_scikit_learn() -> None:
    theirs: Any = load_digits()
    dataset = open_digits("all")
    assert dataset.classes == tuple("0123456789")
    np.testing.assert_array_equal(dataset.labels, theirs.target)
    wanted = np.floor(theirs.images * 255 / 16 + 0.5).astype(np.uint8)[..., None]
    np.testing.assert_array_equal(pixels("all"), wanted)
    assert dataset.where(3) == "digits[3]"


def test_split_is_the_last_fifth_of_each_class() -> None:
    every, train, test = (open_digits(split) for split in ("all", "train", "test"))
    for number in range(10):
        members = np.flatnonzero(every.labels == number)
        first = len(members) - len(members) // 5
        for dataset, wanted in ((train, members[:first]), (test, members[first:])):
            (found,) = np.nonzero(dataset.labels == number)
            names = [dataset.where(int(index)) for index in found]
            assert names == [f"digits[{index}]" for index in wanted]
    assert (len(train), len(test)) == (1442, 355)
    np.testing.assert_array_equal(pixels("val"), pixels("test"))
    np.testing.assert_array_equal(test.read(0), every.read(int(test.where(0)[7:-1])))


def test_unknown_split() -> None:
    with pytest.raises(InputError, match="digits has no split 'tset'; it has train, test, all"):
        open_digits("tset")


def test_digits_can_be_learned() -> None:
    """Tell images and labels that do not belong together."""
    train, test = open_digits("train"), open_digits("test")
    model = LogisticRegression(max_iter=200, C=0.1)
    model.fit(pixels("train").reshape(len(train), -1) / 255, train.labels)
    assert model.score(pixels("test").reshape(len(test), -1) / 255, test.labels) > 0.85


def test_file_is_small() -> None:
    assert len(files("vitrail.data.datasets.builtin").joinpath("digits.gz").read_bytes()) < 36_000
