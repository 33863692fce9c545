"""Datasets and streams of images: one interface for every kind.

A dataset knows its labels without reading an image; it returns encoded bytes (or pixels) and leaves
decoding to decode.py.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from vitrail.config import InputError
from vitrail.data.datasets.mapped import Lookups, blocks, release_pages
from vitrail.data.datasets.sparse_labels import SparseLabels, label_arrays, sparse
from vitrail.data.decoding.reading import Reading

_SIZES = 200_000  # images whose sizes a fingerprint counts
_TOGETHER = 4096  # of them, so many at a time
_SAMPLED = 256  # images whose contents it hashes
_WHOLE = 2**30  # bytes of decoded images that are hashed whole
_AT_ONCE = 1024  # of them, so many images at a time
BUFFER = 2048
"""Images of a stream that are held in memory to be shuffled, unless asked otherwise."""

EXCERPT = 4096
"""Bytes at each end of a file that tell its content from others'."""

Content = bytes | np.ndarray
"""An image as a dataset holds it: an encoded file, or uint8 pixels (height, width, channels)."""


@dataclass(frozen=True)
class UnreadableImage:
    """An image that could not be used, and why."""

    where: str
    reason: str
    kind: str
    """The reason in a word or two, for counting."""


class ImageDataset(ABC):
    """Labeled images, each with its index."""

    reading: Reading | None = None
    """How its files become 8 bits, if that was found or said."""
    reading_given = False
    """Whether DATA said so."""
    look: tuple[str, ...] = ()
    """What a look at some of its files showed, one line each."""

    def __init__(
        self, name: str, classes: Sequence[str], labels: np.ndarray, root: Path | None = None
    ) -> None:
        self.name = name
        """Its name in messages, such as `photos/train`."""
        self.classes = tuple(classes)
        dense = isinstance(labels, np.ndarray) and labels.ndim == 2 and labels.dtype == np.uint8
        self.labels = sparse(labels) if dense else labels
        """Class indices (int64, N); with several labels per image, 0 / 1 (uint8, N x classes), held
        as SparseLabels and made dense where rows are taken out; for regression, the numbers
        themselves (float64 or float32, N x targets), whose names are `classes`."""
        self.root = root
        """The dataset's folder, where the list of unreadable files is kept."""
        self.known_again = True
        """Whether names and excerpts tell which images these are, in another process, too."""
        several = np.uint8, np.float32, np.float64
        assert labels.dtype in ((np.int64,) if labels.ndim == 1 else several)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multilabel(self) -> bool:
        """Tell whether an image may have several labels or none."""
        return self.labels.dtype == np.uint8

    @property
    def regression(self) -> bool:
        """Tell whether an image has numbers to predict, not classes."""
        return self.labels.dtype.kind == "f"

    def class_counts(self) -> np.ndarray:
        """Count the images of each class; each has a number for each target of a regression."""
        if self.regression:
            return np.full(len(self.classes), len(self))
        if isinstance(self.labels, SparseLabels):
            return self.labels.count_images()
        counts = np.zeros(len(self.classes), np.int64)
        for block in blocks(self.labels):
            counts += np.bincount(block, minlength=len(counts))
        return counts

    @abstractmethod
    def read(self, index: int) -> Content:
        """Read one image; OSError if it can't be read."""

    @abstractmethod
    def where(self, index: int) -> str:
        """Name one image so that a person can find it; each name is unique."""

    def image_names(self) -> Iterator[str]:
        """Name all images, in their order."""
        return map(self.where, range(len(self)))

    def encoded_names(self, start: int, stop: int) -> list[bytes]:
        """Name the images from one index up to another, in UTF-8."""
        return [self.where(n).encode("utf-8", "surrogateescape") for n in range(start, stop)]

    def unreadable(self, index: int, reason: str, kind: str) -> UnreadableImage:
        """Describe an image that could not be used."""
        return UnreadableImage(self.where(index), reason, kind)

    def size(self, index: int) -> int:
        """Count the bytes of an image without reading it; -1 if unknown."""
        return -1

    def sizes(self, indices: np.ndarray) -> Iterable[int]:
        """Count the bytes of some images."""
        return map(self.size, indices.tolist())

    def excerpt(self, index: int) -> bytes:
        """Return what tells an image's content from others': its size, first and last bytes."""
        content = self.read(index)
        return content.tobytes() if isinstance(content, np.ndarray) else excerpt_of(content)

    def storage(self) -> str:
        """Say where the images are stored and when they last changed, as far as that is known."""
        return ""

    def fingerprint(self) -> str:
        """Hash names, labels, sizes and a sample of the contents, to notice changed images.

        A copy of the same files elsewhere has the same fingerprint.
        """
        digest = hashlib.sha256()
        self._hash_index(digest.update)
        chosen = np.array(_spread(len(self), _SIZES), np.int64)
        for start in range(0, len(chosen), _TOGETHER):
            for size in self.sizes(chosen[start : start + _TOGETHER]):
                digest.update(b"%d;" % size)
        self._hash_contents(digest.update)
        return digest.hexdigest()

    def identity(self) -> str:
        """Hash names and labels alone, without a look at the images."""
        digest = hashlib.sha256()
        self._hash_index(digest.update)
        return digest.hexdigest()

    def stamp(self) -> str:
        """Hash what identifies the content, as a key for caches: fingerprint, place and times.

        Of images whose place nobody knows, all contents are hashed.
        """
        place = self.storage()
        text = f"{self.fingerprint()} {place}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
        if not place:
            self._hash_contents(digest.update, len(self))
        return digest.hexdigest()

    def _hash_index(self, update: Callable[[bytes], None]) -> None:
        update(repr(self.classes).encode("utf-8", "surrogateescape"))
        self._hash_names(update)
        labels = self.labels
        if labels.dtype == np.float64 and (labels == (single := labels.astype(np.float32))).all():
            labels = single  # by which older runs know them
        arrays = label_arrays(labels)
        for block in chain.from_iterable(blocks(arrays[name]) for name in sorted(arrays)):
            update(block.tobytes())

    def _hash_names(self, update: Callable[[bytes], None]) -> None:
        for name in self.image_names():
            update(name.encode("utf-8", "surrogateescape") + b"\0")

    def _hash_contents(self, update: Callable[[bytes], None], most: int = _SAMPLED) -> None:
        self._hash_some(update, _spread(len(self), most))

    def _hash_some(self, update: Callable[[bytes], None], indices: Sequence[int]) -> None:
        for index in indices:
            try:
                content = self.read(index)
            except OSError:
                content = b""
            if isinstance(content, np.ndarray):
                update(repr(content.shape).encode())
                content = content.tobytes()
            update(hashlib.blake2b(content, digest_size=16).digest())


def check_one_class(dataset: ImageDataset, why: str = "expected one class each") -> None:
    """Refuse a dataset whose images have several labels, or numbers instead of a class."""
    if dataset.regression:
        raise InputError(f"{dataset.name} has numbers to predict; {why}")
    if dataset.multilabel:
        raise InputError(f"{dataset.name} has several labels per image; {why}")


def excerpt_of(content: bytes) -> bytes:
    """Return a file's size with its first and last bytes, as `ImageDataset.excerpt` gives them."""
    return b"%d " % len(content) + content[:EXCERPT] + content[-EXCERPT:]


def stat_files(files: Iterable[Path]) -> str:
    """List the paths, sizes and modification times of files."""
    rows = []
    for file in files:
        try:
            status = file.stat()
            rows.append((os.path.abspath(file), status.st_size, status.st_mtime_ns))
        except OSError:
            rows.append((os.path.abspath(file), -1, -1))
    return repr(rows)


def _spread(count: int, most: int) -> list[int]:
    """Return at most `most` indices below `count`, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


class FixedSizeDataset(ImageDataset):
    """Decoded images of one size, which can be read many at a time."""

    in_memory = False
    """Whether all images are in memory, and few enough to be hashed whole."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return images: (n, height, width, channels), uint8."""

    def read(self, index: int) -> np.ndarray:
        """Return one image."""
        return self.take(np.array([index]))[0]

    def where(self, index: int) -> str:
        """Name an image by its index."""
        return f"{self.name}[{index}]"

    def storage(self) -> str:
        """Say that the images are in memory, where their fingerprint counts them all."""
        return "memory" if self.in_memory else ""

    def _hash_contents(self, update: Callable[[bytes], None], most: int = _SAMPLED) -> None:
        if not self.in_memory:
            super()._hash_contents(update, most)
            return
        for start in range(0, len(self), _AT_ONCE):
            pixels = self.take(np.arange(start, min(start + _AT_ONCE, len(self))))
            update(repr(pixels.shape).encode() + pixels.tobytes())


class ArrayDataset(FixedSizeDataset):
    """Decoded images of one size, all in memory or memory-mapped."""

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
        """Return images from memory."""
        return self.pixels[indices]


def select(dataset: ImageDataset, indices: np.ndarray, name: str | None = None) -> ImageDataset:
    """Select some of a dataset's images, in a given order; nothing is copied."""
    indices = np.asarray(indices, np.int64)
    if type(dataset) in (Selection, _FixedSizeSelection):  # one hop, however often chosen from
        assert isinstance(dataset, Selection)
        dataset, indices, name = dataset.dataset, dataset.indices[indices], name or dataset.name
    if isinstance(dataset, FixedSizeDataset):
        return _FixedSizeSelection(dataset, indices, name)
    return Selection(dataset, indices, name)


class Selection(ImageDataset):
    """Some of another dataset's images, with its labels or, if given, with others."""

    def __init__(
        self,
        dataset: ImageDataset,
        indices: np.ndarray,
        name: str | None = None,
        labels: np.ndarray | None = None,
    ) -> None:
        labels = dataset.labels.take(indices, axis=0) if labels is None else labels
        super().__init__(name or dataset.name, dataset.classes, labels, dataset.root)
        self.dataset = dataset
        self.known_again = dataset.known_again
        self.reading, self.reading_given = dataset.reading, dataset.reading_given
        self.look = dataset.look
        self.indices = indices
        self._lookups = Lookups(indices, *label_arrays(labels).values())

    def read(self, index: int) -> Content:
        """Read the image from the dataset behind."""
        return self.dataset.read(self._behind(index))

    def where(self, index: int) -> str:
        """Name the image as the dataset behind does."""
        return self.dataset.where(self._behind(index))

    def size(self, index: int) -> int:
        """Count the image's bytes as the dataset behind does."""
        return self.dataset.size(self._behind(index))

    def excerpt(self, index: int) -> bytes:
        """Return the excerpt that the dataset behind gives."""
        return self.dataset.excerpt(self._behind(index))

    def sizes(self, indices: np.ndarray) -> Iterable[int]:
        """Count the bytes of some images as the dataset behind does."""
        behind = np.array(self.indices[indices])
        release_pages(self.indices)
        return self.dataset.sizes(behind)

    def storage(self) -> str:
        """Say where the dataset behind is stored."""
        return self.dataset.storage()

    def _behind(self, index: int) -> int:
        self._lookups.count()
        return int(self.indices[index])

    def _hash_some(self, update: Callable[[bytes], None], indices: Sequence[int]) -> None:
        self.dataset._hash_some(update, self.indices[np.asarray(indices, np.int64)].tolist())

    def _hash_names(self, update: Callable[[bytes], None]) -> None:
        self.dataset._hash_names(update)
        for block in blocks(self.indices):
            update(block.tobytes())


class _FixedSizeSelection(Selection, FixedSizeDataset):
    """Some of another dataset's images, of one size."""

    def __init__(self, dataset: FixedSizeDataset, indices: np.ndarray, name: str | None) -> None:
        super().__init__(dataset, indices, name)
        self.in_memory, self._whole = dataset.in_memory, dataset

    def read(self, index: int) -> np.ndarray:
        """Return one image."""
        return FixedSizeDataset.read(self, index)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return images of the dataset behind."""
        return self._whole.take(self.indices[indices])


@dataclass(frozen=True)
class StreamItem:
    """One image of a stream."""

    content: Content | OSError
    """The image, or why it can't be read."""
    label: int | np.ndarray
    """A class index; with several labels, 0 / 1 for each class."""
    where: str
    """A name by which a person can find it, the same in each epoch."""


class ImageStream(ABC):
    """Labeled images in shards that are read from front to back, without an index."""

    reading: Reading | None = None
    """How its files become 8 bits, if DATA says so."""
    reading_given = False
    """Whether DATA said so."""

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        *,
        shards: int,
        multilabel: bool = False,
        length: int | None = None,
        buffer: int = BUFFER,
    ) -> None:
        self.name = name
        self.classes = tuple(classes)
        self.shards = shards
        """How many shards there are."""
        self.multilabel, self.regression = multilabel, False
        self.length = length
        """Images per epoch, if known."""
        self.buffer = buffer
        """Images that are held in memory to be shuffled."""

    def fingerprint(self) -> str:
        """Hash what is known before any image is read: name, classes, shards and length."""
        known = repr((self.name, self.classes, self.multilabel, self.length, self.shards))
        return hashlib.sha256(known.encode("utf-8", "surrogateescape")).hexdigest()

    def shard_names(self) -> Sequence[str]:
        """Name the shards, as `where` of their images begins; none where they have no names."""
        return ()

    @abstractmethod
    def read_shard(self, shard: int, offset: int = 0) -> Iterator[tuple[int, StreamItem]]:
        """Yield a shard's images in their order, each with the offset at which the next begins.

        An offset is 0 or one that was yielded; what it counts, bytes or rows, is up to the stream.
        """
