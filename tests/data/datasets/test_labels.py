"""labels.py: labels as people write them into the cells of a list."""

import math
from typing import Any

import numpy as np
import pytest

from vitrail.config import InputError
from vitrail.data.datasets.labels import Labels, name_labels, read_label


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        ("cat", "cat"),
        (" a cat ", "a cat"),
        ("7", 7),
        ("-1", -1),
        ("0", 0),
        ("007", "007"),
        ("7.0", "7.0"),
        ("٣", "٣"),
        ("9" * 30, "9" * 30),
        (7, 7),
        (7.0, 7),
        (True, 1),
        ("", None),
        ("  ", None),
        (None, None),
        (math.nan, None),
        ("cat|dog", ["cat", "dog"]),
        ("cat; dog;", ["cat", "dog"]),
        ("3|1|3", [3, 1]),
        ("|", []),
        ("[]", []),
        ('["cat", 2]', ["cat", 2]),
        (["cat", "cat", None], ["cat"]),
        (np.array(["a", "b"]), ["a", "b"]),
        ("tench, Tinca tinca", "tench, Tinca tinca"),
    ],
)
def test_read_label(cell: Any, label: Labels) -> None:
    assert read_label(cell) == label


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (1.5, "expected a label of text or a whole number, got '1.5'"),
        (math.inf, "expected a label of text or a whole number, got 'inf'"),
        ({"a": 1}, "expected a label of text or a whole number, got \"{'a': 1}\""),
        ([["a"]], "expected a label of text or a whole number, got \"['a']\""),
        ("[1.5]", "expected a label of text or a whole number, got '1.5'"),
        ('["cat"', "'[\"cat\"' is not a JSON list"),
        ("[" * 10_000, repr("[" * 60) + " is not a JSON list"),
    ],
)
def test_no_label(cell: Any, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_label(cell)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("labels", "names", "classes", "named"),
    [
        (["b", "a", None], None, ["a", "b"], ["b", "a", None]),
        ([10, 9, 10], None, ["9", "10"], ["10", "9", "10"]),
        ([10, "9a", 9], None, ["10", "9", "9a"], ["10", "9a", "9"]),
        (["é", "z", "Z"], None, ["Z", "z", "é"], ["é", "z", "Z"]),
        ([1, 0], ["x", "y"], ["x", "y"], [1, 0]),
        ([7, 5], ["5", "7"], ["5", "7"], ["7", "5"]),
        (["y"], ["x", "y"], ["x", "y"], ["y"]),
        ([["a"], "b", None], None, ["a", "b"], [["a"], ["b"], []]),
        ([[1, 0], []], ["x", "y"], ["x", "y"], [[1, 0], []]),
    ],
)
def test_name_labels(
    labels: list[Labels], names: list[str] | None, classes: list[str], named: list[Labels]
) -> None:
    assert name_labels(labels, names) == (classes, named)
