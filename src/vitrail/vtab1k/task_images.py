"""A task's images on disk: found, divided into 800 and 200, and listed for a run.

DIR/NAME/train800.txt, val200.txt, test.txt   lists of `PATH NUMBER`, as VTAB-1k usually comes
DIR/NAME/                                     the dataset as published, if DATA knows it
DIR/NAME/{train,test}/CLASS/…                 class folders
DIR/NAME.csv                                  a list with path, label and split
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, check_one_class, select
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.folder import FolderDataset
from vitrail.data.datasets.open import open_dataset
from vitrail.data.datasets.public.fetch import fetched
from vitrail.data.rng import shuffled
from vitrail.data.split import round_half_up
from vitrail.files import write_whole
from vitrail.text import original, quoted
from vitrail.vtab1k.vtab_tasks import VTABTask

_LISTS = {"train": "train800.txt", "val": "val200.txt", "test": "test.txt"}
_TRAIN = 0.8  # VTAB-1k: 800 of 1,000 images to train on, 200 to choose settings by


class Parts(NamedTuple):
    """A task's images."""

    train: ImageDataset
    val: ImageDataset
    test: ImageDataset


def find_task(task: VTABTask, root: Path) -> str | Path | None:
    """Find a task's images: a folder of lists, or DATA; None if there are none."""
    for name in task.places:
        folder, file = root / name, root / f"{name}.csv"
        if all((folder / each).is_file() for each in _LISTS.values()):
            return folder
        if file.is_file():
            return f"csv:{file}"
        if folder.is_dir():
            plain = any((folder / split).is_dir() for split in ("train", "training"))
            return f"{task.scheme}:{folder}" if task.scheme and not plain else f"folder:{folder}"
    return task.scheme if task.scheme and fetched(task.scheme) else None


def open_task(task: VTABTask, place: str | Path, *, images: int, seed: int) -> Parts:
    """Open a task's images: those of its lists, or sampled from the training split."""
    if isinstance(place, Path):
        train, val, test = (_open_list(task, place / name) for name in _LISTS.values())
        kept = round_half_up(_TRAIN, images)
        return Parts(_first(train, kept), _first(val, images - kept), test)
    train, test = (open_dataset(place, split=split, seed=seed) for split in ("train", "test"))
    check_one_class(train, "VTAB's tasks have one")
    if len(train) < images:
        raise InputError(f"{train.name} has {len(train):,} images, fewer than {images:,}")
    order = shuffled(len(train), seed, "subset")[:images]
    kept = round_half_up(_TRAIN, images)
    return Parts(select(train, order[:kept]), select(train, order[kept:]), test)


def _first(dataset: ImageDataset, count: int) -> ImageDataset:
    return select(dataset, np.arange(min(count, len(dataset))))


def _open_list(task: VTABTask, file: Path) -> ImageDataset:
    """Open a list of paths, each followed by a space and the number of its class."""
    files, labels = [], []
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        path, _, label = line.rstrip().rpartition(" ")
        if not path or not label.isdecimal() or int(label) >= task.classes:
            wanted = f"a path and a class from 0 to {task.classes - 1}"
            raise InputError(f"{file} line {number}: expected {wanted}, got {line[:60]!r}")
        files.append(os.fsencode(path))
        labels.append(int(label))
    if not files:
        raise InputError(f"{file} is empty; expected one line per image")
    classes = [str(number) for number in range(task.classes)]
    name = f"{task.name}/{file.stem}"
    return FolderDataset(name, classes, np.array(labels, np.int64), file.parent, Names(files))


def write_list(path: Path, parts: Mapping[str, Sequence[ImageDataset]]) -> int:
    """List images by split as a CSV for a run; return how many can't be predicted correctly.

    Those are of classes without an image in `train`, for which the model has no output. Images
    that are not files, for example CIFAR's, are written beside the list.
    """
    seen = {each.classes[n] for each in parts["train"] for n in np.unique(each.labels)}
    if odd := [name for name in seen if name[:1] == "[" or set(name) & set("|;")]:
        raise InputError(f"class {quoted(odd)} can't be listed: it holds one of [ | ;")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "label", "split"))
    unseen = 0
    for split, datasets in parts.items():
        for number, dataset in enumerate(datasets):
            beside = path.parent / f"{split}-{number}"
            for index, label in enumerate(dataset.labels.tolist()):
                if (name := dataset.classes[label]) in seen:
                    writer.writerow((_file_of(dataset, index, beside), name, split))
                else:
                    unseen += 1
    write_whole(path, text.getvalue())
    return unseen


def _file_of(dataset: ImageDataset, index: int, folder: Path) -> str:
    """Give the path of an image's file; an image without one is written into a folder."""
    if dataset.root is not None:
        path = dataset.root.absolute() / original(dataset.where(index))
        if path.is_file():
            return str(path)
    path = folder.absolute() / f"{index:06}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        content = dataset.read(index)
        part = path.with_suffix(".new")
        if isinstance(content, bytes):
            part.write_bytes(content)
        else:
            gray = content.shape[-1] == 1
            Image.fromarray(content[..., 0] if gray else content).save(part, format="PNG")
        part.replace(path)
    return str(path)
