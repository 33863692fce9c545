"""Check a dataset in one pass over its files: what it holds, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.checks.image_check import ImageChecker, ImageInfo, check_each_image
from vitrail.data.checks.near_duplicates import SMALLEST
from vitrail.data.checks.quick_check import say_clipped
from vitrail.data.checks.same_images import CheckedImage, group_same_images
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.groups import say_groups
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.open import Data, notes, open_splits
from vitrail.data.datasets.unreadable_list import (
    UNREADABLE_LIST,
    list_others,
    write_rows,
    write_unreadable_list,
)
from vitrail.data.decoding.decode import LIMITS, Limits
from vitrail.data.decoding.reading import show_level
from vitrail.data.loader import LoaderConfig
from vitrail.data.rng import shuffled
from vitrail.files import check_writable, make_folder
from vitrail.result import Result, ResultTable
from vitrail.text import encodable

CHUNK = 32  # images per task of a worker
MEASURED = 1_000  # images sampled for mean and std


@dataclass(frozen=True, kw_only=True)
class DatasetCheck(Result):
    """What a check of a dataset found."""

    images: int
    """Files that were checked, good and bad."""
    splits: dict[str, int]
    """Good images of each split."""
    classes: dict[str, dict[str, int]]
    """Good images of each class, by split."""
    bad: list[dict[str, str]]
    """Files that can't be used: split, path, reason, kind."""
    duplicates: list[list[str]]
    """Groups of the same image within a split, as `split: path`."""
    leaks: list[list[str]]
    """Groups of the same image in several splits."""
    conflicts: list[list[str]]
    """Groups of the same image under several classes."""
    near_duplicates: list[list[str]]
    """Groups of files that differ and look the same within a split, such as re-encoded ones."""
    near_leaks: list[list[str]]
    """Such groups in several splits."""
    tiny: list[str]
    """Images below 32 pixels and half the median, as `split: path`."""
    constant: list[str]
    """Images of one color, such as all black, as `split: path`."""
    clipped: dict[str, tuple[float, float]]
    """Images with values outside the levels of black and white, as `split: path`: their range."""
    levels: tuple[float, float] | None
    """Values of black and white in images of more than 8 bits, where one rule holds for all."""
    empty: list[str]
    """Classes without a good image, as `split: class`."""
    imbalance: float
    """Images of the largest class divided by those of the smallest, in the first split."""
    sizes: dict[str, list[int]]
    """Smallest, median and largest height and width."""
    modes: dict[str, int]
    """Images of each format and mode."""
    mean: list[float]
    """Mean of the pixels per channel, from 0 to 1, each image counting the same."""
    std: list[float]
    """Standard deviation of the pixels, likewise."""
    measured: int
    """Images that mean and std were computed on."""
    list: str | None = None
    """The file that lists the unreadable images, if it was written."""
    notes: tuple[str, ...] = ()
    """Remarks on the dataset, one line each."""

    def summary(self) -> Iterator[ResultTable | str]:
        """Show the classes first, problems last."""
        yield from self.notes
        rows = [(name, *(f"{n:,}" for n in each.values())) for name, each in self.classes.items()]
        yield ResultTable(("class", *self.splits), rows)
        kinds = Counter(bad["kind"] for bad in self.bad).most_common()
        why = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        skipped = f", {len(self.bad):,} unreadable: {why}" if self.bad else ""
        yield f"{self.images:,} files: {sum(self.splits.values()):,} good{skipped}"
        for axis, (low, middle, high) in self.sizes.items():
            yield f"{axis:9} {low:,} to {high:,} pixels, median {middle:,}"
        yield f"kinds     {', '.join(f'{n:,} {mode}' for mode, n in self.modes.items())}"
        yield f"largest class / smallest: {self.imbalance:.1f}"
        mean, std = (" ".join(f"{v:.4f}" for v in values) for values in (self.mean, self.std))
        yield f"mean      {mean}   std {std}   (of {self.measured:,} images)"
        for what, groups in self.same_images().items():
            if groups:
                shown = "; ".join(" = ".join(group[:3]) for group in groups[:3])
                rest = "; --out FILE.tsv lists them all" if len(groups) > 3 else ""
                yield f"{what}: {len(groups):,}, such as {shown}{rest}"
        if self.tiny:
            yield f"tiny images: {len(self.tiny):,}, such as {'; '.join(self.tiny[:3])}"
        if self.constant:
            some = "; ".join(self.constant[:3])
            yield f"images of one color: {len(self.constant):,}, such as {some}"
        if self.clipped and self.levels is not None:
            yield say_clipped(self.clipped, self.levels)
        yield from (f"no good image: {name}" for name in self.empty[:10])
        yield from (f"unreadable: {bad['path']}: {bad['reason']}" for bad in self.bad[:10])
        if len(self.bad) > 10:
            yield f"and {len(self.bad) - 10:,} more; --out FILE.tsv lists them all"
        if self.list:
            listed = sum(map(_is_to_list, self.bad))
            yield f"{self.list}: {listed:,} files that training now skips"

    def same_images(self) -> dict[str, list[list[str]]]:
        """Return the groups of images that are the same, by what is the matter with them."""
        return {
            "the same image in several splits": self.leaks,
            "nearly the same image in several splits": self.near_leaks,
            "the same image under several classes": self.conflicts,
            "the same image more than once in a split": self.duplicates,
            "nearly the same image in a split": self.near_duplicates,
        }

    def problems(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield split, path, reason and kind of each file that is unreadable or there twice."""
        for bad in self.bad:
            yield bad["split"], bad["path"], bad["reason"], bad["kind"]
        for name in self.constant:
            split, _, path = name.partition(": ")
            yield split, path, "nothing can be learned from it", "one color"
        for name, ends in self.clipped.items():
            split, _, path = name.partition(": ")
            yield split, path, "values of {} to {}".format(*map(show_level, ends)), "clipped"
        for what, groups in self.same_images().items():
            for first, *others in groups:
                for other in others:
                    split, _, path = other.partition(": ")
                    yield split, path, f"as {first}", what


def _is_to_list(bad: Mapping[str, str]) -> bool:
    return bad["kind"] != "missing package"  # else it would stay skipped once that is installed


def check_data(
    data: Data,
    *,
    fix: bool = False,
    out: str | Path | None = None,
    max_pixels: int = LIMITS.pixels,
    workers: int | None = None,
) -> DatasetCheck:
    """Check every image of a dataset: counts, unreadable files, duplicates, sizes, mean and std.

    `fix` lists the unreadable files in the dataset's folder, so that training skips them; `out` is
    a TSV file for them, for images that are there twice, and the reasons. No image is moved or
    changed.
    """
    for name, number in (("--workers", workers), ("--max-pixels", max_pixels)):
        if number is not None and number < 1:
            raise InputError(f"{name} must be at least 1, got {number}")
    if out is not None:
        check_writable(Path(out))
    splits = open_splits(data)
    root = next(iter(splits.values())).root
    if fix:
        if root is None:
            name = next(iter(splits.values())).name
            raise InputError(f"{name} has no folder to list unreadable files in; leave --fix out")
        check_writable(root / UNREADABLE_LIST)
    limits = Limits(pixels=max_pixels)
    with show_progress("checking", sum(map(len, splits.values()))) as report:
        found = check(splits, limits=limits, workers=workers, report=report)
    if out is not None:
        make_folder(Path(out).parent)
        write_rows(Path(out), ("split", "path", "reason", "kind"), map(list, found.problems()))
    written: Path | None = None
    if fix and root is not None:
        bad_here = {bad["path"]: bad["reason"] for bad in found.bad if _is_to_list(bad)}
        written = write_unreadable_list(root, list_others(root, splits.values()) | bad_here)
    told = dict.fromkeys(note for dataset in splits.values() for note in notes(dataset))
    if said := say_groups(splits):
        told[said] = None
    if all(dataset.classes == (UNLABELED,) for dataset in splits.values()):
        told["no labels were found; a classifier needs them, such as one folder per class"] = None
    return replace(found, list=str(written) if written else None, notes=tuple(told))


def check(
    splits: Mapping[str, ImageDataset],
    *,
    limits: Limits = LIMITS,
    workers: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> DatasetCheck:
    """Check every image of a dataset's splits; `report` is called with how many are done."""
    measured = {
        (split, int(index))
        for split, dataset in list(splits.items())[:1]
        for index in shuffled(len(dataset), 0, "subset")[:MEASURED]
    }
    checker = ImageChecker(splits, measured, limits)
    tasks = [
        (split, range(start, min(start + CHUNK, len(dataset))))
        for split, dataset in splits.items()
        for start in range(0, len(dataset), CHUNK)
    ]
    looks: dict[str, list[ImageInfo]] = {split: [] for split in splits}
    done = 0
    config = LoaderConfig(workers=workers, kind="processes")
    for (split, _), found in zip(tasks, check_each_image(checker, tasks, config), strict=True):
        looks[split] += found
        done += len(found)
        report(done)
    return _summarize(splits, looks)


def _summarize(
    splits: Mapping[str, ImageDataset], looks: Mapping[str, list[ImageInfo]]
) -> DatasetCheck:
    """Combine what was found out about each image."""
    good = {
        split: [i for i, look in enumerate(each) if not look.bad] for split, each in looks.items()
    }
    shapes = np.array([looks[split][i].shape for split in splits for i in good[split]] or [(0, 0)])
    moments = np.array([look.moments for each in looks.values() for look in each if look.moments])
    mean = moments[:, 0].mean(0) if len(moments) else np.zeros(0)
    squares = moments[:, 1].mean(0) if len(moments) else np.zeros(0)
    std = np.sqrt(np.maximum(squares - mean**2, 0))  # rounding may give less than 0
    counts: dict[str, dict[str, int]] = {}
    for split, dataset in splits.items():
        numbers = select(dataset, np.array(good[split], np.int64)).class_counts().tolist()
        counts[split] = dict(zip(dataset.classes, numbers, strict=True))
    classes = list(dict.fromkeys(name for dataset in splits.values() for name in dataset.classes))
    first = [count for count in next(iter(counts.values()), {}).values() if count]
    same = group_same_images(
        [
            CheckedImage(
                split,
                splits[split].where(i),
                splits[split].labels[i].tobytes(),
                *looks[split][i][:2],
            )
            for split, indices in good.items()
            for i in indices
        ]
    )
    bad = [
        {"split": split, "path": look.bad.where, "reason": look.bad.reason, "kind": look.bad.kind}
        for split, each in looks.items()
        for look in each
        if look.bad
    ]
    return DatasetCheck(
        images=sum(map(len, looks.values())),
        splits={split: len(indices) for split, indices in good.items()},
        classes={
            encodable(name): {split: counts[split].get(name, 0) for split in splits}
            for name in classes
        },
        bad=bad,
        duplicates=same.within,
        leaks=same.across,
        conflicts=same.conflicts,
        near_duplicates=same.near_within,
        near_leaks=same.near_across,
        tiny=_find_tiny(splits, looks, good),
        constant=[
            f"{split}: {splits[split].where(i)}"
            for split, indices in good.items()
            for i in indices
            if looks[split][i].constant
        ],
        clipped={
            f"{split}: {splits[split].where(i)}": ends
            for split, indices in good.items()
            for i in indices
            if (ends := looks[split][i].clipped)
        },
        levels=next((each.reading.levels for each in splits.values() if each.reading), None),
        empty=[
            f"{split}: {encodable(name)}"
            for split, each in counts.items()
            for name, count in each.items()
            if not count
        ],
        imbalance=max(first) / min(first) if first else 0.0,
        sizes={
            axis: [int(values.min()), int(np.median(values)), int(values.max())]
            for axis, values in (("height", shapes[:, 0]), ("width", shapes[:, 1]))
        },
        modes=dict(Counter(looks[s][i].mode for s in splits for i in good[s]).most_common()),
        mean=mean.tolist(),
        std=std.tolist(),
        measured=len(moments),
    )


def _find_tiny(
    splits: Mapping[str, ImageDataset],
    looks: Mapping[str, list[ImageInfo]],
    good: Mapping[str, list[int]],
) -> list[str]:
    """Find the images whose shorter side shows hardly anything, where others show more."""
    sides = [(split, i, min(looks[split][i].shape)) for split in splits for i in good[split]]
    if not sides:
        return []
    below = min(SMALLEST, float(np.median([side for *_, side in sides])) / 2)
    return [f"{split}: {splits[split].where(i)}" for split, i, side in sides if side < below]
