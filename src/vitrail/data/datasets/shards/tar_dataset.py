"""Images in tar files as webdataset writes them, each with its index.

A sample is the files of one key, which is a name up to its first dot: `0001.jpg` with `0001.cls`.
The tar headers say where each image is, so that order, resume and sharding are as exact as with a
folder. Shards with a URL are downloaded first.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, select, stat_files
from vitrail.data.datasets.class_index import name_classes, number_labels
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.index_files import DatasetIndex, changed_at, keep_index
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.shards.patterns import (
    is_address,
    list_shards,
    name_splits,
    place_of,
    without_signature,
)
from vitrail.data.datasets.shards.tar_reader import Member, read_members
from vitrail.data.split import SPLITS, choose_split, spell, split_indices
from vitrail.download import MissingError, cache_folder, fetch
from vitrail.text import printable, show

_IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "avif", "npy")
_LABELS = ("cls", "json", "txt")  # the first one with a label counts
_KEYS = ("label", "class", "cls")  # of a label in a JSON object
_CLASSES = ("classes.txt", "dataset_info.json")  # beside the shards; either may name the classes
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key and extension
_OPEN = 64  # shards that a process holds open


class TarDataset(ImageDataset):
    """Images in tar files."""

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        labels: np.ndarray,
        shards: Sequence[Path],
        places: np.ndarray,
        names: Names,
    ) -> None:
        super().__init__(name, classes, labels, shards[0].parent)
        self._shards = [(os.fspath(path), path.stat().st_mtime_ns) for path in shards]
        self._titles = _titles(shards)
        self._places, self._names = places, names  # (shard, offset, size) of each image; its name

    def read(self, index: int) -> bytes:
        """Read an image from its shard."""
        shard, offset, size = self._places[index].tolist()
        content = _open(*self._shards[shard]).read(size, offset)
        if len(content) < size:
            raise OSError(errno.EIO, "The shard was cut off after it was opened", self.where(index))
        return content

    def where(self, index: int) -> str:
        """Name an image by its shard and its name in there."""
        title = self._titles[self._places[index, 0]]
        return printable(f"{title}:{os.fsdecode(self._names[index])}")

    def size(self, index: int) -> int:
        """Return the image's size from its tar header."""
        return int(self._places[index, 2])

    def storage(self) -> str:
        """Name the shards, their sizes and modification times."""
        return stat_files([Path(path) for path, _ in self._shards])

    def _hash_names(self, update: Callable[[bytes], None]) -> None:
        update(repr(self._titles).encode("utf-8", "surrogateescape"))
        update(np.ascontiguousarray(self._places[:, 0]).tobytes())
        update(self._names.hashed.encode())


def open_shards(rest: str, split: str, *, seed: int = 0, labels: bool = True) -> ImageDataset:
    """Open a split of `wds:PATTERN`; `seed` samples the images to hold out if it has no splits.

    A shard whose name does not tell a split belongs to `train`. Without `labels`, images that are
    not all labeled are one class.
    """
    shards = list_shards(rest)
    words = [word or "train" for word in name_splits(shards)]
    there = [word for word in SPLITS if word in words]
    alone = there == ["train"]
    chosen = "all" if alone else choose_split(spell(split), there, f"wds:{rest}")
    ours = [s for s, word in zip(shards, words, strict=True) if chosen in (word, "all")]
    fetched = _download([shard for shard in ours if is_address(shard)])
    files = [fetched.get(shard) or Path(shard) for shard in ours]
    name = place_of(shards[0]).parent.name or rest
    title = name if alone else f"{name}/{chosen}"
    try:
        dataset = _index(title, files)
    except InputError:
        if labels:
            raise
        dataset = _index(title, files, labels=False)
    if not alone:
        return dataset
    return select(dataset, split_indices(dataset, spell(split), seed), f"{name} ({split})")


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


def _download(addresses: Sequence[str]) -> dict[str, Path]:
    """Download shards that are not in the cache, and the files that name their classes."""
    targets = {address: _target(address) for address in addresses}
    missing = [address for address, target in targets.items() if not target.exists()]
    if missing:
        first = targets[missing[0]]
        for file in _CLASSES:
            with suppress(MissingError):
                fetch(urljoin(missing[0], file), first.with_name(file))
        fetch(missing[0], first)
        _check_space(first, len(missing) - 1)
    for address, target in targets.items():
        fetch(address, target)
    return targets


def _target(address: str) -> Path:
    """Return a shard's place in the cache: one folder for all shards of a URL's folder."""
    place, parts = place_of(address), urlsplit(without_signature(address))
    folder = parts._replace(path=place.parent.as_posix()).geturl()
    digest = hashlib.sha256(folder.encode()).hexdigest()
    return cache_folder() / "shards" / f"{parts.hostname}-{digest[:12]}" / place.name


def _check_space(first: Path, more: int) -> None:
    """Estimate from the first shard whether the disk has space for the others."""
    needed, free = first.stat().st_size * more, shutil.disk_usage(first.parent).free
    if needed > free:
        space = f"about {needed / 1e9:,.1f} GB needed, {free / 1e9:,.1f} GB free"
        hint = "free some space, set VITRAIL_CACHE to another folder, or take fewer shards"
        raise InputError(f"no room for {more:,} more shards in {first.parent} ({space}); {hint}")


def _index(name: str, shards: Sequence[Path], *, labels: bool = True) -> TarDataset:
    """Find the images and labels of all shards, by an older index if nothing has changed.

    Without `labels`, all are one class.
    """
    folder = shards[0].parent
    key = repr(("shards", [os.path.abspath(path) for path in shards], labels))
    index = keep_index(folder, key, lambda: _read_shards(name, shards, labels=labels))
    assert index.places is not None
    return TarDataset(name, index.classes, index.labels, shards, index.places, index.names)


def _read_shards(name: str, shards: Sequence[Path], *, labels: bool) -> DatasetIndex:
    places, names, found = array("q"), list[bytes](), list[Any]()
    beside = [shards[0].parent / file for file in _CLASSES]
    read = [(os.fspath(path.absolute()), changed_at(path)) for path in (*shards, *beside)]
    for number, path in enumerate(shards):
        before = len(names)
        try:
            for sample in _samples(path, labels):
                names.append(os.fsencode(sample.image.name))
                places.extend((number, sample.image.offset, sample.image.size))
                found.append(sample.label)
        except OSError as error:
            raise InputError(f"cannot read {show(path)}: {error.strerror}") from None
        if len(names) == before:
            raise InputError(f"{show(path)} has no images; expected KEY.jpg with KEY.cls")
    classes = (labels and _read_classes(shards[0].parent)) or name_classes(found, name)
    table, titles = np.frombuffer(places, np.int64).reshape(-1, 3), _titles(shards)
    numbers = number_labels(
        found,
        classes,
        lambda index: f"{titles[table[index, 0]]}:{os.fsdecode(names[index])}",
        several=any(isinstance(label, list) for label in found),
    )
    return DatasetIndex(tuple(classes), numbers, Names(names), tuple(read), table)


def _titles(shards: Sequence[Path]) -> list[str]:
    """Name shards by their file names, or by their paths if those are not unique."""
    names = [path.name for path in shards]
    return names if len(set(names)) == len(names) else [path.as_posix() for path in shards]


class _Sample(NamedTuple):
    image: Member
    label: Any


def _samples(path: Path, labels: bool) -> Iterator[_Sample]:
    """Find the images in a shard, with their labels."""
    seen: set[str] = set()
    for key, files in _groups(path):
        try:
            if key in seen:
                raise InputError("it appears twice; files of one key must be adjacent")
            seen.add(key)
            if sample := _find_sample(files, labels):
                yield sample
        except InputError as error:
            raise InputError(f"{show(path)}: sample {printable(key)!r}: {error}") from None


def _find_sample(files: dict[str, Member], labeled: bool) -> _Sample | None:
    """Find image and label among the files of a key; None if it has neither, like a README."""
    images = [extension for extension in files if extension in _IMAGES]
    labels = {extension: files[extension].content for extension in _LABELS if extension in files}
    if len(images) == 1:
        return _Sample(files[images[0]], _read_label(labels) if labeled else UNLABELED)
    if images:
        raise InputError(f"it has several images ({', '.join(images)}); expected one")
    if labels:
        kinds, there = ", ".join(_IMAGES), ", ".join(files)
        raise InputError(f"it has no image; expected one of {kinds}, got {there}")
    return None


def _groups(path: Path) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yield the files of each key by their extensions; a key ends where another starts."""
    key, files = "", dict[str, Member]()
    endings = tuple(f".{extension}" for extension in _LABELS)
    for member in read_members(path, lambda name: name.lower().endswith(endings)):
        if (match := _NAME.fullmatch(member.name)) is None:
            continue  # no extension, or hidden
        if match[1] != key:
            if files:
                yield key, files
            key, files = match[1], {}
        extension = match[2].lower()
        if extension in files:
            raise InputError(f"{show(path)}: {printable(member.name)} appears twice")
        files[extension] = member
    if files:
        yield key, files


def _read_label(contents: dict[str, bytes | None]) -> Any:
    """Read a sample's label: a number, a name, or a list of them."""
    for extension, content in contents.items():
        try:
            text = (content or b"").decode("utf-8-sig").strip()
            value = json.loads(text) if extension == "json" or text.startswith("[") else text
        except (ValueError, RecursionError):
            raise InputError(f"its .{extension} can't be read as text or JSON") from None
        if isinstance(value, dict):
            value = next((value[key] for key in _KEYS if key in value), None)
        if isinstance(value, list):
            return [_number_or_name(item) for item in value]
        if value not in (None, ""):
            return _number_or_name(value)
    raise InputError('it has no label; expected KEY.cls, KEY.json with a "label", or KEY.txt')


def _number_or_name(value: Any) -> int | str:
    if isinstance(value, str) and len(value.splitlines()) == 1:
        return int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value
    if type(value) is not int:
        raise InputError(f"expected a class index or name, got {value!r}")
    return value


def _read_classes(folder: Path) -> list[str] | None:
    """Read the class names from a file beside the shards, if there is one."""
    for path in (folder / file for file in _CLASSES):
        try:
            text = path.read_text(encoding="utf-8-sig")
            names = text.splitlines() if path.suffix == ".txt" else _names_in(json.loads(text))
            names = [name.strip() for name in names if name.strip()]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            raise InputError(f"{show(path)}: expected class names") from None
        if len(set(names)) < len(names):
            raise InputError(f"{show(path)}: expected unique class names")
        if names:
            return names
    return None


def _names_in(information: Any) -> list[str]:
    """Read the class names from a dataset_info.json; empty if it has none."""
    labels = [f for f in information["features"].values() if f.get("_type") == "ClassLabel"]
    return labels[0]["names"] if len(labels) == 1 else []
