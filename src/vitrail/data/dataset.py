"""Where images come from: one interface for every kind of data set.

A source knows its labels without reading an image; it hands out encoded bytes (or pixels) and
leaves decoding to decode.py.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_SIZES = 200_000  # images whose sizes a fingerprint counts
_SAMPLED = 256  # images whose contents it hashes
_WHOLE = 2**30  # bytes of decoded images that are hashed whole
_AT_ONCE = 1024  # of them, so many images at a time

Content = bytes | np.ndarray
"""An image as a source holds it: an encoded file, or pixels of uint8 (height, width, channels)."""


@dataclass(frozen=True)
class UnreadableImage:
    """An image that could not be used, and why."""

    where: str
    reason: str
    kind: str
    """The reason in a word or two, to count by."""
    identity: str = ""
    """What tells it from others, where its name changes with the epoch, as in a stream."""


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

    def unreadable(self, index: int, reason: str, kind: str) -> UnreadableImage:
        """Describe an image that could not be used."""
        return UnreadableImage(self.where(index), reason, kind)

    def size(self, index: int) -> int:
        """Count the bytes of an image without reading it; -1 where that can't be."""
        return -1

    def storage(self) -> str:
        """Say where the images are stored and when that last changed, as far as it is known."""
        return ""

    def fingerprint(self) -> str:
        """Hash names, labels, sizes and a sample of the contents, to notice other images.

        A copy of the same files at another place has the same fingerprint.
        """
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "surrogateescape"))
        for index in range(len(self)):
            digest.update(self.where(index).encode("utf-8", "surrogateescape") + b"\0")
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        for index in _spread(len(self), _SIZES):
            digest.update(b"%d;" % self.size(index))
        self._hash_contents(digest.update)
        return digest.hexdigest()

    def stamp(self) -> str:
        """Hash all that tells one content from another, for caches: fingerprint, place, times."""
        text = f"{self.fingerprint()} {self.storage()}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def _hash_contents(self, update: Callable[[bytes], None]) -> None:
        for index in _spread(len(self), _SAMPLED):
            try:
                content = self.read(index)
            except OSError:
                content = b""
            if isinstance(content, np.ndarray):
                update(repr(content.shape).encode())
                content = content.tobytes()
            update(hashlib.blake2b(content, digest_size=16).digest())


def stat_files(files: Iterable[Path]) -> str:
    """Give the places, sizes and times of change of files."""
    rows = []
    for file in files:
        try:
            status = file.stat()
            rows.append((os.path.abspath(file), status.st_size, status.st_mtime_ns))
        except OSError:
            rows.append((os.path.abspath(file), -1, -1))
    return repr(rows)


def _spread(count: int, most: int) -> list[int]:
    """Give up to so many numbers below a count, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


class FixedSizeDataset(ImageDataset):
    """Decoded images of one size, which can be taken many at once."""

    in_memory = False
    """Whether all images are at hand, and few enough to be hashed whole."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """Take images out: (n, height, width, channels), uint8."""

    def read(self, index: int) -> np.ndarray:
        """Take one image out."""
        return self.take(np.array([index]))[0]

    def where(self, index: int) -> str:
        """Name an image by its number."""
        return f"{self.name}[{index}]"

    def _hash_contents(self, update: Callable[[bytes], None]) -> None:
        if not self.in_memory:
            super()._hash_contents(update)
            return
        for start in range(0, len(self), _AT_ONCE):
            pixels = self.take(np.arange(start, min(start + _AT_ONCE, len(self))))
            update(repr(pixels.shape).encode() + pixels.tobytes())


class ArrayDataset(FixedSizeDataset):
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
        self.in_memory = pixels.nbytes <= _WHOLE

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Take images out of memory."""
        return self.pixels[indices]


def select(source: ImageDataset, indices: np.ndarray, name: str | None = None) -> ImageDataset:
    """Take some of a source's images, in a given order; nothing is copied."""
    indices = np.asarray(indices, np.int64)
    if isinstance(source, Selection | _FixedSizeSelection):  # one hop, however often chosen from
        source, indices, name = source.source, source.indices[indices], name or source.name
    if isinstance(source, FixedSizeDataset):
        return _FixedSizeSelection(source, indices, name)
    return Selection(source, indices, name)


class Selection(ImageDataset):
    """Some of another dataset's images."""

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

    def size(self, index: int) -> int:
        """Count the image's bytes as the dataset behind does."""
        return self.source.size(int(self.indices[index]))

    def storage(self) -> str:
        """Say where the dataset behind is stored."""
        return self.source.storage()


class _FixedSizeSelection(FixedSizeDataset):
    """Some of another dataset's images, of one size."""

    def __init__(self, source: FixedSizeDataset, indices: np.ndarray, name: str | None) -> None:
        super().__init__(name or source.name, source.classes, source.labels[indices], source.root)
        self.in_memory = source.in_memory
        self.source = source
        self.indices = indices

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Take the images out of the source behind."""
        return self.source.take(self.indices[indices])

    def where(self, index: int) -> str:
        """Name the image as the dataset behind does."""
        return self.source.where(int(self.indices[index]))

    def storage(self) -> str:
        """Say where the dataset behind is stored."""
        return self.source.storage()


@dataclass(frozen=True)
class StreamItem:
    """One image of a stream."""

    content: Content
    label: int | np.ndarray
    """A class's number; with several labels 0 / 1 for each class."""
    where: str
    path: str = ""
    """What the stream calls the image's file, the same in each epoch."""

    @property
    def identity(self) -> str:
        """Name the image the same in each epoch, so that it is counted once."""
        if not self.content and not self.path:
            return self.where
        content = self.content if isinstance(self.content, bytes) else self.content.tobytes()
        return f"{self.path} {hashlib.blake2b(content, digest_size=16).hexdigest()}"


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

    def fingerprint(self) -> str:
        """Hash what is known of the images before they come: name, classes and count."""
        known = repr((self.name, self.classes, self.multilabel, self.length))
        return hashlib.sha256(known.encode("utf-8", "surrogateescape")).hexdigest()

    @abstractmethod
    def items(self, seed: int, epoch: int, start: int = 0) -> Iterator[StreamItem]:
        """Give an epoch's images from a position on, in an order that only seed and epoch decide.

        All processes see the same order; each decodes its own share.
        """
