"""What datasets without limit have in common: options, splits, and drawing when images are read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ArrayDataset, FixedSizeDataset, ImageDataset
from vitrail.data.split import choose_split

_TEST = 1 << 40  # the number of the first test image; training images are counted from 0
_IN_MEMORY = 200_000_000  # bytes of images up to which all are drawn once and kept
_AT_ONCE = 1 << 17  # pixels drawn together, so that the processor's cache holds them

Numbers = Mapping[str, tuple[int, int, int]]
"""Options that are whole numbers: default, smallest and largest value of each."""


class ProceduralDataset(FixedSizeDataset):
    """Images that are drawn each time they are read, each a pure function of its number."""

    channels: int
    samples_per_pixel = 1
    """Points each way that a pixel is the mean of."""

    def __init__(self, name: str, classes: Sequence[str], size: int, numbers: np.ndarray) -> None:
        super().__init__(name, classes, numbers % len(classes))
        self.image_size, self._numbers = size, numbers

    @abstractmethod
    def draw(self, numbers: np.ndarray) -> np.ndarray:
        """Draw some images together: (n, size, size, channels), uint8."""

    def storage(self) -> str:
        """Say that the images are a function of the dataset's name."""
        return f"drawn: {self.name}"

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Draw images, as many at a time as the processor's cache holds."""
        size = self.image_size
        pixels = np.empty((len(indices), size, size, self.channels), np.uint8)
        step = max(1, _AT_ONCE // (size * self.samples_per_pixel) ** 2)
        for start in range(0, len(indices), step):
            numbers = self._numbers[indices[start : start + step]]
            pixels[start : start + step] = self.draw(numbers)
        return pixels


def open_procedural(
    kind: str,
    options: str,
    split: str,
    count: int,
    make: Callable[[str, np.ndarray], ProceduralDataset],
) -> ImageDataset:
    """Open a split: `count` images for training, a tenth as many for testing.

    Up to 200 MB of images are drawn at once and kept in memory; otherwise each is drawn when it is
    read. `make` takes the dataset's name and the numbers of its images.
    """
    part = choose_split(split, ("train", "test"), kind)
    train, test = np.arange(count), _TEST + np.arange(max(1, count // 10))
    numbers = {"train": train, "test": test, "all": np.concatenate([train, test])}[part]
    name = f"{kind}:{options}/{part}" if options else f"{kind}/{part}"
    dataset = make(name, numbers)
    if len(numbers) * dataset.channels * dataset.image_size**2 > _IN_MEMORY:
        return dataset
    pixels = dataset.take(np.arange(len(numbers)))
    return ArrayDataset(name, dataset.classes, dataset.labels, pixels)


def parse_numbers(
    kind: str, options: str, numbers: Numbers, words: Mapping[str, Sequence[str]] | None = None
) -> dict[str, int | str]:
    """Parse options such as `hard,size=64`: whole numbers, and words that stand for themselves.

    `words` has the words of each option that is given without its name.
    """
    named = {word: key for key, choices in (words or {}).items() for word in choices}
    found: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in options.split(","))):
        key, sign, value = (text.strip() for text in word.partition("="))
        if word in named:
            key, value = named[word], word
        elif not sign or key not in numbers:
            there = (*named, *(f"{name}=" for name in numbers))
            near = suggest(key + sign, there) or f"; expected one of {', '.join(there)}"
            raise InputError(f"{kind}: unknown option {word!r}{near}")
        if found.setdefault(key, value) != value:
            raise InputError(f"{kind}: {key} is given twice, as {found[key]} and {value}")
    read = {key: _number(kind, key, found.get(key), numbers) for key in numbers}
    return {**found, **read}


def _number(kind: str, key: str, text: str | None, numbers: Numbers) -> int:
    usual, low, high = numbers[key]
    if text is None:
        return usual
    with suppress(ValueError):
        if low <= int(text) <= high:
            return int(text)
    raise InputError(f"{kind}: {key} must be a whole number from {low} to {high:_}, got {text!r}")
