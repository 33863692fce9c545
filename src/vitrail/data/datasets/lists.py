"""Images in a list: a CSV or JSON Lines file with one row per image.

A row has the image's path (relative to the list's folder, or absolute), its label, and maybe its
split. Several labels are a JSON list, or text separated by `|` or `;`. A `classes.txt` beside the
list names the classes, one per line; whole numbers are indices into it.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from reprlib import repr as shorten
from typing import Any, NamedTuple, TextIO

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.class_index import number_labels
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.folder import FolderDataset
from vitrail.data.datasets.labels import UNLABELED, Labels, name_labels, read_label
from vitrail.data.split import SPLITS, choose_split, spell, split_indices
from vitrail.text import expand, neighbors, printable, quoted, show

_PATHS = ("path", "file", "filename", "image", "file_name", "filepath", "image_path", "img")
_LABELS = ("label", "class", "labels", "target", "classes", "category")
_SPLITS = ("split",)


@dataclass(frozen=True)
class Columns:
    """Which columns of a list to read; those not named here are guessed."""

    path: str | None = None
    label: str | None = None
    split: str | None = None
    targets: tuple[str, ...] = ()
    """Columns of numbers to predict, instead of labels."""
    labels: bool = True
    """Whether images need labels; a list without a column of them is then of one class."""

    def find(self, header: Sequence[str], file: Path) -> tuple[str, str | None, str | None]:
        """Find the columns of path, label and split (None if there is none) in a list's header."""
        path = _find(self.path, _PATHS, header, file)
        label = _find(self.label, _LABELS, header, file)
        split = _find(self.split, _SPLITS, header, file)
        if path and (label or self.targets or not self.labels):
            return path, label, split
        lacking, names = ("label", _LABELS) if path else ("path", _PATHS)
        hint = f"name one of {quoted(header, 10)}, as in {file.name},{lacking}=COLUMN"
        hint += ", or columns of numbers with targets=COLUMN+COLUMN" if path else ""
        raise InputError(f"{show(file)}: no column is named {' or '.join(names[:4])}; {hint}")

    def find_targets(self, header: Sequence[str], file: Path) -> list[str]:
        """Find the columns of numbers to predict in a list's header."""
        return [name for name in self.targets if _find(name, (), header, file)]


def _find(named: str | None, known: Sequence[str], header: Sequence[str], file: Path) -> str | None:
    if named is None:
        there = {name.strip().lower(): name for name in header}
        return next((there[name] for name in known if name in there), None)
    if named in header:
        return named
    hint = suggest(named, header) or f"; the columns are {quoted(header, 10)}"
    raise InputError(f"{show(file)} has no column {named!r}{hint}")


def parse_list(text: str) -> tuple[Path, Columns]:
    """Parse `FILE,path=COLUMN,label=COLUMN,split=COLUMN`; all but FILE is optional.

    `targets=COLUMN+COLUMN` names numbers to predict instead of a label.
    """
    chosen: dict[str, str] = {}
    while True:
        rest, _, option = text.rpartition(",")
        key, equals, column = option.partition("=")
        if not rest or not equals or key not in ("path", "label", "split", "targets"):
            targets = tuple(chosen["targets"].split("+")) if "targets" in chosen else ()
            if "label" in chosen and targets:
                raise InputError(f"{text}: label and targets both say what is learned; give one")
            if "" in targets or len(set(targets)) < len(targets):
                written = chosen["targets"]
                form = "expected columns, each once, as in targets=age+weight"
                raise InputError(f"{text}: targets={written}: {form}")
            return expand(text), Columns(
                chosen.get("path"), chosen.get("label"), chosen.get("split"), targets
            )
        text, chosen[key] = rest, column


class Row(NamedTuple):
    """A row of a list, as it was read."""

    number: int
    path: Any
    label: Any
    """Its cell; where there are columns of numbers to predict, a tuple of theirs."""
    split: Any
    unit: str = "line"

    @property
    def place(self) -> str:
        """Name the row in a message."""
        return f"{self.unit} {self.number}"


def open_csv(
    path: Path, split: str = "train", *, columns: Columns | None = None, seed: int = 0
) -> FolderDataset:
    """Open a split of a CSV file; without a header its columns are path and label."""
    columns = columns or Columns()
    return open_rows(path, _read_csv(path, columns), split, seed, targets=columns.targets)


def open_jsonl(
    path: Path, split: str = "train", *, columns: Columns | None = None, seed: int = 0
) -> FolderDataset:
    """Open a split of a JSON Lines file."""
    columns = columns or Columns()
    return open_rows(path, _read_jsonl(path, columns), split, seed, targets=columns.targets)


def read_column(path: Path, columns: Columns, name: str) -> dict[str, str] | None:
    """Read a column of a CSV or JSON Lines file by the images' names; None if it has none such."""
    read = _read_csv if path.suffix.lower() in (".csv", ".tsv") else _read_jsonl
    try:
        rows = list(read(path, replace(columns, label=name, labels=False)))
    except InputError:
        return None
    return label_by_name(path, rows)


def label_by_name(path: Path, rows: Iterable[Row]) -> dict[str, str]:
    """Give the label's cell of each row by the name of its image."""
    cells = {printable(os.fsdecode(_file_name(row, path))): row.label for row in rows}
    return {key: "" if cell is None else str(cell) for key, cell in cells.items()}


def _read_csv(path: Path, columns: Columns) -> Iterator[Row]:
    rows = _read_cells(path)
    start = next(rows, None)
    if start is None:
        return
    header = start[1]
    if not _is_header(header, columns):
        header, rows = ["path", "label"], chain([start], rows)
    path_name, label_name, split_name = columns.find(header, path)
    cell = header.index(path_name)
    label = None if label_name is None else header.index(label_name)
    split = None if split_name is None else header.index(split_name)
    targets = [header.index(name) for name in columns.find_targets(header, path)]
    for line, cells in rows:
        if len(cells) != len(header):
            problem = f"expected {len(header)} columns, got {len(cells)}"
            raise InputError(f"{show(path)} line {line}: {problem}")
        labels: Any = UNLABELED if label is None else cells[label]
        if targets:
            labels = tuple(cells[column] for column in targets)
        yield Row(line, cells[cell], labels, None if split is None else cells[split])


def _read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read a CSV file's rows with their line numbers; the first line tells the separator."""
    with _open_text(path) as file:
        first = file.readline()
        file.seek(0)
        usual = "\t,;" if path.suffix.lower() == ".tsv" else ",\t;"
        comma = next((each for each in usual if each in first), ",")
        reader = csv.reader(file, delimiter=comma, strict=True)
        try:
            yield from ((reader.line_num, cells) for cells in reader if any(cells))
        except csv.Error as error:
            raise InputError(f"{show(path)} line {reader.line_num}: {error}") from None


def _is_header(cells: list[str], columns: Columns) -> bool:
    """Tell column names from an image's path and label."""
    looks_like_path = any(each in cells[0] for each in "./\\")
    named = {columns.path, columns.label, *_PATHS, *_LABELS}
    known = any(cell in named or cell.strip().lower() in named for cell in cells)
    return len(cells) != 2 or known or not looks_like_path


def _read_jsonl(path: Path, columns: Columns) -> Iterator[Row]:
    names: tuple[str, str | None, str | None] | None = None
    with _open_text(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", error)
                raise InputError(f"{show(path)} line {line}: {reason}") from None
            if not isinstance(row, dict):
                raise InputError(f"{show(path)} line {line}: expected an object: {{…}}")
            names = names or columns.find(list(row), path)
            cell, label, split = names
            labels = row.get(label) if label else UNLABELED
            if columns.targets:
                labels = tuple(row.get(name) for name in columns.find_targets(list(row), path))
            yield Row(line, row.get(cell), labels, row.get(split) if split else None)


def _open_text(path: Path) -> TextIO:
    try:
        with path.open("rb") as file:
            wide = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        if wide:
            raise InputError(f"{show(path)} is UTF-16 text; save it as UTF-8")
        return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")
    except FileNotFoundError:
        raise InputError(f"no file {show(path)}{neighbors(path)}") from None
    except OSError as error:
        raise InputError(f"cannot read {show(path)}: {error.strerror}") from None


def open_rows(
    path: Path,
    rows: Iterable[Row],
    split: str,
    seed: int,
    names: Sequence[str] | None = None,
    targets: Sequence[str] = (),
) -> FolderDataset:
    """Open a split of a list's rows; `names` are its classes, if known, `targets` its numbers."""
    kept: dict[bytes, Row] = {}
    repeated = 0
    for row in rows:
        first = kept.setdefault(_file_name(row, path), row)
        if first is not row:
            repeated += 1
            if (first.label, first.split) != (row.label, row.split):
                other = f"with another label or split in {first.place}"
                raise bad_row(path, row, f"{quoted([row.path])} appears twice, {other}")
    classes, labels, splits = read_rows(path, list(kept.values()), names, targets)
    notes = [f"{show(path)}: {repeated:,} repeated rows left out"] if repeated else []
    files = Names(list(kept))
    whole = FolderDataset(show(path), classes, labels, path.parent, files, notes=notes)
    indices, chosen = choose_rows(whole, splits, split, seed)
    return whole.part(indices, f"{whole.name} ({chosen})")


def read_rows(
    path: Path, rows: Sequence[Row], names: Sequence[str] | None, targets: Sequence[str] = ()
) -> tuple[list[str], np.ndarray, list[str | None]]:
    """Read a list's classes and each row's label and split; raise InputError at a bad row.

    With `targets`, the names of columns, labels are numbers (float64, rows x targets).
    """
    if not rows:
        raise InputError(f"{show(path)} is empty; expected a row for each image")
    found: list[Labels] = []
    splits: list[str | None] = []
    for row in rows:
        try:
            found.append(None if targets else read_label(row.label))
            splits.append(_read_split(row.split))
        except InputError as error:
            raise bad_row(path, row, str(error)) from None
    if None in splits and set(splits) != {None}:
        raise bad_row(path, rows[splits.index(None)], "no split, where other rows have one")
    if targets:
        return list(targets), _read_numbers(path, rows, targets), splits
    if set(map(str, found)) != {UNLABELED}:
        names = names or _read_classes(path.parent)
    classes, named = name_labels(found, names)
    several = isinstance(named[0], list)
    labels = number_labels(
        named, classes, lambda number: f"{show(path)} {rows[number].place}", several=several
    )
    return classes, labels, splits


def _read_numbers(path: Path, rows: Sequence[Row], targets: Sequence[str]) -> np.ndarray:
    """Read each row's numbers (float64, rows x targets); none may be missing."""
    numbers = np.empty((len(rows), len(targets)), np.float64)
    for place, row in enumerate(rows):
        for column, (name, cell) in enumerate(zip(targets, row.label, strict=True)):
            try:
                numbers[place, column] = float(cell)
            except (TypeError, ValueError):
                numbers[place, column] = math.nan
            if not np.isfinite(numbers[place, column]):
                raise bad_row(path, row, f"{name}: expected a number, got {shorten(cell)}")
    return numbers


def bad_row(path: Path, row: Row, problem: str) -> InputError:
    """Describe what is wrong with a row of a list."""
    return InputError(f"{show(path)} {row.place}: {problem}")


def choose_rows(
    whole: ImageDataset, splits: Sequence[str | None], asked: str, seed: int
) -> tuple[np.ndarray, str]:
    """Return the indices of the requested split's rows, and which split stands for it."""
    found = set(splits)
    there = [word for word in SPLITS if word in found]
    if there in ([], ["train"]):
        return split_indices(whole, asked, seed), asked
    chosen = choose_split(asked, there, whole.name)
    return np.flatnonzero([chosen in ("all", word) for word in splits]), chosen


def _file_name(row: Row, path: Path) -> bytes:
    cell = row.path
    if not isinstance(cell, str) or not cell or "\0" in cell:
        raise bad_row(path, row, f"expected an image's path, got {shorten(cell)}")
    if "://" in cell:
        raise bad_row(path, row, f"{quoted([cell])} is a URL; download it and give the file's path")
    try:
        return os.fsencode(cell)
    except UnicodeEncodeError:
        raise bad_row(path, row, f"{quoted([cell])} is not a valid file name") from None


def _read_split(cell: Any) -> str | None:
    word = spell(cell.strip()) if isinstance(cell, str) else cell
    if word is None or word in SPLITS:
        return word
    raise InputError(f"expected one of {', '.join(SPLITS)}, got {shorten(cell)}")


def _read_classes(folder: Path) -> list[str] | None:
    path = folder / "classes.txt"
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {show(path)}: {error.strerror}") from None
    names: dict[str, int] = {}
    for line, name in enumerate(map(str.strip, text.rstrip().split("\n")), 1):
        if not name or names.setdefault(name, line) < line:
            problem = f"{quoted([name])} appears twice" if name else "no name"
            raise InputError(f"{show(path)} line {line}: {problem}; expected one class per line")
    return list(names)
