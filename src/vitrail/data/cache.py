"""Images decoded once and cached as uint8 in a file, one for all processes of a machine.

The first process that needs it fills it before training; the others wait, and all map it into
memory, where they share its pages. Images that exceed its limit or can't be decoded are read from
the dataset as before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.config import InputError, NonNegativeFloat, PositiveInt, validate
from vitrail.data.dataset import Content, FixedSizeDataset, ImageDataset
from vitrail.data.decoding.decode import ImageError, decode, read_header
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.geometry import small_size
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.data.transforms.resizing import resize_quickly
from vitrail.download import cache_folder
from vitrail.files import lock_folder, sync, temporary_folder
from vitrail.text import show

log = logging.getLogger("vitrail")

_VERSION = 2
_PIXELS = "pixels.bin"
_CHUNK = 16  # images that a thread decodes at a time


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Whether and where decoded images are cached."""

    limit: NonNegativeFloat = 0.0
    """Largest size in gigabytes of all caches in the folder; 0 turns the cache off."""
    folder: Path | None = None
    """Where to keep it, for later runs too. Default: `decoded` in the cache folder."""
    short_side: PositiveInt | None = None
    """Resize larger images to this short side: less memory, slightly different pixels."""

    def __post_init__(self) -> None:
        validate(self, "cache")
        for name in ("folder", "short_side"):
            if self.limit == 0 and getattr(self, name) is not None:
                raise InputError(f"cache.{name} is only used with a cache.limit above 0")


class _Index(NamedTuple):
    """Where each image's pixels are; a height of 0 marks an image that is not cached."""

    offsets: np.ndarray
    shapes: np.ndarray


class _Cached(ImageDataset):
    """A dataset of which all or most images are cached."""

    def __init__(self, dataset: ImageDataset, store: np.ndarray, index: _Index) -> None:
        super().__init__(dataset.name, dataset.classes, dataset.labels, dataset.root)
        self._dataset, self._store, self._index = dataset, store, index
        self.reading, self.reading_given = dataset.reading, dataset.reading_given
        self.look = dataset.look

    def read(self, index: int) -> Content:
        """Return an image from the cache, or else read it."""
        height, width, channels = self._index.shapes[index].tolist()
        if not height:
            return self._dataset.read(index)
        start = int(self._index.offsets[index])
        flat = self._store[start : start + height * width * channels]
        return flat.reshape(height, width, channels)

    def where(self, index: int) -> str:
        """Name an image as the dataset behind does."""
        return self._dataset.where(index)

    def fingerprint(self) -> str:
        """Hash the dataset behind."""
        return self._dataset.fingerprint()

    def stamp(self) -> str:
        """Hash the dataset behind, as a key for caches."""
        return self._dataset.stamp()


class _CachedArray(_Cached, FixedSizeDataset):
    """A dataset of which all images are cached, all of one size."""

    def read(self, index: int) -> np.ndarray:
        """Take one image out."""
        return FixedSizeDataset.read(self, index)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return images from the cache."""
        shape = self._index.shapes[0].tolist()
        return self._store.reshape(len(self), *shape)[indices]


def keep_decoded(
    dataset: ImageDataset,
    preprocess: Preprocess,
    config: CacheConfig,
    *,
    workers: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> ImageDataset:
    """Decode and cache a dataset's images; `report` is called with how many are done."""
    if config.limit == 0 or isinstance(dataset, FixedSizeDataset):
        return dataset
    limit = int(config.limit * 1e9)
    parent = (config.folder or cache_folder() / "decoded").expanduser()
    folder = parent / _key(dataset, preprocess, config)
    found = _read(folder)
    if found is None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with lock_folder(parent):
                found = _read(folder)  # another process may have been sooner
                if found is None:
                    images = _decode_all(dataset, preprocess, config, workers, report)
                    _write(folder, images, len(dataset), limit)
                    _evict(parent, folder, limit)
                    found = _read(folder)
        except OSError as error:
            raise InputError(f"{parent}: the cache could not be written: {error}") from None
    if found is None:
        raise InputError(f"{folder}: the cache could not be read; free some space for it")
    store, index = found
    kept = int((index.shapes[:, 0] > 0).sum())
    log.info(
        "cache    %s of %s images decoded, %.2f GB, shared by all processes here: %s",
        *(f"{kept:,}", f"{len(dataset):,}", store.nbytes / 1e9, show(folder)),
    )
    return _open(dataset, store, index)


def _read(folder: Path) -> tuple[np.ndarray, _Index] | None:
    """Map a cache into memory; None if it is not there, or damaged and so made again."""
    try:
        offsets, shapes = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in _Index._fields
        )
        size = (folder / _PIXELS).stat().st_size
        if size != int(shapes.prod(axis=1, dtype=np.int64).sum()):
            return None
        os.utime(folder)  # so that caches that are not used go first
        pixels = np.memmap(folder / _PIXELS, np.uint8, "r") if size else np.empty(0, np.uint8)
        return np.asarray(pixels), _Index(offsets, shapes)
    except (OSError, EOFError, ValueError):
        return None


def _evict(parent: Path, newest: Path, limit: int) -> None:
    """Remove the caches that were not used for longest, until all are within the limit together."""
    caches = {path: path.stat() for path in parent.iterdir() if (path / _PIXELS).is_file()}
    used = sum((path / _PIXELS).stat().st_size for path in caches)
    for path in sorted(caches, key=lambda path: caches[path].st_mtime_ns):
        if used > limit and path != newest:
            used -= (path / _PIXELS).stat().st_size
            shutil.rmtree(path, ignore_errors=True)  # who has mapped it keeps it until its end


def _decode_all(
    dataset: ImageDataset,
    preprocess: Preprocess,
    config: CacheConfig,
    workers: int | None,
    report: Callable[[int], None],
) -> Iterator[np.ndarray | None]:
    """Decode the images in order, with threads; None for one that can't be decoded."""

    def load(indices: range) -> list[np.ndarray | None]:
        return [_decode(dataset, index, preprocess, config.short_side) for index in indices]

    chunks = [
        range(start, min(start + _CHUNK, len(dataset))) for start in range(0, len(dataset), _CHUNK)
    ]
    done = 0
    for images in Loader(load, chunks, LoaderConfig(workers=workers)):
        yield from images
        done += len(images)
        report(done)


def _decode(
    dataset: ImageDataset, index: int, preprocess: Preprocess, short_side: int | None
) -> np.ndarray | None:
    with suppress(ImageError, OSError):  # reported when it is read for training
        content = dataset.read(index)
        if isinstance(content, np.ndarray):
            image = content
        elif short_side is None:
            image = decode(content, channels=preprocess.channels, reading=preprocess.reading)
        else:
            header = read_header(content)
            shrink = max(1.0, min(header.height, header.width) / short_side)
            image = decode(
                content,
                channels=preprocess.channels,
                header=header,
                shrink=shrink,
                reading=preprocess.reading,
            )
        height, width = image.shape[:2]
        if short_side is not None and min(height, width) > short_side:
            size = small_size(height, width, (short_side, short_side))
            image = resize_quickly(image, size, preprocess)
        return image
    return None


def _empty_index(count: int) -> _Index:
    return _Index(np.zeros(count, np.int64), np.zeros((count, 3), np.int32))


def _admit(images: Iterator[np.ndarray | None], index: _Index, limit: int) -> Iterator[np.ndarray]:
    """Yield the images to keep, and note where they are."""
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
    with temporary_folder(".vitrail-", folder.parent) as new:
        index = _empty_index(count)
        with (new / _PIXELS).open("wb") as file:
            for image in _admit(images, index, limit):
                file.write(image.data)
            file.flush()
            os.fsync(file.fileno())
        for name, array in index._asdict().items():
            np.save(new / f"{name}.npy", array)
            sync(new / f"{name}.npy")
        if folder.exists():  # damaged
            shutil.rmtree(folder)
        os.rename(new, folder)


def _key(dataset: ImageDataset, preprocess: Preprocess, config: CacheConfig) -> str:
    """Hash everything that decides the cache's content."""
    what = [_VERSION, dataset.stamp(), preprocess.channels, config.short_side, config.limit]
    if config.short_side is not None:
        what += [preprocess.interpolation, preprocess.antialias]
    if preprocess.reading is not None:
        what.append(str(preprocess.reading))
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


def _open(dataset: ImageDataset, store: np.ndarray, index: _Index) -> ImageDataset:
    """Choose the faster kind of dataset where all images have one size."""
    shape = index.shapes[0] if len(index.shapes) else np.zeros(3)
    if shape.all() and (index.shapes == shape).all():
        return _CachedArray(dataset, store, index)
    return _Cached(dataset, store, index)
