"""Open a dataset from DATA, as it is written on the command line.

PATH, folder:PATH                        a folder: PATH/CLASS/…, or PATH/{train,val,test}/CLASS/…
PATH,nested=true                         a folder whose innermost folders are the classes
json:FILE                                a COCO or Label Studio export with one label per image
csv:FILE, jsonl:FILE, parquet:FILE       a list; FILE,path=COLUMN,label=COLUMN,split=COLUMN; or
                                         FILE,targets=COLUMN+COLUMN: numbers to predict
cifar10:DIR, cifar100:DIR, mnist:DIR, fashion-mnist:DIR, pets:DIR, flowers102:DIR, caltech101:DIR,
imagenet:DIR                             a public dataset, as published
cifar10, cifar100, mnist, …              the same, as `vitrail data fetch` left it
digits, shapes, characters, shapes:OPTIONS, characters:OPTIONS   come with this package
hf:NAME                                  a dataset of the Hugging Face hub, or a folder like it
wds:PATTERN                              tar files of images, on this machine or streamed
py:package.module:function               a function of your own, from a split's name to a dataset
DATA,take=5000  DATA,take=10%,seed=1     a random part of any of these
DATA,per_class=10                        so many images of each class
DATA,levels=0-4095  DATA,page=max        how deep images and stacks are read (decoding/reading.py)

split.py defines the splits.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from vitrail.config import OBJECT, InputError, import_callable, suggest
from vitrail.data.dataset import ImageDataset, ImageStream, Selection
from vitrail.data.datasets.builtin.characters import open_characters
from vitrail.data.datasets.builtin.digits import open_digits
from vitrail.data.datasets.builtin.shapes import open_shapes
from vitrail.data.datasets.decisions import DecidedDataset, obey_decisions
from vitrail.data.datasets.exports import is_yolo, open_json, open_yolo
from vitrail.data.datasets.folder import NESTED, FolderDataset, open_folder
from vitrail.data.datasets.hub.hub_dataset import open_hub
from vitrail.data.datasets.hub.parquet import open_parquet, read_parquet_column
from vitrail.data.datasets.lists import open_csv, open_jsonl, parse_list, propose_list, read_column
from vitrail.data.datasets.look import look_at
from vitrail.data.datasets.public.fetch import fetched
from vitrail.data.datasets.public.layouts import recognize_layout
from vitrail.data.datasets.public.official import (
    is_tiny_imagenet,
    open_imagenet,
    open_tiny_imagenet,
)
from vitrail.data.datasets.public.public_registry import PUBLIC
from vitrail.data.datasets.shards.open_shards import open_shards
from vitrail.data.datasets.torch_dataset import TorchDataset
from vitrail.data.datasets.unreadable_list import (
    UNREADABLE_LIST,
    FilteredDataset,
    leave_out_unreadable,
)
from vitrail.data.decoding.reading import Reading, split_reading
from vitrail.data.split import (
    HELD_OUT,
    SPLITS,
    NoSplitError,
    choose_split,
    spell,
    split_indices,
    split_word,
)
from vitrail.data.subsets import SubsetOptions, split_subset
from vitrail.text import expand, neighbors, quoted, show

log = logging.getLogger("vitrail")
Opener = Callable[[str, str, int, bool], ImageDataset | ImageStream]
Data = str | os.PathLike[str] | ImageDataset | ImageStream | Dataset[Any] | Mapping[str, Any]
"""What a function takes as data: DATA as text, a dataset, or a dict of datasets by split."""

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".npy")
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_LISTS = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".json": "json",
}  # fmt: skip


def open_data(
    data: Data, *, split: str = "train", seed: int = 0, labels: bool = True
) -> ImageDataset | ImageStream:
    """Open a split of a dataset, without the images on its list of unreadable ones.

    `data` is text, an ImageDataset, any torch dataset that yields (image, label), or a dict of such
    by split. A dataset that is given as an object is its own split, whichever is asked for. `seed`
    samples the images that are held out as `val` where a dataset comes in one piece. `labels=False`
    also takes images without labels: a folder without class folders, a list without a column of
    labels, shards or a hub's dataset without labels, a dataset of images alone. A subset
    (`cifar10,take=5000`) is one of the asked split.
    """
    if isinstance(data, Mapping):
        there = {spell(name): each for name, each in data.items()}
        chosen = choose_split(spell(split), tuple(there), "data")
        if chosen == "all":
            raise InputError(f"a dict of datasets has no split 'all'; it has {', '.join(there)}")
        return open_data(there[chosen], split=split, seed=seed, labels=labels)
    if isinstance(data, ImageDataset | ImageStream):
        return data
    if not isinstance(data, str | os.PathLike):
        return TorchDataset(data, labels=labels)
    text, part, reading = _parse_data(os.fspath(data))
    dataset = _open(text, spell(split), seed, labels)
    if isinstance(dataset, ImageDataset):
        dataset = obey_decisions(leave_out_unreadable(dataset))
        look_at(dataset, reading, lambda: _open_training(text, split, seed))
        return part.of(dataset) if part else dataset
    dataset.reading, dataset.reading_given = reading, reading is not None
    if part is not None:
        raise InputError(f"{dataset.name} is a stream, of which no subset can be taken")
    return dataset


def whole_data(data: Data) -> Data:
    """Return data without the subset that is asked for, as an evaluation beside training needs."""
    if not isinstance(data, str | os.PathLike):
        return data
    text, _, reading = _parse_data(os.fspath(data))
    return f"{text}{reading or ''}"


def subset_of(data: Data) -> SubsetOptions | None:
    """Return the subset that DATA asks for at its end, if it does."""
    return _parse_data(os.fspath(data))[1] if isinstance(data, str | os.PathLike) else None


def plain_data(text: str) -> str:
    """Return DATA without the subset, and without how its files are read."""
    return _parse_data(text)[0]


def _parse_data(text: str) -> tuple[str, SubsetOptions | None, Reading | None]:
    """Split DATA from its subset and reading; a file or folder of the whole name is what it is."""
    plain, reading = split_reading(text)
    base, part = split_subset(plain)
    if (part or reading) and _exists(expand(text)):
        return text, None, None
    return (plain, None, reading) if part and _exists(expand(plain)) else (base, part, reading)


def _open_training(text: str, split: str, seed: int) -> ImageDataset | None:
    """Open the training split beside another one; None if it is that one, or isn't there."""
    with suppress(InputError):
        found = _open(text, "train", seed, labels=False) if spell(split) != "train" else None
        return found if isinstance(found, ImageDataset) else None
    return None


def open_dataset(
    data: Data, *, split: str = "train", seed: int = 0, labels: bool = True
) -> ImageDataset:
    """Open a split whose images are reached by number; refuse a stream, and one without images."""
    dataset = open_data(data, split=split, seed=seed, labels=labels)
    if not isinstance(dataset, ImageDataset):
        raise InputError(
            f"{dataset.name} is a stream, which only training can read; give a dataset whose "
            f"images can be reached by number, such as this one with ,stream=false"
        )
    if not len(dataset):
        raise InputError(f"{dataset.name} has no images")
    return dataset


def open_splits(data: Data) -> dict[str, ImageDataset]:
    """Open every split of a dataset, including the images on its list of unreadable ones.

    Images need no labels.
    """
    found: dict[str, ImageDataset] = {}
    if not isinstance(data, str | os.PathLike):
        names = map(spell, data) if isinstance(data, Mapping) else ("train",)
        return {name: open_dataset(data, split=name, labels=False) for name in names}
    text, part, reading = _parse_data(os.fspath(data))
    if part:
        raise InputError(f"{data}: expected a whole dataset; leave take and per_class out")
    for name in SPLITS:
        with suppress(NoSplitError):
            dataset = _open(text, name, 0, labels=False)
            if not isinstance(dataset, ImageDataset):
                raise InputError(f"{dataset.name} is a stream, which only training can read")
            look_at(dataset, reading, lambda: found.get("train"))
            found[name] = dataset
    # Without a validation split, the test split stands in for it.
    if {"val", "test"} <= set(found) and found["val"].name == found["test"].name:
        del found["val"]
    return found


def open_stand_in(data: Data) -> ImageDataset | ImageStream | None:
    """Open the test split of a dataset without a validation split, for which it stands in.

    None where nothing stands in, or where the splits can't be opened.
    """
    if isinstance(data, Mapping):
        there = {spell(name) for name in data}
        return open_data(data, split="test") if "test" in there and "val" not in there else None
    if not isinstance(data, str | os.PathLike):
        return None
    try:
        text = plain_data(os.fspath(data))
        test, val = (_open(text, name, 0) for name in ("test", "val"))
    except InputError:  # such as a test split without labels, which not everybody needs
        return None
    return test if val.name == test.name else None


def is_divided(data: Data) -> bool:
    """Tell whether a dataset brings splits of its own, or only gets a tenth held out as `val`."""
    if not isinstance(data, str | os.PathLike):
        return True
    text = plain_data(os.fspath(data))
    try:
        whole, val = (_open(text, name, 0, labels=False) for name in ("all", "val"))
    except NoSplitError:
        return True
    if not isinstance(whole, ImageDataset) or not isinstance(val, ImageDataset):
        return True
    if not len(val) <= len(whole) * HELD_OUT + len(whole.classes):  # far from a tenth of each class
        return True
    held_out = split_indices(whole, "val", 0)
    if len(held_out) != len(val):
        return True
    some = np.linspace(0, len(val) - 1, min(len(val), 1000)).astype(int)
    return any(whole.where(int(held_out[n])) != val.where(int(n)) for n in some)


def names_targets(data: Data) -> bool:
    """Tell whether DATA has numbers to predict: a list with `targets`, or such a dataset."""
    if isinstance(data, ImageDataset):
        return data.regression
    if isinstance(data, Mapping):
        return any(map(names_targets, data.values()))
    if not isinstance(data, str | os.PathLike):
        return False
    text = re.sub(r"^(csv|jsonl|parquet|json):", "", plain_data(os.fspath(data)))
    return bool(parse_list(text)[1].targets)


def group_column(data: Data, name: str) -> dict[str, str] | None:
    """Read a column of the list that DATA names, by the images' names; None if there is none."""
    if not isinstance(data, str | os.PathLike):
        return None
    text = re.sub(r"^(csv|jsonl|parquet|json):", "", plain_data(os.fspath(data)))
    path, columns = parse_list(text)
    kind = _LISTS.get(path.suffix.lower())
    if kind is None or not path.is_file():
        return None
    read = read_parquet_column if kind == "parquet" else read_column
    return read(path, columns, name)


def notes(dataset: ImageDataset | ImageStream) -> tuple[str, ...]:
    """Return remarks on a dataset that was opened, one line each."""
    found = _own_notes(dataset)
    return (*found, *dataset.look) if isinstance(dataset, ImageDataset) else found


def _own_notes(dataset: ImageDataset | ImageStream) -> tuple[str, ...]:
    if isinstance(dataset, DecidedDataset):
        return (*_own_notes(dataset.dataset), dataset.note())
    if isinstance(dataset, FilteredDataset):
        part = f"{dataset.skipped:,} of {len(dataset.dataset):,} images"
        return (
            *_own_notes(dataset.dataset),
            f"{dataset.name}: {UNREADABLE_LIST} leaves out {part}",
        )
    if isinstance(dataset, Selection):
        return _own_notes(dataset.dataset)
    return dataset.notes if isinstance(dataset, FolderDataset) else ()


_said: set[str] = set()


def say_notes(*datasets: ImageDataset) -> None:
    """Log the remarks on datasets, each once in a program."""
    for note in dict.fromkeys(note for dataset in datasets for note in notes(dataset)):
        if note not in _said:
            _said.add(note)
            log.warning("%s", note)


def _open(text: str, split: str, seed: int, labels: bool = True) -> ImageDataset | ImageStream:
    if not text.strip() or "\0" in text:
        raise InputError(f"expected data, such as a folder of images or digits, got {text!r}")
    if text.startswith(OBJECT):
        import_callable(text, "data")  # says that it has to be given again
    scheme, colon, rest = text.partition(":")
    if colon and scheme in _SCHEMES:
        form, opener = _SCHEMES[scheme]
        if form and not rest:
            raise InputError(f"{text} needs its {form}; write {scheme}:{form}")
        return opener(rest, split, seed, labels)
    path, listed = expand(text), parse_list(text)[0]
    there = _exists(path)
    if text in _SCHEMES and not _SCHEMES[text][0]:
        if there:
            which = f"write {text}: for the dataset, ./{text} for what is here"
            raise InputError(f"{text!r} is a dataset, and also the name of something here; {which}")
        return _SCHEMES[text][1]("", split, seed, labels)
    outer = text.removesuffix(NESTED)
    if not there and outer != text:
        return open_folder(expand(outer), split, seed=seed, labels=labels, nested=True)
    if there and path.is_dir():
        if published := recognize_layout(path):
            raise InputError(published)
        if is_tiny_imagenet(path):
            return open_tiny_imagenet(path, split)
        if labels and is_yolo(path):
            return open_yolo(path, split, seed=seed)
        return _open_path(path, split, seed, labels)
    if listed.suffix.lower() in _LISTS and _exists(listed):
        return _SCHEMES[_LISTS[listed.suffix.lower()]][1](text, split, seed, labels)
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
    """Explain why a file is not a dataset."""
    folder = "a folder with one folder of images per class"
    suffix = path.suffix.lower()
    if suffix in _IMAGES:
        return InputError(f"{show(path)} is one image; expected {folder}")
    if suffix in _ARCHIVES:
        tar = f", or write wds:{show(path)} if it is a shard" if ".tar" in path.suffixes else ""
        return InputError(f"{show(path)} is an archive; unpack it and give its folder{tar}")
    return InputError(
        f"{show(path)} is not a dataset; expected {folder}, or csv:FILE, jsonl:FILE, …"
    )


def _unknown(text: str) -> InputError:
    """Explain DATA that is neither a path nor has a known prefix."""
    scheme, colon, _ = text.partition(":")
    if scheme in ("http", "https"):
        return InputError(f"{text}: download it, then give its folder")
    if not colon and text in _SCHEMES:
        return InputError(f"{text} needs its place: write {text}:{_SCHEMES[text][0]}")
    if colon and re.fullmatch(r"[A-Za-z][\w+-]+", scheme):
        known = f"it may begin with {', '.join(f'{name}:' for name in _SCHEMES)}"
        return InputError(f"unknown data {text!r}: {known}{suggest(scheme, _SCHEMES)}")
    if re.search(r",\w+=", text):
        form = "a subset is written DATA,take=5000 or DATA,per_class=10, then maybe ,seed=1"
        return InputError(f"no folder or dataset {text!r}; {form}")
    near = neighbors(Path(text)) or suggest(text, _SCHEMES)
    if not near and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text, re.ASCII):
        near = f"; write hf:{text} if it is a dataset of the hub"
    return InputError(f"no folder or dataset {text!r}{near}")


def _folder(rest: str, split: str, seed: int, labels: bool) -> ImageDataset:
    if rest.endswith(NESTED):
        outer = expand(rest.removesuffix(NESTED))
        return open_folder(outer, split, seed=seed, labels=labels, nested=True)
    return _open_path(expand(rest), split, seed, labels)


def _open_path(path: Path, split: str, seed: int, labels: bool) -> ImageDataset:
    """Open a folder; name the list of labels that lies in one without class folders."""
    try:
        found = open_folder(path, split, seed=seed, labels=labels)
    except NoSplitError:
        raise
    except InputError as error:
        if labels and (hint := _propose(path)):
            raise InputError(f"{error}; {hint}") from None
        raise
    if labels and len(found.classes) == 1 and (hint := _propose(path)):
        raise InputError(f"{show(path)} has only the class {quoted(found.classes)}; {hint}")
    return found


def _propose(path: Path) -> str | None:
    """Name the DATA of a list of labels in a folder, or in its splits' folders."""
    if data := propose_list(path):
        return f"labels are in a list: write {data}"
    with suppress(OSError):
        for folder in sorted(each for each in path.iterdir() if each.is_dir()):
            word = split_word(folder.name)[0]
            if word == "train" and (data := propose_list(folder)):
                return f"labels are in lists: write {data}, and likewise --val-data"
    return None


def _list(opener: Callable[..., ImageDataset]) -> Opener:
    def open_list(rest: str, split: str, seed: int, labels: bool) -> ImageDataset:
        path, columns = parse_list(rest)
        return opener(path, split, columns=replace(columns, labels=labels), seed=seed)

    return open_list


def _public(name: str) -> Opener:
    def open_public(rest: str, split: str, seed: int, labels: bool) -> ImageDataset:
        path = expand(rest) if rest else fetched(name)
        if path is None:
            own = f"write {name}:DIR with its folder"
            raise InputError(f"{name} was not fetched; {own}, or run: vitrail data fetch {name}")
        return PUBLIC[name].open(path, split)

    return open_public


def _open_own(path: str, split: str, seed: int, labels: bool) -> ImageDataset | ImageStream:
    """Call a function of your own; for a split that it does not have, it returns None."""
    function = import_callable(path, "data")
    made = function(split)
    if made is None and split == "val":
        split, made = "test", function("test")
    if made is None:
        raise NoSplitError(f"py:{path} has no split {split!r}")
    dataset = open_data(made, split=split, seed=seed, labels=labels)
    dataset.name = f"py:{path} {split}"  # by which splits are told apart
    return dataset


def _hub(rest: str, split: str, seed: int, labels: bool) -> ImageDataset | ImageStream:
    return open_hub(rest, split, seed=seed, labels=labels)


def _shards(rest: str, split: str, seed: int, labels: bool) -> ImageDataset | ImageStream:
    return open_shards(rest, split, seed=seed, labels=labels)


def _imagenet(rest: str, split: str, seed: int, labels: bool) -> ImageDataset:
    return open_imagenet(expand(rest), split)


def _digits(rest: str, split: str, seed: int, labels: bool) -> ImageDataset:
    if rest:
        raise InputError(f"digits has no options; write digits instead of 'digits:{rest}'")
    return open_digits(split)


_SCHEMES: dict[str, tuple[str, Opener]] = {
    "folder": ("PATH", _folder),
    "csv": ("FILE", _list(open_csv)),
    "jsonl": ("FILE", _list(open_jsonl)),
    "parquet": ("FILE", _list(open_parquet)),
    "json": ("FILE", _list(open_json)),
    **{name: ("", _public(name)) for name in PUBLIC},
    "imagenet": ("DIR", _imagenet),
    "digits": ("", _digits),
    "shapes": ("", lambda rest, split, seed, labels: open_shapes(rest, split)),
    "characters": ("", lambda rest, split, seed, labels: open_characters(rest, split)),
    "hf": ("NAME", _hub),
    "wds": ("PATTERN", _shards),
    "py": ("FUNCTION", _open_own),
}
"""The prefixes of DATA: what must follow the colon, if anything, and what opens it."""
