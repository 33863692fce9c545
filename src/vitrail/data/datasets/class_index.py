"""Class indices of labels that are numbers or names, one or several per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.datasets.sparse_labels import sparse

_MOST = 1_000_000  # classes; a larger label is some other number, such as an image id


def name_classes(labels: Iterable[Any], name: str) -> list[str]:
    """Name the classes of a dataset by its labels: 0 to the largest, or the names in order."""
    found: set[Any] = set()
    for label in labels:
        found.update(label if isinstance(label, list) else (label,))
    found -= {None, -1}
    words = sorted(label for label in found if isinstance(label, str))
    if words and len(words) < len(found):
        raise InputError(f"{name} has both numbers and words (such as {words[0]!r}) for labels")
    last = 0 if words else max(found, default=-1)
    if not isinstance(last, int) or last >= _MOST:
        raise InputError(f"{name}: {last!r} is not a class; expected numbers from 0, or names")
    return words or [str(number) for number in range(last + 1)]


class ClassIndex:
    """Class indices by name; a label that is a number is an index, whatever the names are."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._numbers = {word: number for number, word in enumerate(classes)}

    def number(self, label: Any) -> int:
        """Return the index of an image's only class."""
        if label is None or label == -1:  # -1 is the hub's way to keep a test split's labels secret
            raise InputError("it has no label")
        if isinstance(label, str):
            if label not in self._numbers:
                raise InputError(f"unknown class {label!r}{suggest(label, self._numbers)}")
            return self._numbers[label]
        if not isinstance(label, int) or not 0 <= label < len(self._numbers):
            raise InputError(f"expected a class from 0 to {len(self._numbers) - 1}, got {label!r}")
        return int(label)

    def numbers(self, labels: Any) -> list[int]:
        """Return the indices of an image's classes; a single label is a list of one."""
        labels = labels if isinstance(labels, list) else [labels]
        found = sorted({self.number(label) for label in labels})
        if len(found) < len(labels):  # most likely a 0 or 1 for each class, which is another thing
            raise InputError(f"expected a list of classes, each once, got {labels}")
        return found

    def row(self, labels: Any) -> np.ndarray:
        """Return 1 for an image's classes and 0 for the others."""
        row = np.zeros(len(self._numbers), np.uint8)
        row[self.numbers(labels)] = 1
        return row


def number_labels(
    labels: Sequence[Any], classes: Sequence[str], where: Callable[[int], str], *, several: bool
) -> np.ndarray:
    """Return all labels as an ImageDataset holds them: indices, or with several a row each."""
    numbering = ClassIndex(classes)

    def number(index: int, label: Any) -> Any:
        try:
            return numbering.numbers(label) if several else numbering.number(label)
        except InputError as error:
            raise InputError(f"{where(index)}: {error}") from None

    numbers = (number(index, label) for index, label in enumerate(labels))
    if several:
        return sparse(numbers, len(classes))
    return np.fromiter(numbers, np.int64, len(labels))
