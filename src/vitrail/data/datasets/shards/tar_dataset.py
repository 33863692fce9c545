"""Images in tar files as webdataset writes them, each with its index.

A sample is the files of one key, which is a name up to its first dot: `0001.jpg` with `0001.cls`.
The tar headers say where each image is, so that order, resume and sharding are as exact as with a
folder.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.dataset import ImageDataset, stat_files
from vitrail.data.datasets.class_index import name_classes, number_labels
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.index_files import DatasetIndex, changed_at, keep_index, keep_part
from vitrail.data.datasets.mapped import Lookups, blocks, release_pages
from vitrail.data.datasets.shards.tar_reader import read_members
from vitrail.data.datasets.shards.tar_samples import (
    CLASSES,
    find_samples,
    is_label,
    read_class_file,
)
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.name_hashes import name_hashes
from vitrail.data.split import choose_split, split_indices
from vitrail.text import printable, show

_LARGE = 1 << 30  # bytes of shards from which on processes read them side by side
_OPEN = 64  # shards that a process holds open


class TarDataset(ImageDataset):
    """Images in tar files."""

    def __init__(
        self,
        name: str,
        shards: Sequence[Path],
        index: DatasetIndex,
    ) -> None:
        super().__init__(name, index.classes, index.labels, shards[0].parent)
        assert index.places is not None
        self._shards = [(os.fspath(path), path.stat().st_mtime_ns) for path in shards]
        self._titles = _titles(shards)
        self._places = index.places  # (shard, offset, size) of each image
        self._names = index.names
        self._lookups = Lookups(self._places)

    def read(self, index: int) -> bytes:
        """Read an image from its shard."""
        self._lookups.count()
        shard, offset, size = self._places[index].tolist()
        content = _open(*self._shards[shard]).read(size, offset)
        if len(content) < size:
            raise OSError(errno.EIO, "The shard was cut off after it was opened", self.where(index))
        return content

    def where(self, index: int) -> str:
        """Name an image by its shard and its name in there."""
        title = self._titles[self._places[index, 0]]
        return printable(f"{title}:{os.fsdecode(self._names[index])}")

    def encoded_names(self, start: int, stop: int) -> list[bytes]:
        """Name some images in UTF-8."""
        text, ends = self._names.some(start, stop)
        whole, shards = text.tobytes(), np.array(self._places[start:stop, 0]).tolist()
        release_pages(self._places)
        spans = zip(shards, pairwise((0, *ends.tolist())), strict=True)
        names = ((self._titles[shard], whole[first:last]) for shard, (first, last) in spans)
        return [
            printable(f"{title}:{os.fsdecode(name)}").encode("utf-8", "surrogateescape")
            for title, name in names
        ]

    def sizes(self, indices: np.ndarray) -> list[int]:
        """Return the sizes of some images."""
        found = np.array(self._places[indices, 2]).tolist()
        release_pages(self._places)
        return found

    def size(self, index: int) -> int:
        """Return the image's size from its tar header."""
        self._lookups.count()
        return int(self._places[index, 2])

    def storage(self) -> str:
        """Name the shards, their sizes and modification times."""
        return stat_files([Path(path) for path, _ in self._shards])

    def _hash_names(self, update: Callable[[bytes], None]) -> None:
        update(repr(self._titles).encode("utf-8", "surrogateescape"))
        for block in blocks(self._places):
            update(block[:, 0].tobytes())
        update(self._names.hashed.encode())


def open_tar(
    name: str,
    shards: Sequence[Path],
    held: tuple[str, int] | None = None,
    *,
    labels: bool = True,
) -> ImageDataset:
    """Open all images of some shards or, with `held`, those that a split and a seed choose."""
    folder = shards[0].parent
    key = repr(("shards", [os.path.abspath(path) for path in shards], labels))
    index = keep_index(
        folder,
        key,
        lambda: _read_shards(name, shards, labels=labels),
        finish=lambda index: name_hashes(TarDataset(name, shards, index)),
    )
    dataset = TarDataset(name, shards, index)
    if held is None:
        return dataset
    choose_split(held[0], ("train", "val"), name)  # refuses what there is not
    if held[0] != "all":
        key = repr((key, held))
        index = keep_part(folder, key, index, lambda: split_indices(dataset, *held))
    return TarDataset(f"{name} ({held[0]})", shards, index)


class _File:
    """An open file, closed when no thread reads it any more."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, size: int, offset: int) -> bytes:
        """Read without a file position, so that threads and forked processes can share the file."""
        return os.pread(self._descriptor, size, offset)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # it could be opened
            os.close(self._descriptor)


@lru_cache(_OPEN)
def _open(path: str, changed: int) -> _File:
    """Open a shard, once per process and version of the file."""
    return _File(path)


def _read_shards(name: str, shards: Sequence[Path], *, labels: bool) -> DatasetIndex:
    """Find the images and labels of all shards; without `labels`, all are one class."""
    beside = [shards[0].parent / file for file in CLASSES]
    read = [(os.fspath(path.absolute()), changed_at(path)) for path in (*shards, *beside)]
    places, names, found = list[np.ndarray](), list[Names](), list[Any]()
    large = len(shards) > 1 and sum(map(_size, shards)) >= _LARGE
    config = LoaderConfig(workers=None, kind="processes") if large else LoaderConfig(workers=0)
    loader = Loader(partial(_read_shard, labels=labels), shards, config)
    with show_progress("shards", len(shards)) if large else nullcontext() as report:
        for number, (table, some, values) in enumerate(loader):
            places.append(np.insert(table, 0, number, axis=1))
            names.append(some)
            found += values
            if report:
                report(number + 1)
    classes = (labels and read_class_file(shards[0].parent)) or name_classes(found, name)
    table, joined, titles = np.concatenate(places), Names.join(names), _titles(shards)
    numbers = number_labels(
        found,
        classes,
        lambda index: f"{titles[table[index, 0]]}:{os.fsdecode(joined[index])}",
        several=any(isinstance(label, list) for label in found),
    )
    return DatasetIndex(tuple(classes), numbers, joined, tuple(read), table)


def _read_shard(path: Path, *, labels: bool) -> tuple[np.ndarray, Names, list[Any]]:
    """Read a shard's headers: offset and size of each image, names and labels."""
    places, names, found = array("q"), list[bytes](), list[Any]()
    try:
        for sample in find_samples(read_members(path, is_label), show(path), labels=labels):
            names.append(os.fsencode(sample.image.name))
            places.extend((sample.image.offset, sample.image.size))
            found.append(sample.label)
    except OSError as error:
        raise InputError(f"cannot read {show(path)}: {error.strerror}") from None
    if not names:
        raise InputError(f"{show(path)} has no images; expected KEY.jpg with KEY.cls")
    return np.frombuffer(places, np.int64).reshape(-1, 2), Names(names), found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reported when it is read
        return 0


def _titles(shards: Sequence[Path]) -> list[str]:
    """Name shards by their file names, or by their paths if those are not unique."""
    names = [path.name for path in shards]
    return names if len(set(names)) == len(names) else [path.as_posix() for path in shards]
