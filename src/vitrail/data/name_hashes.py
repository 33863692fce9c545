"""Hashes of all names of a dataset, by which images are held out and found again.

For a large dataset they are made by several processes and kept beside its index.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from contextlib import nullcontext
from functools import partial

import numpy as np

from vitrail.console import show_progress
from vitrail.data.dataset import ImageDataset, Selection
from vitrail.data.datasets.mapped import is_mapped, keep_arrays, release_pages
from vitrail.data.datasets.sparse_labels import label_arrays
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.smallest import Keys

_SOME = 1 << 18  # names that are hashed together
_MANY = 1 << 20  # names from which on processes share the work


def name_hashes(dataset: ImageDataset, seed: int = 0) -> Keys:
    """Hash all names with a seed; the hashes are given a block at a time."""
    chosen: np.ndarray | None = None
    while isinstance(dataset, Selection):  # which names its images as the dataset behind does
        own = dataset.indices
        chosen = own if chosen is None else own[chosen]
        dataset = dataset.dataset
    hashes = _keep_hashes(dataset, seed)

    def give(start: int, stop: int) -> np.ndarray:
        rows = slice(start, stop) if chosen is None else chosen[start:stop]
        found = np.array(hashes[rows])
        release_pages(hashes, *(() if chosen is None else (chosen,)))
        return found

    return give


def find_names(dataset: ImageDataset, names: Collection[str]) -> dict[str, list[int]]:
    """Find images by their names; a name that no image has is left out."""
    wanted = {_hash(name.encode("utf-8", "surrogateescape"), _key(0)): name for name in names}
    if not wanted:
        return {}
    sought = np.sort(np.frombuffer(b"".join(wanted), "<u8"))
    sought_names = frozenset(names)
    keys, found = name_hashes(dataset), dict[str, list[int]]()
    for start in range(0, len(dataset), _MANY):
        here = keys(start, min(start + _MANY, len(dataset)))
        places = np.minimum(np.searchsorted(sought, here), len(sought) - 1)
        for row in np.flatnonzero(sought[places] == here).tolist():
            name = dataset.where(start + row)
            if name in sought_names:
                found.setdefault(name, []).append(start + row)
    return found


def _keep_hashes(dataset: ImageDataset, seed: int) -> np.ndarray:
    def make() -> dict[str, np.ndarray]:
        return {"hashes": _hash_all(dataset, seed)}

    if not is_mapped(*label_arrays(dataset.labels).values()):
        return make()["hashes"]
    return keep_arrays(repr(("name hashes", _key(seed), dataset.identity())), make)["hashes"]


def _hash_all(dataset: ImageDataset, seed: int) -> np.ndarray:
    count = len(dataset)
    parts = [(start, min(start + _SOME, count)) for start in range(0, count, _SOME)]
    # Elsewhere processes would be sent all names, which takes longer than hashing them.
    many = count >= _MANY and sys.platform == "linux"
    config = LoaderConfig(kind="processes") if many else LoaderConfig(workers=0)
    found, done = np.empty(count, "<u8"), 0
    with show_progress("names", count) if many else nullcontext() as report:
        for some in Loader(partial(_hash_part, dataset, _key(seed)), parts, config):
            hashed = np.frombuffer(some, "<u8")
            found[done : done + len(hashed)] = hashed
            done += len(hashed)
            if report:
                report(done)
    return found


def _hash_part(dataset: ImageDataset, key: bytes, part: tuple[int, int]) -> bytes:
    return b"".join([_hash(name, key) for name in dataset.encoded_names(*part)])


def _hash(name: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(name, digest_size=8, key=key).digest()


def _key(seed: int) -> bytes:
    return (seed % 2**64).to_bytes(8, "little")
