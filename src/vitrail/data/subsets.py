"""Subsets of datasets: random, balanced, and k images per class for few-shot evaluation.

Subsets of one seed are nested: each is contained in every larger one, as the paper's data study
needs (Figure 4: 9M, 30M, 90M and 300M images of one dataset). DATA asks for one at its end:
`cifar10,take=5000`, `photos/,take=10%,seed=1`, `photos/,per_class=10`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.kept_selection import keep_selection
from vitrail.data.rng import shuffle_keys, shuffled
from vitrail.data.smallest import grouped_places, smallest_keys
from vitrail.data.split import members, round_half_up
from vitrail.text import quoted

_SUBSET = re.compile(r"(.+?)((?:,(?:take|per_class)=[^,]*)(?:,(?:take|per_class|seed)=[^,]*)*)")


@dataclass(frozen=True)
class SubsetOptions:
    """What DATA asks for at its end."""

    take: int | float | None = None
    """A number of images, or a fraction of them."""
    per_class: int | None = None
    seed: int = 0

    def of(self, dataset: ImageDataset) -> ImageDataset:
        """Sample the subset of a dataset."""
        if self.per_class is not None:
            return shots(dataset, self.per_class, self.seed)
        assert self.take is not None
        return subset(dataset, self.take, self.seed)


def split_subset(text: str) -> tuple[str, SubsetOptions | None]:
    """Split DATA into the dataset and the subset that is asked for, if one is."""
    found = _SUBSET.fullmatch(text)
    if found is None:
        return text, None
    pairs = [option.split("=") for option in found[2].removeprefix(",").split(",")]
    options = dict(pairs)
    if len(options) < len(pairs) or {"take", "per_class"} <= options.keys():
        raise InputError(f"{text}: give take or per_class, and each option once")
    take, per_class = options.get("take"), options.get("per_class")
    return found[1], SubsetOptions(
        take=None if take is None else _read_take(take, text),
        per_class=None if per_class is None else _read_count("per_class", per_class, text),
        seed=_read_count("seed", options.get("seed", "0"), text, least=0),
    )


def _read_take(written: str, text: str) -> int | float:
    percent = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+) ?%", written)
    if percent is None:
        return _read_count("take", written, text)
    if not 0 < float(percent[1]) <= 100:
        raise InputError(f"{text}: take must be in (0 %, 100 %], got {written}")
    return round(float(percent[1]) / 100, 12)  # as it was written: 0.07 for 7 %


def _read_count(name: str, written: str, text: str, *, least: int = 1) -> int:
    if not re.fullmatch(r"\d[\d_]*", written) or int(written) < least:
        either = " or a percentage, such as 10%" if name == "take" else ""
        raise InputError(
            f"{text}: {name} must be a whole number of at least {least}{either}, got {written!r}"
        )
    return int(written)


def subset(dataset: ImageDataset, count: int | float, seed: int) -> ImageDataset:
    """Sample images at random: a number of them (int), or a fraction of the dataset (float)."""

    def choose(number: int) -> np.ndarray:
        keys = partial(shuffle_keys, seed=seed, purpose="subset")
        return smallest_keys(keys, len(dataset), np.array([number]))

    return _first(dataset, choose, count, seed)


def balanced_subset(dataset: ImageDataset, count: int | float, seed: int) -> ImageDataset:
    """Sample images at random, as equally many of each class as there are."""
    _check_one_label(dataset, "a balanced subset")

    def choose(number: int) -> np.ndarray:
        order = shuffled(len(dataset), seed, "subset")
        rounds = np.empty(len(dataset), np.int64)  # in which each image is its class's turn
        for group in members(dataset.labels[order], len(dataset.classes)):
            rounds[order[group]] = np.arange(len(group))
        marked = np.zeros(len(dataset), bool)
        marked[order[np.argsort(rounds[order], kind="stable")[:number]]] = True
        return marked

    return _first(dataset, choose, count, ("balanced", seed))


def shots(dataset: ImageDataset, k: int, seed: int) -> ImageDataset:
    """Sample k images of each class: the first k of a random permutation of each.

    One NumPy generator makes all the permutations, in class order.
    """
    _check_one_label(dataset, "sampling shots")
    if k < 1:
        raise InputError(f"expected at least one shot per class, got {k}")
    generator = np.random.default_rng(seed)
    counts, places = dataset.class_counts(), []
    for name, count, end in zip(dataset.classes, counts.tolist(), np.cumsum(counts), strict=True):
        if count < k:
            short = f"{dataset.name} has {count} of class {quoted([name])}"
            raise InputError(f"{short}: too few for {k} per class")
        places.append(generator.permutation(count)[:k] + end - count)
    wanted = np.concatenate(places)  # among the images as sorted by class
    order = np.argsort(wanted)
    chosen = np.empty(len(wanted), np.int64)
    for start, here in grouped_places(dataset.labels, counts):
        found = np.minimum(np.searchsorted(wanted, here, sorter=order), len(wanted) - 1)
        hits = np.flatnonzero(wanted[order[found]] == here)
        chosen[order[found[hits]]] = start + hits
    return select(dataset, chosen, f"{dataset.name} ({k} shots)")


def _first(
    dataset: ImageDataset, choose: Callable[[int], np.ndarray], count: int | float, what: object
) -> ImageDataset:
    """Select as many images as `choose` marks; `what` names how it chooses."""
    total = len(dataset)
    if isinstance(count, float):
        if not 0 < count <= 1:
            raise InputError(f"the fraction of {dataset.name} must be in (0, 1], got {count}")
        count = max(1, round_half_up(count, total))
    if not 0 < count <= total:
        raise InputError(f"{dataset.name} has {total:,} images; {count:,} of them can't be taken")
    return keep_selection(
        dataset,
        ("subset", count, what),
        lambda: choose(count),
        f"{dataset.name} ({count:,} of {total:,})",
    )


def _check_one_label(dataset: ImageDataset, what: str) -> None:
    if dataset.labels.ndim == 2:
        has = "numbers" if dataset.regression else "several"
        raise InputError(f"{what} needs one label per image; {dataset.name} has {has}")
