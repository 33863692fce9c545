"""Where images come from: one interface for every kind of data set.

A source knows its labels without reading an image; it hands out encoded bytes (or pixels) and
leaves decoding to decode.py.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Content = bytes | np.ndarray
"""An image as a source holds it: an encoded file, or pixels of uint8 (height, width, channels)."""


class ImageDataset(ABC):
    """Labelled images, each reached by its number."""

    def __init__(
        self, name: str, classes: Sequence[str], labels: np.ndarray, root: Path | None = None
    ) -> None:
        self.name = name
        """What a message calls it, such as `photos/train`."""
        self.classes = tuple(classes)
        self.labels = labels
        """A class's number for each image (int64, N); with several labels an image 0 / 1
        (uint8, N x classes)."""
        self.root = root
        """The folder that the set lies in, where the list of bad files is kept."""
        assert labels.dtype == (np.int64 if labels.ndim == 1 else np.uint8), labels.dtype

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multilabel(self) -> bool:
        """Tell whether an image may have several labels, or none."""
        return self.labels.ndim == 2

    @abstractmethod
    def read(self, index: int) -> Content:
        """Read one image; OSError where it can't be."""

    @abstractmethod
    def where(self, index: int) -> str:
        """Name one image, so that a person finds it; no two have the same name."""

    def fingerprint(self) -> str:
        """Hash the images' names and labels, to notice a set that changed."""
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "surrogateescape"))
        for index in range(len(self)):
            digest.update(self.where(index).encode("utf-8", "surrogateescape") + b"\0")
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()

    def stamp(self) -> str:
        """Hash all that shows, without reading them, that images are still the same."""
        return self.fingerprint()


class Uniform(ImageDataset):
    """Decoded images of one size, which can be taken many at once."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """Take images out: (n, height, width, channels), uint8."""

    def read(self, index: int) -> np.ndarray:
        """Take one image out."""
        return self.take(np.array([index]))[0]

    def where(self, index: int) -> str:
        """Name an image by its number."""
        return f"{self.name}[{index}]"


class Pixels(Uniform):
    """Decoded images of one size, all in memory (or mapped to it)."""

    def __init__(
        self, name: str, classes: Sequence[str], labels: np.ndarray, pixels: np.ndarray
    ) -> None:
        super().__init__(name, classes, labels)
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 4
        assert len(pixels) == len(labels)
        self.pixels = pixels
        """All images: (N, height, width, channels), uint8."""

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Take images out of memory."""
        return self.pixels[indices]


def select(source: ImageDataset, indices: np.ndarray, name: str | None = None) -> ImageDataset:
    """Take some of a source's images, in a given order; nothing is copied."""
    indices = np.asarray(indices, np.int64)
    if isinstance(source, _Selection | _UniformSelection):  # one hop, however often chosen from
        source, indices, name = source.source, source.indices[indices], name or source.name
    if isinstance(source, Uniform):
        return _UniformSelection(source, indices, name)
    return _Selection(source, indices, name)


class _Selection(ImageDataset):
    """Some of another source's images."""

    def __init__(self, source: ImageDataset, indices: np.ndarray, name: str | None) -> None:
        super().__init__(name or source.name, source.classes, source.labels[indices], source.root)
        self.source = source
        self.indices = indices

    def read(self, index: int) -> Content:
        """Read the image from the source behind."""
        return self.source.read(int(self.indices[index]))

    def where(self, index: int) -> str:
        """Name the image as the source behind does."""
        return self.source.where(int(self.indices[index]))

    def stamp(self) -> str:
        """Hash which images these are, and what shows that the source behind is the same."""
        return _stamp_of(self, self.source)


class _UniformSelection(Uniform):
    """Some of another source's images, of one size."""

    def __init__(self, source: Uniform, indices: np.ndarray, name: str | None) -> None:
        super().__init__(name or source.name, source.classes, source.labels[indices], source.root)
        self.source = source
        self.indices = indices

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Take the images out of the source behind."""
        return self.source.take(self.indices[indices])

    def where(self, index: int) -> str:
        """Name the image as the source behind does."""
        return self.source.where(int(self.indices[index]))

    def stamp(self) -> str:
        """Hash which images these are, and what shows that the source behind is the same."""
        return _stamp_of(self, self.source)


def _stamp_of(chosen: ImageDataset, behind: ImageDataset) -> str:
    return hashlib.sha256(f"{chosen.fingerprint()} {behind.stamp()}".encode()).hexdigest()


@dataclass(frozen=True)
class Streamed:
    """One image of a stream."""

    content: Content
    label: int | np.ndarray
    """A class's number; with several labels 0 / 1 for each class."""
    where: str


class ImageStream(ABC):
    """Labelled images that come one after the other, too many to be reached by number."""

    def __init__(
        self, name: str, classes: Sequence[str], *, multilabel: bool = False, length: int | None
    ) -> None:
        self.name = name
        self.classes = tuple(classes)
        self.multilabel = multilabel
        self.length = length
        """How many images an epoch has, where that is known."""

    @abstractmethod
    def items(self, seed: int, epoch: int, start: int = 0) -> Iterator[Streamed]:
        """Give an epoch's images from a position on, in an order that only seed and epoch decide.

        All processes see the same order; each decodes its own share.
        """
