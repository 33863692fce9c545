"""Features on disk: parts that are whole or not there, under a key of all that decides them.

    CACHE/features/KEY/000000.npz, 000001.npz, …

A part is a fixed run of images. Whoever is stopped leaves finished parts, and the next one goes
on with the others. A damaged part counts as missing (npz has checksums). The folder may be removed
at any time; past its limit the entries that were not used for longest go.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.data.batches import UnreadableImage
from vitrail.download import cache_folder

LIMIT = 10 * 10**9
"""Bytes of features that are kept; a million images of ViT-B/16 take 3 of 10 GB."""
_STALE = 3600  # seconds, after which nobody writes a part any more
log = logging.getLogger("vitrail")


@dataclass(frozen=True, kw_only=True)
class FeaturePart:
    """The features of some images in a row; those that could not be read are only named."""

    values: np.ndarray
    """(n, width), float32."""
    labels: np.ndarray
    """(n) class numbers, or (n, classes) of 0 and 1."""
    names: np.ndarray
    """(n) each image's name, text."""
    bad: tuple[UnreadableImage, ...]


def features_folder() -> Path:
    """Say where features are kept: `features` in the cache folder."""
    return cache_folder() / "features"


def key_of(facts: list[Any]) -> str:
    """Name an entry by all that decides its content, as plain data."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


class CacheEntry:
    """The parts of one set's features; without a folder none are kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, number: int) -> FeaturePart | None:
        """Read a part, if it is there and whole."""
        if self._folder is None:
            return None
        path = self._path(number)
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                bad = tuple(UnreadableImage(*row) for row in file["bad"].tolist())
                values, labels, names = (file[name] for name in ("values", "labels", "names"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            log.warning("%s is damaged; its features are computed again", path)
            return None
        return FeaturePart(values=values, labels=labels, names=names, bad=bad)

    def put(self, number: int, part: FeaturePart) -> None:
        """Keep a part."""
        if self._folder is None:
            return
        path = self._path(number)
        new = path.with_name(f".{number}-{os.getpid()}.npz")
        bad = np.array([(each.where, each.reason, each.kind) for each in part.bad], np.str_)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(
                new,
                values=part.values,
                labels=part.labels,
                names=part.names,
                bad=bad.reshape(-1, 3),
            )
            os.replace(new, path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            hint = "free some space, or set VITRAIL_CACHE to another folder"
            raise InputError(f"cannot write {path}: {error.strerror}; {hint}") from None

    def finish(self, limit: int = LIMIT) -> None:
        """Mark the entry as used just now; remove the oldest others until all are in the limit."""
        if self._folder is None:
            return
        with suppress(OSError):
            for left in self._folder.glob(".*"):  # by whoever was killed while writing
                if time.time() - left.stat().st_mtime > _STALE:
                    left.unlink(missing_ok=True)
            os.utime(self._folder)
            _prune(self._folder, limit)

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number:06}.npz"


def _prune(used: Path, limit: int) -> None:
    sizes = {
        entry: sum(file.stat().st_size for file in entry.iterdir())
        for entry in used.parent.iterdir()
        if entry.is_dir()
    }
    total = sum(sizes.values())
    for entry in sorted(sizes, key=lambda entry: entry.stat().st_mtime):
        if total <= limit:
            return
        if entry != used:
            shutil.rmtree(entry, ignore_errors=True)
            total -= sizes[entry]
