"""Splits: what `train`, `val`, `test` and `all` mean for a dataset, and how images are held out.

`train` is the whole training split, `val` the validation split or else the test split, `all`
everything. A dataset without splits gives a tenth of each class to `val` and the rest to `train`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.kept_selection import keep_selection
from vitrail.data.grouped_split import assign_group_folds
from vitrail.data.name_hashes import name_hashes
from vitrail.data.smallest import smallest_keys

SPLITS = ("train", "val", "test")
HELD_OUT = 0.1
"""The fraction of a dataset without splits that becomes `val`."""
_SPELLINGS = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "validating": "val",
    "dev": "val",
    "eval": "val",
    "evaluation": "val",
    "testing": "test",
}
_FILLERS = "set|sets|data|dataset|datasets|image|images|img|imgs|photos|files|split|folder"
_NOTHING = re.compile(rf"{_FILLERS}|seg|(19|20)\d\d")
_WORD = re.compile(rf"({'|'.join((*SPLITS, *_SPELLINGS))})({_FILLERS})?((?:19|20)\d\d)?")


class NoSplitError(InputError):
    """A dataset does not have the requested split."""


def spell(word: str) -> str:
    """Return the usual name of a split (`training_set` is `train`); other words unchanged."""
    found, rest = split_word(word)
    return found if found and not rest else word


def split_word(word: str) -> tuple[str | None, str]:
    """Find the split that a name speaks of, if any, and the rest of the name: `cats_train`."""
    parts = [part for part in re.split(r"[\W_]+", word.lower()) if part]
    spoken = [match for match in map(_WORD.fullmatch, parts) if match]
    if len(spoken) != 1:
        return None, word
    rest = [part for part in parts if not _WORD.fullmatch(part) and not _NOTHING.fullmatch(part)]
    return _SPELLINGS.get(spoken[0][1], spoken[0][1]), " ".join(rest)


def choose_split(asked: str, there: Sequence[str], name: str) -> str:
    """Choose which of a dataset's splits is meant by the one asked for."""
    known = (*there, "all")
    if asked in known:
        return asked
    if asked == "val" and "test" in there:
        return "test"
    hint = suggest(asked, there)  # "all" is near "val", but never meant by it
    raise NoSplitError(f"{name} has no split {asked!r}; it has {', '.join(known)}{hint}")


def split_indices(dataset: ImageDataset, asked: str, seed: int) -> np.ndarray:
    """Return the indices of `train`, `val` or `all` of a dataset without splits."""
    if choose_split(asked, ("train", "val"), dataset.name) == "all":
        return np.arange(len(dataset))
    return np.flatnonzero(_held_out(dataset, HELD_OUT, seed) == (asked == "val"))


def split_dataset(
    dataset: ImageDataset, fraction: float, seed: int
) -> tuple[ImageDataset, ImageDataset]:
    """Split into the rest and a held-out fraction, the same of each class.

    A class of two or more images gives at least one and keeps at least one. Names decide, not
    positions: adding an image to the dataset moves at most one of the others.
    """
    if not 0 < fraction < 1:
        raise InputError(f"the held-out fraction must be in (0, 1), got {fraction}")
    what, chosen = (fraction, seed), cache(lambda: _held_out(dataset, fraction, seed))
    return (
        keep_selection(dataset, ("rest", what), lambda: ~chosen()),
        keep_selection(
            dataset,
            ("held out", what),
            chosen,
            f"{plain_name(dataset)} (held out)",
        ),
    )


def plain_name(dataset: ImageDataset) -> str:
    """Name a dataset without the remark that it is all of one without splits."""
    return dataset.name.removesuffix(" (all)")


def _held_out(dataset: ImageDataset, fraction: float, seed: int) -> np.ndarray:
    """Mark the images to hold out: in each class, those with the smallest hashes."""
    keys = name_hashes(dataset, seed)
    if dataset.labels.ndim == 2:
        return smallest_keys(keys, len(dataset), np.array([_share(fraction, len(dataset))]))
    counts = dataset.class_counts()
    wanted = np.array([_share(fraction, count) for count in counts.tolist()], np.int64)
    return smallest_keys(keys, dataset.labels, wanted)


def _share(fraction: float, total: int) -> int:
    """Count the images to hold out of a class: at least one, and one is kept."""
    return min(max(round_half_up(fraction, total), 1), total - 1) if total > 1 else 0


def members(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """List the positions of each class's images, in their order."""
    counts = np.bincount(labels, minlength=classes)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


def sample_order(labels: np.ndarray, classes: int, seed: int) -> list[np.ndarray]:
    """Return the positions of each class's images in a random order given by the seed.

    A class's order does not depend on the other classes.
    """
    return [_generator(seed).permutation(each) for each in members(labels, classes)]


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"--seed must be at least 0, got {seed}")
    return np.random.default_rng(seed)


def round_half_up(fraction: float, total: int) -> int:
    """Round a fraction of a total, taking the decimal that was written, not its binary value."""
    return math.floor(Fraction(str(fraction)) * total + Fraction(1, 2))


def assign_folds(
    labels: np.ndarray, classes: int, folds: int, *, seed: int = 0, groups: np.ndarray | None = None
) -> np.ndarray:
    """Assign a fold to each image (n), from 0; images of one group share theirs.

    Without groups, each class's images are dealt in turn, and the next class goes on where the last
    one stopped.
    """
    _check_fold_count(folds, len(labels) if groups is None else None)
    found = np.full(len(labels), -1)
    if groups is None:
        start = 0
        for order in sample_order(labels, classes, seed):
            found[order] = (start + np.arange(len(order))) % folds
            start += len(order)
        return found
    return assign_group_folds(labels, classes, folds, groups, _generator(seed))


def hash_folds(
    labels: np.ndarray, classes: Sequence[str], folds: int, keys: np.ndarray
) -> np.ndarray:
    """Assign a fold to each image (n), from 0, by the `keys` of its name and its class's name.

    A class is cut into `folds` parts along its keys, so that an image more moves at most one image
    from each part to the next.
    """
    _check_fold_count(folds, len(labels))
    found = np.full(len(labels), -1)
    for name, group in zip(classes, members(labels, len(classes)), strict=True):
        ranks = np.empty(len(group), np.int64)
        ranks[np.argsort(keys[group], kind="stable")] = np.arange(len(group))
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        first = int.from_bytes(digest, "little") % folds  # or small classes would miss the same
        found[group] = (first + (2 * ranks + 1) * folds // (2 * max(len(group), 1))) % folds
    while (sizes := np.bincount(found, minlength=folds)).min() == 0:  # of few images
        fullest = np.flatnonzero(found == sizes.argmax())
        found[fullest[keys[fullest].argmax()]] = sizes.argmin()
    return found


def _check_fold_count(folds: int, images: int | None) -> None:
    if folds < 2:
        raise InputError(f"--folds {folds}: expected 2 or more")
    if images is not None and images < folds:
        raise InputError(f"--folds {folds}: there are only {images:,} images")
