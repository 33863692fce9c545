"""Features of the same images in another dataset: one more class computes only its own images.

Beside its parts, an entry of the cache has `images.npz`: the key of all that decides features but
the images, and a stamp (of path, size, time) of each image that has features.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.features.feature_store import CacheEntry, FeaturePart

_IMAGES = "images.npz"


def stamp_images(dataset: ImageDataset) -> dict[str, str] | None:
    """Stamp each image file by its path, size and time; None if the images are not files."""
    if dataset.root is None:
        return None
    stamps: dict[str, str] = {}
    for index in range(len(dataset)):
        name = dataset.where(index)
        path = os.path.abspath(dataset.root / name)
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        text = f"{path} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape")
        stamps[name] = hashlib.blake2b(text, digest_size=12).hexdigest()
    return stamps


def keep_stamps(folder: Path, key: str, names: np.ndarray, stamps: dict[str, str]) -> None:
    """Note which images an entry's rows are of; what can't be written is computed again one day."""
    new = folder / f".images-{os.getpid()}.npz"
    with suppress(OSError):
        np.savez(new, key=np.array(key), stamps=np.array([stamps[name] for name in names]))
        os.replace(new, folder / _IMAGES)


RowPlace = tuple[tuple[Path, int] | None, int]
"""A row's place: an entry's folder and part, or None for those just computed; the row there."""


def find_rows(cache: Path, key: str, stamps: dict[str, str]) -> dict[str, RowPlace]:
    """Find the features of images (by name) that other entries of the cache hold already."""
    wanted = {stamp: name for name, stamp in stamps.items()}
    found: dict[str, RowPlace] = {}
    for path in sorted(cache.glob(f"*/{_IMAGES}")):
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            with np.load(path, allow_pickle=False) as file:
                there = file["stamps"].tolist() if file["key"].item() == key else []
            if wanted.keys().isdisjoint(there):
                continue
            places = _list_places(path.parent)
            if len(places) != len(there):
                continue
            for place, stamp in zip(places, there, strict=True):
                if stamp in wanted:
                    found[wanted[stamp]] = place
    return found


def row_reader(computed: np.ndarray) -> Callable[[list[RowPlace]], np.ndarray]:
    """Make a reader of rows by their places; it holds few parts at a time."""

    @lru_cache(maxsize=4)
    def part_of(folder: Path, number: int) -> FeaturePart:
        part = CacheEntry(folder).get(number)
        assert part is not None, f"{folder}: part {number} vanished while it was read"
        return part

    def read(places: list[RowPlace]) -> np.ndarray:
        rows = [(computed if at is None else part_of(*at).values)[row] for at, row in places]
        return np.stack(rows) if rows else computed[:0]

    return read


def _list_places(folder: Path) -> list[RowPlace]:
    entry, places = CacheEntry(folder), list[RowPlace]()
    for number in range(len(list(folder.glob("[0-9]*.npz")))):
        part = entry.get(number)
        places += [((folder, number), row) for row in range(0 if part is None else len(part.names))]
    return places
