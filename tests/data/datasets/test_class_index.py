"""Class numbers of labels: names, numbers, lists of them, and what is no label."""

from typing import Any

import numpy as np
import pytest

from tests.shelf import refusal
from vitrail.data.datasets.class_index import ClassIndex, name_classes, number_labels


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([], []),
        ([2, 0, 2], ["0", "1", "2"]),
        ([None, -1, 1], ["0", "1"]),
        (["b", "a", "é", "B", "b"], ["B", "a", "b", "é"]),
        ([["b"], [], ["a", "b"]], ["a", "b"]),
        ([[3], 1, []], ["0", "1", "2", "3"]),
    ],
)
def test_classes_of_labels(labels: list[Any], classes: list[str]) -> None:
    assert name_classes(iter(labels), "x") == classes


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([1, "a"], "x has both numbers and words (such as 'a') for labels"),
        ([0.5], "x: 0.5 is not a class; expected numbers from 0, or names"),
        ([10**6], "x: 1000000 is not a class"),
    ],
)
def test_labels_that_are_no_classes(labels: list[Any], said: str) -> None:
    assert said in refusal(name_classes, labels, "x")


def test_numbers() -> None:
    classes = ["1", "0", "ox"]  # names that look like numbers do not change what a number means
    labels = number_labels([0, "0", 2, "ox", True], classes, str, several=False)
    assert (labels.dtype, labels.tolist()) == (np.int64, [0, 1, 2, 2, 1])
    rows = number_labels([[0, 2], [], "ox", ["0"]], classes, str, several=True)
    assert rows.dtype == np.uint8
    assert rows.tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert number_labels([], classes, str, several=True).shape == (0, 3)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (None, "it has no label"),
        (-1, "it has no label"),
        (3, "expected a class from 0 to 2, got 3"),
        (-2, "expected a class from 0 to 2, got -2"),
        (1.0, "expected a class from 0 to 2, got 1.0"),
        ("oxx", "unknown class 'oxx'; did you mean 'ox'?"),
    ],
)
def test_strangers(label: Any, said: str) -> None:
    classes = ["ant", "bee", "ox"]
    assert refusal(ClassIndex(classes).number, label) == said
    place = "row {}".format
    assert refusal(number_labels, [0, label], classes, place, several=False) == f"row 1: {said}"
    assert refusal(number_labels, [[], [label]], classes, place, several=True) == f"row 1: {said}"


def test_a_flag_for_each_class_is_no_list_of_classes() -> None:
    text = refusal(ClassIndex(["ant", "bee", "ox"]).row, [0, 1, 0])
    assert text == "expected a list of classes, each once, got [0, 1, 0]"
