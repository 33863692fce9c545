"""Splits: what `train`, `val`, `test` and `all` mean for a set, and how a part is held out.

`train` is the whole training split, `val` the set's own or else its test split, `all` everything.
A set that comes in one piece gives a tenth of each class to `val` and the rest to `train`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset, select

SPLITS = ("train", "val", "test")
HELD_OUT = 0.1
"""The part of a set without splits that becomes `val`."""
_SPELLINGS = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "testing": "test",
}


class NoSplitError(InputError):
    """A set has no split of the name that was asked for."""


def spell(word: str) -> str:
    """Give the usual name of a split that goes by several; other words as they are."""
    lower = word.lower()
    return lower if lower in SPLITS else _SPELLINGS.get(lower, word)


def choose(asked: str, there: Sequence[str], name: str) -> str:
    """Say which of the splits that a set has is meant by the one asked for."""
    known = (*there, "all")
    if asked in known:
        return asked
    if asked == "val" and "test" in there:
        return "test"
    hint = suggest(asked, known)
    raise NoSplitError(f"{name} has no split {asked!r}; it has {', '.join(known)}{hint}")


def hold_out(source: ImageDataset, asked: str, seed: int) -> np.ndarray:
    """Find what `train`, `val` or `all` has of a set in one piece: the images' numbers."""
    if choose(asked, ("train", "val"), source.name) == "all":
        return np.arange(len(source))
    return np.flatnonzero(_held_out(source, HELD_OUT, seed) == (asked == "val"))


def split(source: ImageDataset, fraction: float, seed: int) -> tuple[ImageDataset, ImageDataset]:
    """Split into the rest and a held-out fraction, of each class alike.

    A class of two or more gives at least one image and keeps at least one. Names decide, not
    positions: one image more in the set moves at most one of the others.
    """
    if not 0 < fraction < 1:
        raise InputError(f"expected a part between 0 and 1 to hold out, got {fraction}")
    chosen = _held_out(source, fraction, seed)
    held_out = select(source, np.flatnonzero(chosen), f"{source.name} (held out)")
    return select(source, np.flatnonzero(~chosen)), held_out


def _held_out(source: ImageDataset, fraction: float, seed: int) -> np.ndarray:
    """Mark the images to hold out: those of each class with the smallest hashes."""
    hashes, chosen = _hashes(source, seed), np.zeros(len(source), bool)
    everything = [np.arange(len(source))]
    several = source.multilabel
    for group in everything if several else members(source.labels, len(source.classes)):
        count = round_half_up(fraction, len(group))
        count = min(max(count, 1), len(group) - 1) if len(group) > 1 else 0
        chosen[group[np.argsort(hashes[group], kind="stable")[:count]]] = True
    return chosen


def members(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """List the positions of each class's images, in their order."""
    counts = np.bincount(labels, minlength=classes)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


def sample_order(labels: np.ndarray, classes: int, seed: int) -> list[np.ndarray]:
    """Give the positions of each class's images in the order in which a seed samples them.

    A class's order does not depend on which other classes there are.
    """
    return [np.random.default_rng(seed).permutation(each) for each in members(labels, classes)]


def round_half_up(fraction: float, total: int) -> int:
    """Count a part of a whole; the decimal the user wrote, not its binary neighbor."""
    return math.floor(Fraction(str(fraction)) * total + Fraction(1, 2))


def _hashes(source: ImageDataset, seed: int) -> np.ndarray:
    key = (seed % 2**64).to_bytes(8, "little")
    digests = bytearray()
    for index in range(len(source)):
        name = source.where(index).encode("utf-8", "surrogateescape")
        digests += hashlib.blake2b(name, digest_size=8, key=key).digest()
    return np.frombuffer(digests, "<u8")
