"""The features of a dataset's images, with their labels and names, and whether two fit together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.data.batches import UnreadableImage
from vitrail.data.decoding.reading import Reading
from vitrail.evaluation.features.mapped_rows import split_rows, take_rows
from vitrail.text import quoted


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of a dataset's images, in its order, with their labels and names."""

    name: str
    """The dataset's name."""
    classes: tuple[str, ...]
    values: np.ndarray
    """(n, width), float32; where they are many, in a mapped file (mapped_rows.py)."""
    labels: np.ndarray
    """(n) class numbers, int64; (n, classes) of 0 and 1 where images have several labels."""
    names: np.ndarray
    """(n) each image's name, text."""
    bad: tuple[UnreadableImage, ...] = ()
    """Images that could not be read and have no row here."""
    reading: Reading | None = None
    """How their files became 8 bits."""

    def __len__(self) -> int:
        return len(self.values)

    def __post_init__(self) -> None:
        """Refuse features that nothing can be evaluated on; nothing is renumbered or left out."""
        if not len(self.values):
            bad = f": none of {len(self.bad):,} can be read" if self.bad else ""
            raise InputError(f"{self.name} has no images to evaluate on{bad}")
        assert len(self.values) == len(self.labels) == len(self.names)
        blocks = split_rows(*self.values.shape)
        finite = np.concatenate([np.isfinite(self.values[each]).all(axis=1) for each in blocks])
        if not finite.all():
            first = np.flatnonzero(~finite)[0]
            count = f"{np.sum(~finite):,} of {len(self):,} images"
            raise InputError(
                f"{self.name}: the features of {count} are NaN or infinite, the first is "
                f"{self.names[first]}; the weights are damaged, or they overflow"
            )
        labels, known = self.labels, len(self.classes)
        if labels.ndim == 1 and (labels.min() < 0 or labels.max() >= known):
            stray = labels[(labels < 0) | (labels >= known)][0]
            raise InputError(
                f"{self.name}: label {stray} is outside the {known:,} classes (0 to {known - 1})"
            )
        if labels.ndim == 2 and labels.shape[1] != known:
            raise InputError(f"{self.name}: {labels.shape[1]} labels per image, {known} classes")


def check_pair(train: Features, test: Features) -> None:
    """Refuse two datasets whose labels mean different things, or with several labels per image."""
    for each in (train, test):
        if each.labels.ndim == 2:
            has = "numbers" if each.labels.dtype.kind == "f" else "several labels"
            raise InputError(f"{each.name} has {has} per image; expected one class each")
    if train.classes != test.classes:
        here, there = (set(each.classes) for each in (train, test))
        lone = [f"{quoted(sorted(here - there))} only in {train.name}"] if here - there else []
        lone += [f"{quoted(sorted(there - here))} only in {test.name}"] if there - here else []
        why = "; ".join(lone) or "the same names in another order"
        raise InputError(f"the classes of {train.name} and {test.name} differ: {why}")
    if train.values.shape[1] != test.values.shape[1]:
        widths = f"{train.values.shape[1]} and {test.values.shape[1]}"
        raise InputError(f"{train.name} and {test.name} have features of widths {widths}")


def take_features(features: Features, chosen: np.ndarray) -> Features:
    """Select images by their positions, or by True and False."""
    rows = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    values = take_rows(torch.from_numpy(features.values), torch.from_numpy(rows)).numpy()
    labels, names = features.labels[rows], features.names[rows]
    return replace(features, values=values, labels=labels, names=names)
