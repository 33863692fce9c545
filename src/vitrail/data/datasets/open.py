"""Data sets by their text: DATA, as people write it on the command line, becomes a source.

PATH, folder:PATH                        a folder: PATH/CLASS/…, or PATH/{train,val,test}/CLASS/…
csv:FILE, jsonl:FILE, parquet:FILE       a list; FILE,path=COLUMN,label=COLUMN,split=COLUMN
cifar10:DIR, cifar100:DIR, mnist:DIR, fashion-mnist:DIR, pets:DIR, flowers102:DIR, caltech101:DIR,
imagenet:DIR                             a public set, as it is published
cifar10, cifar100, mnist, …              the same, as fetch.py fetched it
digits, shapes, shapes:OPTIONS           sets that come with this package
hf:NAME                                  a set of the Hugging Face hub, or a folder in its format
wds:PATTERN                              tar files of images

split.py says what the splits of a set are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.datasets.builtin.digits import open_digits
from vitrail.data.datasets.builtin.shapes import open_shapes
from vitrail.data.datasets.folder import FolderDataset, open_folder
from vitrail.data.datasets.hub.hub_dataset import open_hub
from vitrail.data.datasets.hub.parquet import open_parquet
from vitrail.data.datasets.lists import open_csv, open_jsonl, parse_list
from vitrail.data.datasets.public.fetch import fetched
from vitrail.data.datasets.public.layouts import recognize_layout
from vitrail.data.datasets.public.official import open_imagenet
from vitrail.data.datasets.public.public_registry import PUBLIC
from vitrail.data.datasets.shards.tar_dataset import open_shards
from vitrail.data.datasets.torch_dataset import TorchDataset
from vitrail.data.datasets.unreadable_list import (
    UNREADABLE_LIST,
    FilteredDataset,
    leave_out_unreadable,
)
from vitrail.data.split import SPLITS, NoSplitError, choose, spell
from vitrail.text import expand, neighbors, quoted, show

Opener = Callable[[str, str, int], ImageDataset | ImageStream]
Data = (
    str | os.PathLike[str] | ImageDataset | ImageStream | Dataset[Any] | Mapping[str, Dataset[Any]]
)
"""What a function takes as data: DATA as text, a dataset, or a dict of datasets by split."""

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".npy")
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_LISTS = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"
}  # fmt: skip


def open_data(
    data: Data, *, split: str = "train", seed: int = 0, labels: bool = True
) -> ImageDataset | ImageStream:
    """Open a split of a dataset, without the images on its list of unreadable ones.

    `data` is text, an ImageDataset, any torch dataset that yields (image, label), or a dict of such
    by split. A dataset that is given as an object is its own split, whichever is asked for. `seed`
    samples the images that are held out as `val` where a dataset comes in one piece. `labels=False`
    also takes images without labels: a folder without class folders, a dataset of images alone.
    """
    if isinstance(data, Mapping):
        there = {spell(name): each for name, each in data.items()}
        chosen = choose(spell(split), tuple(there), "data")
        if chosen == "all":
            raise InputError(f"a dict of datasets has no split 'all'; it has {', '.join(there)}")
        return open_data(there[chosen], split=split, seed=seed, labels=labels)
    if isinstance(data, ImageDataset | ImageStream):
        return data
    if not isinstance(data, str | os.PathLike):
        return TorchDataset(data, labels=labels)
    dataset = _open(os.fspath(data), spell(split), seed, labels)
    return leave_out_unreadable(dataset) if isinstance(dataset, ImageDataset) else dataset


def open_dataset(data: Data, *, split: str = "train", seed: int = 0) -> ImageDataset:
    """Open a split whose images are reached by number; refuse a stream, and one without images."""
    dataset = open_data(data, split=split, seed=seed)
    if not isinstance(dataset, ImageDataset):
        raise InputError(
            f"{dataset.name} is a stream, which only training can read; give a dataset whose "
            f"images can be reached by number"
        )
    if not len(dataset):
        raise InputError(f"{dataset.name} has no images")
    return dataset


def open_splits(text: str) -> dict[str, ImageDataset]:
    """Open every split of a set, the images on its list of bad ones too."""
    found: dict[str, ImageDataset] = {}
    for name in SPLITS:
        with suppress(NoSplitError):
            source = _open(text, name, 0)
            if not isinstance(source, ImageDataset):
                raise InputError(f"{text} is a stream, of which only training can be read")
            found[name] = source
    # A set without a validation split has its test split stand in for it.
    if {"val", "test"} <= set(found) and found["val"].name == found["test"].name:
        del found["val"]
    return found


def notes(source: ImageDataset | ImageStream) -> tuple[str, ...]:
    """Tell what a person may want to know of a source just opened, each in one line."""
    if isinstance(source, FilteredDataset):
        part = f"{source.skipped:,} of {len(source.source):,} images"
        return (*notes(source.source), f"{source.name}: {UNREADABLE_LIST} leaves out {part}")
    return source.notes if isinstance(source, FolderDataset) else ()


def check_trainable(
    train: ImageDataset | ImageStream, val: ImageDataset | None = None, *, labels: bool = True
) -> tuple[str, ...]:
    """Refuse what no classifier can be trained on; note what is only odd.

    A task without `labels` takes any images.
    """
    if isinstance(train, ImageDataset) and len(train) == 0:
        raise InputError(f"{train.name} has no images to train on")
    if not labels:
        return ()
    if len(train.classes) < 2 and not train.multilabel:
        only = f"{train.name} has only the class {quoted(train.classes)}"
        raise InputError(f"{only}; a classifier needs two or more")
    found: list[str] = []
    lacking = _classes_without_images(train) if isinstance(train, ImageDataset) else []
    if lacking and isinstance(train, ImageDataset):
        if not train.multilabel:
            raise InputError(_no_image(train, lacking[0]))
        found.append(f"{train.name} has no image of {quoted(lacking)}")
    if val is not None:
        _check_same_classes(train, val)
        if unseen := [name for name in _classes_without_images(val) if name not in lacking]:
            found.append(f"{val.name} has no image of {quoted(unseen)}")
    return tuple(found)


def _classes_without_images(source: ImageDataset) -> list[str]:
    if source.multilabel:
        counts = source.labels.sum(axis=0, dtype=np.int64)
    else:
        counts = np.bincount(source.labels, minlength=len(source.classes))
    return [name for name, count in zip(source.classes, counts, strict=True) if count == 0]


def _no_image(train: ImageDataset, name: str) -> str:
    number = train.classes.index(name)
    skipped = np.sum(train.left_out == number) if isinstance(train, FilteredDataset) else 0
    if skipped:
        return f"class {quoted([name])} of {train.name} has no readable image ({skipped} skipped)"
    return f"class {quoted([name])} of {train.name} has no image; add some, or remove the class"


def _check_same_classes(train: ImageDataset | ImageStream, val: ImageDataset) -> None:
    if len(val) == 0:
        raise InputError(f"{val.name} has no images")
    known = set(train.classes)
    if strangers := [name for name in val.classes if name not in known]:
        raise InputError(f"class {quoted(strangers)} of {val.name} is not in {train.name}")
    if val.classes != train.classes:
        differ = f"{val.name} numbers its classes otherwise than {train.name}"
        raise InputError(f"{differ}; put a classes.txt with all of them beside both")


def _open(text: str, split: str, seed: int, labels: bool = True) -> ImageDataset | ImageStream:
    if not text.strip() or "\0" in text:
        raise InputError(f"expected data, such as a folder of images or digits, got {text!r}")
    scheme, colon, rest = text.partition(":")
    if scheme == "folder" and rest:
        return open_folder(expand(rest), split, seed=seed, labels=labels)
    if colon and scheme in _SCHEMES:
        form, opener = _SCHEMES[scheme]
        if form and not rest:
            raise InputError(f"{text} lacks its {form}; write {scheme}:{form}")
        return opener(rest, split, seed)
    path, listed = expand(text), parse_list(text)[0]
    there = _exists(path)
    if text in _SCHEMES and not _SCHEMES[text][0]:
        if there:
            which = f"write {text}: for the set, ./{text} for what is here"
            raise InputError(f"{text!r} is a data set, and the name of something here; {which}")
        return _SCHEMES[text][1]("", split, seed)
    if there and path.is_dir():
        if published := recognize_layout(path):
            raise InputError(published)
        return open_folder(path, split, seed=seed, labels=labels)
    if listed.suffix.lower() in _LISTS and _exists(listed):
        return _SCHEMES[_LISTS[listed.suffix.lower()]][1](text, split, seed)
    raise _no_data(path) if there else _unknown(text)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError as error:
        raise InputError(f"cannot read {show(path)}: {error.strerror}") from None
    except OSError:  # none there, or a name that no file can have
        return False
    return True


def _no_data(path: Path) -> InputError:
    """Explain a file that is no data set."""
    folder = "a folder with one folder of images a class"
    suffix = path.suffix.lower()
    if suffix in _IMAGES:
        return InputError(f"{show(path)} is one image; expected {folder}")
    if suffix in _ARCHIVES:
        tar = f", or write wds:{show(path)} if it is a shard" if ".tar" in path.suffixes else ""
        return InputError(f"{show(path)} is an archive; unpack it and give its folder{tar}")
    return InputError(f"{show(path)} is no data set; expected {folder}, or csv:FILE, jsonl:FILE, …")


def _unknown(text: str) -> InputError:
    """Explain a text that is neither a path nor begins as one of ours do."""
    scheme, colon, _ = text.partition(":")
    if scheme in ("http", "https"):
        return InputError(f"{text}: download it, then give its folder")
    if not colon and text in _SCHEMES:
        return InputError(f"{text} needs its place: write {text}:{_SCHEMES[text][0]}")
    if colon and re.fullmatch(r"[A-Za-z][\w+-]+", scheme):
        known = f"it may begin with {', '.join(f'{name}:' for name in _SCHEMES)}"
        return InputError(f"unknown data {text!r}: {known}{suggest(scheme, _SCHEMES)}")
    near = suggest(text, _SCHEMES) or neighbors(Path(text))
    if not near and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text, re.ASCII):
        near = f"; write hf:{text} if it is a set of the hub's"
    return InputError(f"no folder or data set {text!r}{near}")


def _list(opener: Callable[..., ImageDataset]) -> Opener:
    def open_list(rest: str, split: str, seed: int) -> ImageDataset:
        path, columns = parse_list(rest)
        return opener(path, split, columns=columns, seed=seed)

    return open_list


def _public(name: str) -> Opener:
    def open_public(rest: str, split: str, seed: int) -> ImageDataset:
        path = expand(rest) if rest else fetched(name)
        if path is None:
            own = f"write {name}:DIR for the folder that it lies in"
            raise InputError(f"{name} was not fetched; {own}, or run: vitrail data fetch {name}")
        return PUBLIC[name].open(path, split)

    return open_public


def _imagenet(rest: str, split: str, seed: int) -> ImageDataset:
    return open_imagenet(expand(rest), split)


def _digits(rest: str, split: str, seed: int) -> ImageDataset:
    if rest:
        raise InputError(f"digits has no options; write digits instead of 'digits:{rest}'")
    return open_digits(split)


_SCHEMES: dict[str, tuple[str, Opener]] = {
    "folder": ("PATH", lambda rest, split, seed: open_folder(expand(rest), split, seed=seed)),
    "csv": ("FILE", _list(open_csv)),
    "jsonl": ("FILE", _list(open_jsonl)),
    "parquet": ("FILE", _list(open_parquet)),
    **{name: ("", _public(name)) for name in PUBLIC},
    "imagenet": ("DIR", _imagenet),
    "digits": ("", _digits),
    "shapes": ("", lambda rest, split, seed: open_shapes(rest, split)),
    "hf": ("NAME", lambda rest, split, seed: open_hub(rest, split, seed=seed)),
    "wds": ("PATTERN", lambda rest, split, seed: open_shards(rest, split, seed=seed)),
}
"""How DATA may begin: what has to follow the colon, if anything has to, and who opens it."""
