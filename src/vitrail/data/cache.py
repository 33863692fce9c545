"""Images decoded once and kept as uint8, in memory or on disk, for sets that are read often.

The cache is made before training and never changes, so that any number of processes may read it.
What does not fit into its limit, or can't be decoded, is read from the source as before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ArrayDataset, Content, FixedSizeDataset, ImageDataset
from vitrail.data.decoding.decode import ImageError, decode, read_header
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.geometry import small_size
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.data.transforms.resizing import resize_quickly
from vitrail.files import sync

_VERSION = 1
_CHUNK = 16  # images that a thread decodes at a time


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Whether decoded images are kept, and where."""

    limit: float = 0.0
    """Gigabytes that may be kept; 0 keeps none."""
    folder: Path | None = None
    """Kept there for later runs too; in memory without it."""
    short_side: int | None = None
    """Keep larger images at this short side: less memory, and pixels that differ a little."""

    def __post_init__(self) -> None:
        if self.limit < 0 or (self.short_side or 1) < 1:
            raise InputError(f"no such cache: {self.limit} GB, short side {self.short_side}")


class _Index(NamedTuple):
    """Where each image's pixels lie; the length 0 says that they are not kept."""

    offsets: np.ndarray
    shapes: np.ndarray


class _Cached(ImageDataset):
    """A source whose images are kept decoded."""

    def __init__(self, source: ImageDataset, store: np.ndarray, index: _Index) -> None:
        super().__init__(source.name, source.classes, source.labels, source.root)
        self._source, self._store, self._index = source, store, index

    def read(self, index: int) -> Content:
        """Take an image out of the cache, or else read it."""
        height, width, channels = self._index.shapes[index].tolist()
        if not height:
            return self._source.read(index)
        start = int(self._index.offsets[index])
        flat = self._store[start : start + height * width * channels]
        return flat.reshape(height, width, channels)

    def where(self, index: int) -> str:
        """Name an image as its source does."""
        return self._source.where(index)

    def fingerprint(self) -> str:
        """Hash what is kept, not how."""
        return self._source.fingerprint()

    def storage(self) -> str:
        """Say where the dataset behind is stored."""
        return self._source.storage()


class _CachedArray(ArrayDataset):
    """A source whose images are all kept and of one size."""

    def __init__(self, source: ImageDataset, pixels: np.ndarray) -> None:
        super().__init__(source.name, source.classes, source.labels, pixels)
        self.root = source.root
        self._source = source

    def where(self, index: int) -> str:
        """Name an image as its source does."""
        return self._source.where(index)

    def fingerprint(self) -> str:
        """Hash what is kept, not how."""
        return self._source.fingerprint()

    def storage(self) -> str:
        """Say where the dataset behind is stored."""
        return self._source.storage()


def keep_decoded(
    source: ImageDataset,
    preprocess: Preprocess,
    config: CacheConfig,
    *,
    workers: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> ImageDataset:
    """Decode a source's images once; `report` is told how many are done."""
    if config.limit == 0 or isinstance(source, FixedSizeDataset):
        return source
    limit = int(config.limit * 1e9)
    images = _decode_all(source, preprocess, config, workers, report)
    if config.folder is None:
        return _open(source, *_fill(images, len(source), limit))
    key = _key(source, preprocess, config)
    folder = config.folder.expanduser() / key
    if not (folder / "index.npz").is_file():
        try:
            _write(folder, images, len(source), limit)
        except OSError as error:
            raise InputError(f"{config.folder}: the cache could not be written: {error}") from None
    try:
        store, index = _read(folder)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        text = f"{folder}: the cache is damaged; remove it and it is made again"
        raise InputError(text) from None
    return _open(source, store, index)


def _read(folder: Path) -> tuple[np.ndarray, _Index]:
    """Map a cache on disk into memory; one of several errors where it is not as it was written."""
    # Opened here, for NumPy leaves a damaged one open.
    with (folder / "index.npz").open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        index = _Index(file["offsets"], file["shapes"])
    size = (folder / "pixels.bin").stat().st_size
    if size != int(index.shapes.prod(axis=1).sum()):
        raise ValueError("another size")
    store = np.memmap(folder / "pixels.bin", np.uint8, "r") if size else np.empty(0, np.uint8)
    return store, index


def _decode_all(
    source: ImageDataset,
    preprocess: Preprocess,
    config: CacheConfig,
    workers: int | None,
    report: Callable[[int], None],
) -> Iterator[np.ndarray | None]:
    """Decode each image in turn, by threads; None for one that can't be."""

    def load(indices: range) -> list[np.ndarray | None]:
        return [_decode(source, index, preprocess, config.short_side) for index in indices]

    chunks = [
        range(start, min(start + _CHUNK, len(source))) for start in range(0, len(source), _CHUNK)
    ]
    done = 0
    for images in Loader(load, chunks, LoaderConfig(workers=workers)):
        yield from images
        done += len(images)
        report(done)


def _decode(
    source: ImageDataset, index: int, preprocess: Preprocess, short_side: int | None
) -> np.ndarray | None:
    with suppress(ImageError, OSError):  # whoever reads it for training reports it
        content = source.read(index)
        if isinstance(content, np.ndarray):
            image = content
        elif short_side is None:
            image = decode(content, channels=preprocess.channels)
        else:
            header = read_header(content)
            shrink = max(1.0, min(header.height, header.width) / short_side)
            channels = preprocess.channels
            image = decode(content, channels=channels, header=header, shrink=shrink)
        height, width = image.shape[:2]
        if short_side is not None and min(height, width) > short_side:
            size = small_size(height, width, (short_side, short_side))
            image = resize_quickly(image, size, preprocess)
        return image
    return None


def _fill(images: Iterator[np.ndarray | None], count: int, limit: int) -> tuple[np.ndarray, _Index]:
    """Put images into memory one behind the other, up to a limit."""
    index = _Index(np.zeros(count, np.int64), np.zeros((count, 3), np.int32))
    kept: list[np.ndarray] = []
    for image in _admit(images, index, limit):
        kept.append(image.reshape(-1))
    return np.concatenate(kept) if kept else np.empty(0, np.uint8), index


def _admit(images: Iterator[np.ndarray | None], index: _Index, limit: int) -> Iterator[np.ndarray]:
    """Give the images that are kept, and note where they lie."""
    used = 0
    for number, image in enumerate(images):
        if image is None or used + image.size > limit:
            continue
        index.offsets[number], index.shapes[number] = used, image.shape
        used += image.size
        yield np.ascontiguousarray(image)


def _write(folder: Path, images: Iterator[np.ndarray | None], count: int, limit: int) -> None:
    """Write a cache beside its place and rename it there, so that it is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        index = _Index(np.zeros(count, np.int64), np.zeros((count, 3), np.int32))
        with (new / "pixels.bin").open("wb") as file:
            for image in _admit(images, index, limit):
                file.write(image.data)
            file.flush()
            os.fsync(file.fileno())
        np.savez(new / "index.npz", offsets=index.offsets, shapes=index.shapes)
        sync(new / "index.npz")
        try:
            os.rename(new, folder)
        except OSError:
            if not folder.exists():  # else another process was sooner
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _key(source: ImageDataset, preprocess: Preprocess, config: CacheConfig) -> str:
    """Name a cache by all that decides its content."""
    what = [_VERSION, source.stamp(), preprocess.channels, config.short_side, config.limit]
    if config.short_side is not None:
        what += [preprocess.interpolation, preprocess.antialias]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


def _open(source: ImageDataset, store: np.ndarray, index: _Index) -> ImageDataset:
    """Choose the fastest form: images of one size are one array."""
    shape = index.shapes[0] if len(index.shapes) else np.zeros(3)
    if shape.all() and (index.shapes == shape).all():
        return _CachedArray(source, store.reshape(len(source), *shape.tolist()))
    return _Cached(source, store, index)
