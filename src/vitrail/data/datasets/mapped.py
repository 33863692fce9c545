"""Large arrays in files that are mapped into memory, of which a process holds few pages at a time.

Mapped pages are shared and can be given back at any time: the next look maps them again. A process
that never did so would in the end count all that it ever looked at as its own.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.download import cache_folder
from vitrail.files import lock_folder, permit, sync, temporary_folder

INDEX = "index.json"
"""The file beside the arrays that says what they are."""
_LOOKS = 16  # at single values, before their pages, up to 2 MB each, are given back
_SMALL = 1 << 27  # bytes of arrays that may stay: giving back costs a look some 60 microseconds
_BLOCK = 1 << 20  # values that are read at a time
_building = threading.local()  # whether this thread holds the lock


class Lookups:
    """Looks at single values of arrays, counted so that their pages are given back in time."""

    def __init__(self, *arrays: np.ndarray) -> None:
        large = sum(array.nbytes for array in arrays) > _SMALL
        self._arrays, self._count = arrays if large else (), 0

    def count(self) -> None:
        """Count one; threads may count at the same time, as only the rough number matters."""
        self._count += 1
        if self._count % _LOOKS == 0:
            release_pages(*self._arrays)


def release_pages(*arrays: np.ndarray) -> None:
    """Give back the pages of arrays that are mapped from a file; others stay as they are."""
    for array in arrays:
        mapped = getattr(array, "_mmap", None)
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def is_mapped(*arrays: np.ndarray) -> bool:
    """Tell whether arrays are mapped from files."""
    return all(getattr(array, "_mmap", None) is not None for array in arrays)


def blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array in parts, whose pages are given back one after the other."""
    for start in range(0, len(array), _BLOCK):
        yield np.ascontiguousarray(array[start : start + _BLOCK])
        release_pages(array)


@dataclass(frozen=True)
class Parts:
    """An array that is made part by part, so that it is written without being held whole."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], Iterator[np.ndarray]]

    def whole(self) -> np.ndarray:
        """Put the parts together in memory."""
        return np.concatenate([np.empty((0, *self.shape[1:]), self.dtype), *self.make()])


def keep_arrays(
    key: str, build: Callable[[], Mapping[str, np.ndarray | Parts]]
) -> dict[str, np.ndarray]:
    """Map arrays that were built once and kept in the cache, or build them.

    Processes that start together build them one after the other, so that all but the first map
    them. The key must say all that they depend on.
    """
    place = index_place(key)
    with suppress(OSError, ValueError):
        return load_arrays(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError:  # a full or read-only disk costs time, not the run
        return _hold(build())
    with ExitStack() as stack:
        if not getattr(_building, "now", False):  # or what needs other arrays would wait for itself
            stack.callback(setattr, _building, "now", False)
            _building.now = True
            with suppress(OSError):  # a file system without locks
                stack.enter_context(lock_folder(place.parent))
        with suppress(OSError, ValueError):
            return load_arrays(place)
        built = build()
        with suppress(OSError, ValueError):
            save_arrays(place, built)
            return load_arrays(place)
        return _hold(built)


def _hold(arrays: Mapping[str, np.ndarray | Parts]) -> dict[str, np.ndarray]:
    return {
        name: array.whole() if isinstance(array, Parts) else array for name, array in arrays.items()
    }


def index_place(key: str) -> Path:
    """Name the folder of an index in the cache."""
    return cache_folder() / "index" / hashlib.sha256(os.fsencode(key)).hexdigest()[:32]


def load_arrays(place: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a folder; OSError or ValueError if it is not there or damaged."""
    names = json.loads((place / INDEX).read_text(encoding="utf-8"))["arrays"]
    return {
        name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names
    }


def save_arrays(
    place: Path, arrays: Mapping[str, np.ndarray | Parts], facts: Mapping[str, Any] | None = None
) -> None:
    """Write arrays, with facts on them, to a folder that is whole or not there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(f".{place.name}-", place.parent) as folder:
        whole = folder / "whole"
        whole.mkdir()
        for name, array in arrays.items():
            _save(whole / f"{name}.npy", array)
        text = json.dumps({**(facts or {}), "arrays": list(arrays)})
        (whole / INDEX).write_text(text, encoding="utf-8")
        for path in (*whole.iterdir(), whole):
            sync(path)  # or a crash of the machine leaves files of the right size and zeros
        permit(whole)
        if place.exists():
            place.rename(folder / "old")
        whole.rename(place)


def _save(path: Path, array: np.ndarray | Parts) -> None:
    if not isinstance(array, Parts):
        np.save(path, array)
        return
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in array.make():
            file.write(np.ascontiguousarray(part, array.dtype).data)
