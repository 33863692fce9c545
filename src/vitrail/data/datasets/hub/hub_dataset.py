"""Datasets of the Hugging Face hub, and folders that its `datasets` library reads.

`hf:NAME@REVISION,image=COLUMN,label=COLUMN` is downloaded and read by index; with `stream=true` it
is read as it arrives. decode.py decodes the images, not the library. No dataset's code is ever run.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from vitrail.config import InputError, suggest
from vitrail.data.dataset import (
    Content,
    ImageDataset,
    ImageStream,
    StreamItem,
    select,
    stat_files,
)
from vitrail.data.datasets.class_index import ClassIndex, name_classes, number_labels
from vitrail.data.datasets.folder import read_image_file
from vitrail.data.datasets.hub.hub_library import (
    HubName,
    cache_folders,
    import_datasets,
    in_one_line,
    load_splits,
    parse_name,
    quiet_library,
)
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.split import choose_split, spell, split_indices
from vitrail.text import printable, quoted

_ARCHIVES = ("zip://", "tar://", "gzip://", "bz2://", "xz://")
_LABELS = ("label", "labels", "class", "cls")  # names of label columns whose type does not say so
_LABEL_TYPES = ("int", "uint", "bool", "string", "large_string")


@dataclass(frozen=True)
class HubColumns:
    """Which columns hold the images and labels."""

    image: str
    label: str | None
    """None for images without labels."""
    multilabel: bool
    classes: list[str] | None
    """Their names, if the dataset has them."""


class HubDataset(ImageDataset):
    """The images of some splits, in the library's files on this machine."""

    def __init__(
        self, name: str, source: HubName, splits: dict[str, Any], columns: HubColumns
    ) -> None:
        assert columns.classes is not None
        self._source = source
        self._splits, self._column = list(splits.items()), columns.image
        self._ends = list(accumulate(len(rows) for rows in splits.values()))
        labels = number_labels(
            [label for rows in splits.values() for label in _values(rows, columns.label)],
            columns.classes,
            lambda index: f"{name}: {self.where(index)}",
            several=columns.multilabel,
        )
        super().__init__(name, columns.classes, labels, source.root)

    def read(self, index: int) -> bytes:
        """Return the image of a row, or read the file that the row names."""
        split, row = self._find(index)
        return read_row(self._splits[split][1][row][self._column] or {}, self._source)

    def where(self, index: int) -> str:
        """Name an image by its split and row."""
        split, row = self._find(index)
        return f"{self._splits[split][0]}[{row}]"

    def storage(self) -> str:
        """Name the library's files and its own fingerprints, which depend on the revision."""
        tables = [rows for _, rows in self._splits]
        files = [Path(file["filename"]) for rows in tables for file in rows.cache_files]
        return repr([rows._fingerprint for rows in tables]) + stat_files(files)

    def _find(self, index: int) -> tuple[int, int]:
        split = bisect_right(self._ends, index)
        return split, index - (self._ends[split - 1] if split else 0)


class HubStream(ImageStream):
    """The images of a split as they arrive; an offset counts rows of a shard.

    A shard is a file or, of Parquet files, a row group.
    """

    def __init__(self, name: str, source: HubName, rows: Any, columns: HubColumns) -> None:
        if columns.classes is None:
            where = f"{name}: column {columns.label!r} has no class names"
            raise InputError(f"{where}; write ,classes=NUMBER, or leave stream=true out")
        known = (rows.info.splits or {}).get(str(rows.split))
        if hasattr(rows, "reshard"):  # since 4.5 of the library
            rows = rows.reshard()
        super().__init__(
            name,
            columns.classes,
            shards=rows.num_shards,
            multilabel=columns.multilabel,
            length=(known and known.num_examples) or None,
            buffer=source.options.buffer,
        )
        self._source, self._rows, self._columns = source, rows, columns

    def read_shard(self, shard: int, offset: int = 0) -> Iterator[tuple[int, StreamItem]]:
        """Read a shard's rows from one on; those before it in the shard are read and dropped."""
        numbering, columns = ClassIndex(self.classes), self._columns
        with in_one_line(self.name):
            rows = self._rows.shard(self.shards, shard).skip(offset)
            for number, row in enumerate(rows, offset + 1):
                image = row[columns.image] or {}
                label = row[columns.label] if columns.label else UNLABELED
                path = printable(image.get("path") or "")
                where = f"{self.name}[shard {shard}, row {number}] {path}".rstrip()
                try:
                    index = numbering.row(label) if self.multilabel else numbering.number(label)
                except InputError as error:
                    raise InputError(f"{where}: {error}") from None
                try:
                    content: Content | OSError = read_row(image, self._source)
                except (FileNotFoundError, PermissionError) as error:
                    content = error
                yield number, StreamItem(content, index, where)


def open_hub(
    rest: str, split: str, *, seed: int = 0, labels: bool = True
) -> ImageDataset | ImageStream:
    """Open a split of `hf:NAME`; `seed` samples the images to hold out if it has no splits.

    NAME may be a folder: one that save_to_disk wrote, or one with Parquet, Arrow or image files.
    Without `labels`, a dataset without a column of labels is one class.
    """
    name = parse_name(rest)
    datasets = import_datasets()
    with in_one_line(f"hf:{rest}"), quiet_library(datasets):
        splits = load_splits(datasets, name)
        columns = _find_columns(datasets, next(iter(splits.values())).features, name, labels)
        alone = set(splits) == {"train"} and not name.options.stream
        chosen = "train" if alone else choose_split(spell(split), tuple(splits), str(name))
        if columns.classes is None and not name.options.stream:
            columns = replace(columns, classes=_find_classes(splits, columns, str(name)))
        ours = splits if chosen == "all" else {chosen: splits[chosen]}
        ours = {key: _encoded(datasets, rows, columns) for key, rows in ours.items()}
        title = str(name) if alone else f"{name}/{chosen}"
        if name.options.stream:
            parts = list(ours.values())
            rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
            return HubStream(title, name, rows, columns)
        dataset = HubDataset(title, name, ours, columns)
    if not alone:
        return dataset
    return select(dataset, split_indices(dataset, spell(split), seed), f"{name} ({split})")


def _find_columns(datasets: Any, features: Any, name: HubName, needed: bool) -> HubColumns:
    """Find the columns by their types, unless the options name them."""
    if features is None:
        raise InputError(f"{name} does not describe its columns; leave stream=true out")
    options, there = name.options, list(features)
    inner = {column: getattr(kind, "feature", kind) for column, kind in features.items()}
    images = [column for column in there if isinstance(features[column], datasets.Image)]
    typed = [column for column in there if isinstance(inner[column], datasets.ClassLabel)]
    labels = typed or [column for column in _LABELS if column in there]
    image = _pick("image", options.image, images, there, name)
    if not (needed or labels or options.label):
        return HubColumns(image, None, False, [UNLABELED])
    label = _pick("label", options.label, labels, there, name)
    classes = getattr(inner[label], "names", None)
    if classes is None and not str(getattr(inner[label], "dtype", "")).startswith(_LABEL_TYPES):
        raise InputError(f"{name}: expected labels in column {label!r}, got {inner[label]}")
    if classes is None and options.classes:
        classes = [str(number) for number in range(options.classes)]
    return HubColumns(image, label, inner[label] is not features[label], classes)


def _pick(option: str, asked: str | None, found: list[str], there: list[str], name: HubName) -> str:
    if asked is not None and asked not in there:
        hint = suggest(asked, there) or f"; it has {quoted(there, 20)}"
        raise InputError(f"{name} has no column {asked!r}{hint}")
    if asked is None and len(found) != 1:
        which = f"several {option} columns" if found else f"no column that must be its {option}"
        choices = quoted(found or there, 20)
        raise InputError(f"{name} has {which}; write ,{option}=COLUMN with one of {choices}")
    return found[0] if asked is None else asked


def _encoded(datasets: Any, rows: Any, columns: HubColumns) -> Any:
    """Keep the needed columns, the images encoded."""
    kept = rows.select_columns([columns.image, *([columns.label] if columns.label else [])])
    return kept.cast_column(columns.image, datasets.Image(decode=False))


def _find_classes(splits: dict[str, Any], columns: HubColumns, name: str) -> list[str]:
    """Name the classes by the labels of all splits, so that they are the same in each."""
    parts = [part for part in splits.values() if columns.label in part.column_names]
    return name_classes((x for part in parts for x in _values(part, columns.label)), name)


def _values(rows: Any, column: str | None) -> list[Any]:
    """Read only one column; without labels, all images have the same one."""
    if column is None:
        return [UNLABELED] * len(rows)
    return rows.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()


def read_row(image: dict[str, Any], name: HubName) -> bytes:
    """Return an image's bytes from its row, or read the file of this dataset that the row names."""
    if (content := image.get("bytes")) is not None:
        return content
    if not (path := image.get("path")):
        raise FileNotFoundError("the row has no image")
    *archives, outer = path.split("::")  # zip://MEMBER::hf://datasets/NAME@REVISION/FILE.zip
    if "://" in outer:
        place = f"hf://datasets/{name.place}"
        inside = isinstance(name.place, str) and outer.startswith((f"{place}/", f"{place}@"))
        inside = inside and ".." not in outer.split("/")
    else:
        roots = [name.root] if name.root else cache_folders()
        outer = os.path.abspath(os.path.join(roots[0], outer))
        inside = any(Path(outer).is_relative_to(os.path.abspath(root)) for root in roots)
    if not inside or not all(each.startswith(_ARCHIVES) for each in archives):
        raise PermissionError(errno.EACCES, f"Not in this dataset: {printable(path)}")
    if "://" not in path:
        return read_image_file(os.fsencode(outer))
    import fsspec

    with fsspec.open("::".join([*archives, outer]), "rb") as file:
        return file.read()  # pyright: ignore[reportAttributeAccessIssue]
