"""Features of the same images in another dataset: one more class computes only its own images.

Beside its parts, an entry of the cache has `images.npz`: the key of all that decides features but
the images, and a stamp (path, size, time) of each image that has features.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from contextlib import suppress
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
        stamps[name] = f"{path} {status.st_size} {status.st_mtime_ns}"
    return stamps


def keep_stamps(folder: Path, key: str, names: np.ndarray, stamps: dict[str, str]) -> None:
    """Note which images an entry's rows are of; what can't be written is computed again one day."""
    new = folder / f".images-{os.getpid()}.npz"
    with suppress(OSError):
        np.savez(new, key=np.array(key), stamps=np.array([stamps[name] for name in names]))
        os.replace(new, folder / _IMAGES)


def find_rows(cache: Path, key: str, stamps: dict[str, str]) -> dict[str, np.ndarray]:
    """Find the features of images (by name) that other entries of the cache hold already."""
    wanted = {stamp: name for name, stamp in stamps.items()}
    found: dict[str, np.ndarray] = {}
    for path in sorted(cache.glob(f"*/{_IMAGES}")):
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            with np.load(path, allow_pickle=False) as file:
                there = file["stamps"].tolist() if file["key"].item() == key else []
            if wanted.keys().isdisjoint(there):
                continue
            rows = np.concatenate([part.values for part in _parts(path.parent)])
            if len(rows) != len(there):
                continue
            for row, stamp in zip(rows, there, strict=True):
                if stamp in wanted:
                    found[wanted[stamp]] = row
    return found


def _parts(folder: Path) -> list[FeaturePart]:
    entry = CacheEntry(folder)
    numbers = range(len(list(folder.glob("[0-9]*.npz"))))
    return [part for number in numbers if (part := entry.get(number)) is not None]
