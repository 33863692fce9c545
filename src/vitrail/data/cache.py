"""Images decoded once and cached as uint8, in memory or on disk.

The cache is filled before training and never changes, so that any number of processes can read it.
Images that exceed its limit or can't be decoded are read from the dataset as before.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
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
from vitrail.files import sync, temporary_folder

_VERSION = 1
_CHUNK = 16  # images that a thread decodes at a time


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Whether and where decoded images are cached."""

    limit: NonNegativeFloat = 0.0
    """Largest size in gigabytes; 0 turns the cache off."""
    folder: Path | None = None
    """Where to keep it on disk, for later runs too. Default: in memory."""
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
    images = _decode_all(dataset, preprocess, config, workers, report)
    if config.folder is None:
        return _open(dataset, *_fill(images, len(dataset), limit))
    key = _key(dataset, preprocess, config)
    folder = config.folder.expanduser() / key
    if not (folder / "index.npz").is_file():
        try:
            _write(folder, images, len(dataset), limit)
        except OSError as error:
            raise InputError(f"{config.folder}: the cache could not be written: {error}") from None
    try:
        store, index = _read(folder)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        text = f"{folder}: the cache is damaged; remove it and it is made again"
        raise InputError(text) from None
    return _open(dataset, store, index)


def _read(folder: Path) -> tuple[np.ndarray, _Index]:
    """Memory-map a cache on disk; raise one of several errors if it is damaged."""
    # Opened here, because NumPy leaves a damaged file open.
    with (folder / "index.npz").open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        index = _Index(file["offsets"], file["shapes"])
    size = (folder / "pixels.bin").stat().st_size
    if size != int(index.shapes.prod(axis=1).sum()):
        raise ValueError("another size")
    store = np.memmap(folder / "pixels.bin", np.uint8, "r") if size else np.empty(0, np.uint8)
    return store, index


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
    """Copy images into memory one after the other, up to a limit."""
    index = _empty_index(count)
    kept = [image.reshape(-1) for image in _admit(images, index, limit)]
    return np.concatenate(kept) if kept else np.empty(0, np.uint8), index


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


def _key(dataset: ImageDataset, preprocess: Preprocess, config: CacheConfig) -> str:
    """Hash everything that decides the cache's content."""
    what = [_VERSION, dataset.stamp(), preprocess.channels, config.short_side, config.limit]
    if config.short_side is not None:
        what += [preprocess.interpolation, preprocess.antialias]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


def _open(dataset: ImageDataset, store: np.ndarray, index: _Index) -> ImageDataset:
    """Choose the faster kind of dataset where all images have one size."""
    shape = index.shapes[0] if len(index.shapes) else np.zeros(3)
    if shape.all() and (index.shapes == shape).all():
        return _CachedArray(dataset, store, index)
    return _Cached(dataset, store, index)
