"""Check a dataset in one pass over its files: what it holds, and what is wrong with it.

Worker processes decode the images, so that one that crashes the decoder is named and does not end
the check.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.dataset import ImageDataset, UnreadableImage, select
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.open import Data, notes, open_splits
from vitrail.data.datasets.unreadable_list import list_others, write_rows, write_unreadable_list
from vitrail.data.decoding.arrays import channels_of_npy
from vitrail.data.decoding.decode import LIMITS, ImageError, Limits, decode, read_header
from vitrail.data.loader import Loader, LoaderConfig, WorkerError
from vitrail.data.near_duplicates import SMALLEST, perceptual_hash
from vitrail.data.rng import shuffled
from vitrail.data.same_images import CheckedImage, group_same_images
from vitrail.result import Result, ResultTable
from vitrail.text import encodable

CHUNK = 32  # images per task of a worker
MEASURED = 1_000  # images sampled for mean and std
ENOUGH = 1_000_000  # pixels of each that are measured; larger images are shrunk
_ALONE = LoaderConfig(workers=1, kind="processes")


class ImageInfo(NamedTuple):
    """What was found out about one image."""

    digest: bytes
    """A hash of its file, to find copies."""
    appearance: bytes
    """A hash of what it looks like, to find images that are nearly the same."""
    shape: tuple[int, int]
    """Height and width, as displayed."""
    mode: str
    """File format and pixel mode, such as `JPEG RGB`."""
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None
    """Mean of the pixels (0 to 1) and of their squares per channel, if measured."""
    bad: UnreadableImage | None = None


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
        yield from (f"no good image: {name}" for name in self.empty[:10])
        yield from (f"unreadable: {bad['path']}: {bad['reason']}" for bad in self.bad[:10])
        if len(self.bad) > 10:
            yield f"and {len(self.bad) - 10:,} more; --out FILE.tsv lists them all"
        if self.list:
            yield f"{self.list}: {len(self.bad):,} files that training now skips"

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
        for what, groups in self.same_images().items():
            for first, *others in groups:
                for other in others:
                    split, _, path = other.partition(": ")
                    yield split, path, f"as {first}", what


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
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    splits = open_splits(data)
    limits = Limits(pixels=max_pixels)
    with show_progress("checking", sum(map(len, splits.values()))) as report:
        found = check(splits, limits=limits, workers=workers, report=report)
    if out is not None:
        write_rows(Path(out), ("split", "path", "reason", "kind"), map(list, found.problems()))
    written: Path | None = None
    if fix:
        root = next(iter(splits.values())).root
        if root is None:
            name = next(iter(splits.values())).name
            raise InputError(f"{name} has no folder to list unreadable files in; leave --fix out")
        bad_here = {bad["path"]: bad["reason"] for bad in found.bad}
        written = write_unreadable_list(root, list_others(root, splits.values()) | bad_here)
    told = dict.fromkeys(note for dataset in splits.values() for note in notes(dataset))
    if all(dataset.classes == (UNLABELED,) for dataset in splits.values()):
        told["no labels were found; a classifier needs them, such as one folder per class"] = None
    return replace(found, list=str(written) if written else None, notes=tuple(told))


class _Inspector:
    """Checks images of several datasets; sent once to each worker."""

    def __init__(
        self, splits: Mapping[str, ImageDataset], measured: set[tuple[str, int]], limits: Limits
    ) -> None:
        self._splits, self._measured, self._limits = splits, measured, limits

    def look(self, task: tuple[str, range]) -> list[ImageInfo]:
        _silence_decoders()
        split, indices = task
        return [self._look(self._splits[split], i, (split, i) in self._measured) for i in indices]

    def _look(self, dataset: ImageDataset, index: int, measure: bool) -> ImageInfo:
        try:
            content = dataset.read(index)
            if isinstance(content, np.ndarray):
                digest = hashlib.blake2b(content.tobytes(), digest_size=16).digest()
                mode, pixels = f"{content.shape[2]} channels", content
                shape = content.shape[:2]
            else:
                digest = hashlib.blake2b(content, digest_size=16).digest()
                header = read_header(content, self._limits)
                # An eighth of a JPEG shows damage as well as all of it, and much sooner.
                shrink = max(min(header.height, header.width) / SMALLEST, 1.0)
                if measure:
                    shrink = sqrt(max(header.height * header.width / ENOUGH, 1))
                channels = channels_of_npy(content) if header.format == "NPY" else 3
                pixels = decode(
                    content, channels=channels, limits=self._limits, header=header, shrink=shrink
                )
                mode, shape = f"{header.format} {header.mode}", (header.height, header.width)
        except ImageError as error:
            return _failed(UnreadableImage(dataset.where(index), str(error), error.kind))
        except OSError as error:
            reason = error.strerror or str(error)
            return _failed(UnreadableImage(dataset.where(index), reason, "unreadable"))
        moments = _moments(pixels) if measure else None
        return ImageInfo(digest, perceptual_hash(pixels), shape, mode, moments)

    def crashed(self, split: str, index: int) -> ImageInfo:
        where = self._splits[split].where(index)
        return _failed(UnreadableImage(where, "crashes the decoder", "crashes the decoder"))


@cache
def _silence_decoders() -> None:
    """Hide what C libraries print to stderr about broken files in a worker."""
    if multiprocessing.parent_process() is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _failed(bad: UnreadableImage) -> ImageInfo:
    return ImageInfo(b"", b"", (0, 0), "", None, bad)


def _moments(pixels: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    step = int(sqrt(max(pixels.shape[0] * pixels.shape[1] / ENOUGH, 1)))
    flat = pixels[::step, ::step].reshape(-1, pixels.shape[2])
    counts = [np.bincount(flat[:, channel], minlength=256) for channel in range(flat.shape[1])]
    levels = np.arange(256) / 255
    means = (np.stack(counts) / len(flat)) @ np.stack([levels, levels**2], axis=1)
    return tuple(means[:, 0].tolist()), tuple(means[:, 1].tolist())


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
    inspector = _Inspector(splits, measured, limits)
    tasks = [
        (split, range(start, min(start + CHUNK, len(dataset))))
        for split, dataset in splits.items()
        for start in range(0, len(dataset), CHUNK)
    ]
    looks: dict[str, list[ImageInfo]] = {split: [] for split in splits}
    done = 0
    config = LoaderConfig(workers=workers, kind="processes")
    for (split, _), found in zip(tasks, _look_at_all(inspector, tasks, config), strict=True):
        looks[split] += found
        done += len(found)
        report(done)
    return _summarize(splits, looks)


def _look_at_all(
    inspector: _Inspector, tasks: Sequence[tuple[str, range]], config: LoaderConfig
) -> Iterator[list[ImageInfo]]:
    """Run the tasks in worker processes; images of a chunk that kills workers are tried alone."""
    waiting = deque(tasks)
    while waiting:
        try:
            for found in Loader(inspector.look, list(waiting), config):
                waiting.popleft()
                yield found
        except WorkerError:
            split, indices = waiting.popleft()
            yield [_look_alone(inspector, split, index) for index in indices]


def _look_alone(inspector: _Inspector, split: str, index: int) -> ImageInfo:
    try:
        ((look,),) = Loader(inspector.look, [(split, range(index, index + 1))], _ALONE)
    except WorkerError:
        return inspector.crashed(split, index)
    return look


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
