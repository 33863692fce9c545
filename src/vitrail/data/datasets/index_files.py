"""Indexes of large datasets on disk: built once, then mapped into memory by every process.

One folder per dataset in the cache: index.json, and one .npy file per array. An index remembers
the folders or files that it was made from, with their times, and is made anew when one changed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.mapped import INDEX, index_place, load_arrays, save_arrays
from vitrail.data.datasets.sparse_labels import label_arrays, labels_of
from vitrail.files import lock_folder

WORTH_KEEPING = 100_000
"""Images from which on an index is kept: fewer are found within a second."""
_VERSION = 3
_SETTLED = 2_000_000_000  # ns: later changes of a folder have another time, on any file system


@dataclass(frozen=True)
class DatasetIndex:
    """Where the images of a dataset are, and their labels."""

    classes: tuple[str, ...]
    labels: np.ndarray
    names: Names
    made_from: tuple[tuple[str, int], ...]
    """The folders or files that were read, and when each was last changed, in ns."""
    places: np.ndarray | None = None
    """Shard, offset and size of each image, where they are in shards."""
    notes: tuple[str, ...] = ()

    def part(self, indices: np.ndarray) -> DatasetIndex:
        """Select some of the images, in a given order."""
        return replace(
            self,
            labels=self.labels.take(indices),
            names=self.names.take(indices),
            places=None if self.places is None else self.places[indices],
        )


def changed_at(path: str | bytes | os.PathLike[str]) -> int:
    """Return when a file or folder was last changed, in ns; -1 if it is gone."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


def keep_index(
    root: Path,
    key: str,
    build: Callable[[], DatasetIndex],
    *,
    always: bool = False,
    finish: Callable[[DatasetIndex], object] = lambda index: None,
) -> DatasetIndex:
    """Load the index of a dataset, or build it and, if it is large or `always`, keep it.

    Processes that start together build it one after the other, so that all but the first load it.
    `finish` is called once with an index that was kept, to keep beside it what takes long to find.
    """
    place = index_place(key)
    found = _load(place, key)
    if found is not None:
        return found
    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks
            stack.enter_context(lock_folder(root))
        found = _load(place, key)
        if found is None:
            found = build()
            if always or len(found.names) >= WORTH_KEEPING:
                with suppress(OSError):  # a full or read-only disk costs time, not the run
                    _save(place, key, found)
                    if mapped := _load(place, key):  # as in the other processes
                        finish(mapped)
                        found = mapped
        return found


def keep_part(
    root: Path, key: str, whole: DatasetIndex, choose: Callable[[], np.ndarray]
) -> DatasetIndex:
    """Select some of a dataset's images; if it is large, the part has an index of its own.

    So no process holds a copy, and the choice, which looks at every name, is made once.
    """
    if len(whole.names) < WORTH_KEEPING:
        return whole.part(choose())
    return keep_index(root, key, lambda: whole.part(choose()), always=True)


def _arrays(index: DatasetIndex) -> dict[str, np.ndarray]:
    found = {"text": index.names.text, "ends": index.names.ends, **label_arrays(index.labels)}
    return found if index.places is None else {**found, "places": index.places}


def _save(place: Path, key: str, index: DatasetIndex) -> None:
    if _newest(index.made_from) > time.time_ns() - _SETTLED:
        return  # what changes in the same moment could not be told from what was read
    facts = {
        "version": _VERSION,
        "key": key,
        "classes": index.classes,
        "names": index.names.hashed,
        "made_from": index.made_from,
        "notes": index.notes,
    }
    save_arrays(place, _arrays(index), facts)


def _newest(made_from: Iterable[tuple[str, int]]) -> int:
    return max((changed for _, changed in made_from), default=0)


def _load(place: Path, key: str) -> DatasetIndex | None:
    """Map an index; None if there is none, or if something that it was made from has changed."""
    try:
        facts = json.loads((place / INDEX).read_text(encoding="utf-8"))
        if (facts["version"], facts["key"]) != (_VERSION, key):
            return None
        made_from = tuple((path, changed) for path, changed in facts["made_from"])
        if any(changed_at(path) != changed for path, changed in made_from):
            return None
        arrays = load_arrays(place)
        names = Names.of(arrays["text"], arrays["ends"], facts["names"])
        labels = labels_of(arrays, len(facts["classes"]))
        if len(labels) != len(names) or (len(names) and names.ends[-1] != len(names.text)):
            return None
        return DatasetIndex(
            classes=tuple(facts["classes"]),
            labels=labels,
            names=names,
            made_from=made_from,
            places=arrays.get("places"),
            notes=tuple(facts["notes"]),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None
