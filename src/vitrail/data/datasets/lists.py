"""Images in a list: a CSV or JSON Lines file with one row per image.

A row has the image's path (relative to the list's folder or to `root`, or absolute), its label, and
maybe its split. Several labels are a JSON list, or text separated by `|` or `;`, or with `onehot` a
column of 0 and 1 for each class. A `classes.txt` beside the list names the classes, one per line;
whole numbers are indices into it.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path, PurePosixPath
from reprlib import repr as shorten
from typing import Any, NamedTuple, TextIO

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.class_index import number_labels
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.folder import FolderDataset, note_alike
from vitrail.data.datasets.labels import UNLABELED, Labels, name_labels, read_label
from vitrail.data.split import SPLITS, choose_split, spell, split_indices
from vitrail.text import expand, neighbors, printable, quoted, show

_PATHS = (
    "path", "file", "filename", "image", "file_name", "filepath", "image_path", "img",
    "file_path", "filepaths", "filenames", "image_file", "image_name", "image_id", "id_code", "id",
)  # fmt: skip
_LABELS = (
    "label", "class", "labels", "target", "classes", "category",
    "class_name", "class_id", "category_id", "breed", "species", "diagnosis",
)  # fmt: skip
_SPLITS = ("split",)
_OPTIONS = ("path", "label", "split", "targets", "root", "suffix", "onehot")
_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as they are read


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
    root: str | None = None
    """The images' folder, relative to the list's."""
    suffix: str = ""
    """What is to be added to each path, such as .jpg."""
    onehot: bool = False
    """Whether each class has a column of 0 and 1."""

    def __str__(self) -> str:
        """Write them as DATA's options do."""
        named = {"path": self.path, "label": self.label, "split": self.split}
        named |= {"targets": "+".join(self.targets), "root": self.root, "suffix": self.suffix}
        written = "".join(f",{name}={value}" for name, value in named.items() if value)
        return written + (",onehot=true" if self.onehot else "")

    def find(self, header: Sequence[str], file: Path) -> tuple[str, str | None, str | None]:
        """Find the columns of path, label and split (None if there is none) in a list's header."""
        path = _find(self.path, _PATHS, header, file)
        label = _find(self.label, _LABELS, header, file)
        split = _find(self.split, _SPLITS, header, file)
        if self.onehot and self.label:
            raise InputError(f"{show(file)}: label and onehot both say what is learned; give one")
        if path and (label or self.targets or self.onehot or not self.labels):
            return path, label, split
        lacking, names = ("label", _LABELS) if path else ("path", _PATHS)
        hint = f"name one of {quoted(header, 10)}, as in {file.name},{lacking}=COLUMN"
        hint += ", or columns of numbers with targets=COLUMN+COLUMN" if path else ""
        raise InputError(f"{show(file)}: no column is named {' or '.join(names[:4])}; {hint}")

    def find_classes(self, header: Sequence[str], file: Path) -> list[str]:
        """List the columns that are classes, where each has one: all but path and split."""
        path, _, split = self.find(header, file)
        return [name for name in header if self.onehot and name not in (path, split)]

    def find_targets(self, header: Sequence[str], file: Path) -> list[str]:
        """Find the columns of numbers to predict in a list's header."""
        return [name for name in self.targets if _find(name, (), header, file)]


class MendableError(InputError):
    """A list that can be read with other options, which the message names."""

    def __init__(self, problem: str, file: Path, columns: Columns) -> None:
        self.data = f"{_scheme(file)}:{file.as_posix()}{columns}"
        """The DATA that mends it."""
        self.columns = columns
        super().__init__(f"{problem}: write {printable(self.data)}")


def _scheme(file: Path) -> str:
    suffix = file.suffix.lower()
    known = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    return known.get(suffix, "csv")


def propose_list(folder: Path) -> str | None:
    """Find a list of labels among a folder's files, and DATA that reads it; None without one."""
    with suppress(OSError):
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() in (".csv", ".tsv") and file.is_file():
                columns = Columns()
                for _ in range(3):
                    try:
                        opened = open_csv(file, columns=columns)
                    except MendableError as error:
                        columns = error.columns
                    except InputError:
                        break
                    else:
                        readable = (folder / opened.where(0)).is_file()
                        return f"csv:{file.as_posix()}{columns}" if readable else None
    return None


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

    `targets=COLUMN+COLUMN` names numbers to predict instead of a label, `onehot=true` says that
    each class has a column; `root=FOLDER` and `suffix=.jpg` complete the paths.
    """
    chosen: dict[str, str] = {}
    while True:
        rest, _, option = text.rpartition(",")
        key, equals, column = option.partition("=")
        if not rest or not equals or key not in _OPTIONS:
            targets = tuple(chosen["targets"].split("+")) if "targets" in chosen else ()
            if "label" in chosen and targets:
                raise InputError(f"{text}: label and targets both say what is learned; give one")
            if "" in targets or len(set(targets)) < len(targets):
                written = chosen["targets"]
                form = "expected columns, each once, as in targets=age+weight"
                raise InputError(f"{text}: targets={written}: {form}")
            if chosen.get("onehot", "true") not in ("true", "false"):
                raise InputError(f"{text}: onehot must be true or false, got {chosen['onehot']!r}")
            return expand(text), Columns(
                chosen.get("path"),
                chosen.get("label"),
                chosen.get("split"),
                targets,
                root=chosen.get("root"),
                suffix=chosen.get("suffix", ""),
                onehot=chosen.get("onehot") == "true",
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
    rows, names = _read_csv(path, columns), None
    if columns.onehot:
        rows, names = _flatten(list(rows)), _onehot_names(path, columns)
    return open_rows(path, rows, split, seed, names, columns=columns)


def open_jsonl(
    path: Path, split: str = "train", *, columns: Columns | None = None, seed: int = 0
) -> FolderDataset:
    """Open a split of a JSON Lines file."""
    columns = columns or Columns()
    if columns.onehot:
        raise InputError(f"{show(path)}: onehot is for CSV files; name the label's column")
    return open_rows(path, _read_jsonl(path, columns), split, seed, columns=columns)


def read_column(path: Path, columns: Columns, name: str) -> dict[str, str] | None:
    """Read a column of a CSV or JSON Lines file by the images' names; None if it has none such."""
    read = _read_csv if path.suffix.lower() in (".csv", ".tsv") else _read_jsonl
    try:
        rows = list(read(path, replace(columns, label=name, labels=False)))
    except InputError:
        return None
    return label_by_name(path, rows, columns)


def label_by_name(
    path: Path, rows: Sequence[Row], columns: Columns | None = None
) -> dict[str, str]:
    """Give the label's cell of each row by the name of its image."""
    locate = locate_images(path, rows, columns or Columns())
    cells = {printable(os.fsdecode(locate(row))): row.label for row in rows}
    return {key: "" if cell is None else str(cell) for key, cell in cells.items()}


def _read_csv(path: Path, columns: Columns) -> Iterator[Row]:
    rows = _read_cells(path)
    start = next(rows, None)
    if start is None:
        return
    header = start[1]
    if not _is_header(header, columns):
        header, rows = ["path", "label"][: len(header)], chain([start], rows)
        if len(header) == 1:  # the class is the image's folder, as papers' lists have it
            rows = ((line, [*cells, _folder_of(cells[0])]) for line, cells in rows)
            header = ["path", "label"]
    try:
        path_name, label_name, split_name = columns.find(header, path)
    except InputError:
        _check_onehot(path, header, list(islice(rows, _TRIED)), columns)
        raise
    cell = header.index(path_name)
    label = None if label_name is None else header.index(label_name)
    split = None if split_name is None else header.index(split_name)
    targets = [header.index(name) for name in columns.find_targets(header, path)]
    ones = {name.strip(): header.index(name) for name in columns.find_classes(header, path)}
    for line, cells in rows:
        if len(cells) != len(header):
            problem = f"expected {len(header)} columns, got {len(cells)}"
            raise InputError(f"{show(path)} line {line}: {problem}")
        labels: Any = UNLABELED if label is None else cells[label]
        if ones:
            labels = _read_ones(path, line, cells, ones)
        elif targets:
            labels = tuple(cells[column] for column in targets)
        yield Row(line, cells[cell], labels, None if split is None else cells[split])


def _read_ones(path: Path, line: int, cells: Sequence[str], ones: Mapping[str, int]) -> list[str]:
    """List the classes that have a 1 in a row."""
    found = []
    for name, column in ones.items():
        cell = cells[column].strip()
        if cell not in ("0", "1", "0.0", "1.0"):
            problem = f"{name}: expected 0 or 1, as onehot=true says, got {cell!r}"
            raise InputError(f"{show(path)} line {line}: {problem}")
        if cell.startswith("1"):
            found.append(name)
    return found


def _check_onehot(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], columns: Columns
) -> None:
    """Propose `onehot` where all columns but those of path and split hold 0 and 1."""
    known = {_find(columns.path, _PATHS, header, path), _find(columns.split, _SPLITS, header, path)}
    others = [number for number, name in enumerate(header) if name not in known]
    if None in known and len(known) == 1:  # not even a path
        return
    cells = {cells[n].strip() for _, cells in rows for n in others if len(cells) == len(header)}
    if len(others) > 1 and cells and cells <= {"0", "1", "0.0", "1.0"}:
        names = quoted([header[number].strip() for number in others])
        raise MendableError(
            f"{show(path)}: its columns {names} hold 0 and 1, one for each class",
            path,
            replace(columns, onehot=True),
        )


def _onehot_names(path: Path, columns: Columns) -> list[str]:
    header = next(_read_cells(path), (0, [""]))[1]
    return [name.strip() for name in columns.find_classes(header, path)]


def _flatten(rows: list[Row]) -> list[Row]:
    """Make one-hot labels single ones, where each image has one."""
    if any(len(row.label) != 1 for row in rows):
        return rows
    return [row._replace(label=row.label[0]) for row in rows]


def _folder_of(cell: str) -> str:
    return PurePosixPath(cell.replace("\\", "/")).parent.name


def _read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read a CSV file's rows with their line numbers; the first line tells the separator."""
    with _open_text(path) as file:
        first = file.readline()
        file.seek(0)
        usual = "\t,;" if path.suffix.lower() == ".tsv" else ",\t;"
        spaced = " " if re.fullmatch(r"\S*[/.]\S* \S+\s*", first) else ","
        comma = next((each for each in usual if each in first), spaced)
        reader = csv.reader(file, delimiter=comma, strict=True)
        try:
            yield from ((reader.line_num, cells) for cells in reader if any(cells))
        except csv.Error as error:
            raise InputError(f"{show(path)} line {reader.line_num}: {error}") from None


def _is_header(cells: list[str], columns: Columns) -> bool:
    """Tell column names from an image's path, and maybe its label."""
    looks_like_path = any(each in cells[0] for each in "./\\")
    named = {columns.path, columns.label, *_PATHS, *_LABELS}
    known = any(cell in named or cell.strip().lower() in named for cell in cells)
    return len(cells) > 2 or known or not looks_like_path


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
    columns: Columns | None = None,
    notes: Sequence[str] = (),
) -> FolderDataset:
    """Open a split of a list's rows; `names` are its classes, if known."""
    kept: dict[bytes, Row] = {}
    repeated, columns = 0, columns or Columns()
    rows, recoded = _recode(rows)
    locate = locate_images(path, rows, columns)
    targets = columns.targets
    for row in rows:
        first = kept.setdefault(locate(row), row)
        if first is not row:
            repeated += 1
            if (first.label, first.split) != (row.label, row.split):
                other = f"with another label or split in {first.place}"
                raise bad_row(path, row, f"{quoted([row.path])} appears twice, {other}")
    classes, labels, splits = read_rows(path, list(kept.values()), names, targets)
    notes = [*notes]
    if repeated:
        notes.append(f"{show(path)}: {repeated:,} repeated rows left out")
    if not targets:
        notes += note_alike(map(str, classes)) + _note_joined(classes)
    if recoded:
        notes.append(
            f"{show(path)} is not UTF-8; its labels are read as Windows-1252 (cp1252): "
            f"{quoted(recoded)}"
        )
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


def _note_joined(classes: Sequence[str]) -> list[str]:
    """Note labels that look like several, joined by commas: a part of one is in another, too."""
    parts = Counter(part for name in classes for part in set(name.split(", ")))
    joined = [name for name in classes if any(parts[part] > 1 for part in name.split(", ")[1:])]
    if not joined:
        return []
    return [f"labels such as {quoted(joined)} count as one class each; several are written a|b"]


def _recode(rows: Iterable[Row]) -> tuple[list[Row], list[str]]:
    """Read labels that are not UTF-8 as cp1252, as Excel writes them; list those that were."""
    found, recoded = [], dict[str, None]()
    for row in rows:
        if isinstance(row.label, str) and _ESCAPED.search(row.label):
            row = row._replace(label=read_cp1252(row.label))
            recoded[row.label] = None
        found.append(row)
    return found, list(recoded)


def read_cp1252(text: str) -> str:
    """Read text with escaped bytes as cp1252; the five bytes that it lacks, as Latin-1."""
    raw = os.fsencode(text)
    try:
        return raw.decode("cp1252")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def locate_images(path: Path, rows: Sequence[Row], columns: Columns) -> Callable[[Row], bytes]:
    """Find out how a list's paths become files, and refuse a list whose files lie elsewhere.

    With `root`, as many leading folders are dropped as the first image that is found needs: those
    of another machine.
    """
    base = path.parent if columns.root is None else path.parent / expand(columns.root)
    spread = [rows[n * len(rows) // _TRIED] for n in range(_TRIED)] if len(rows) > _TRIED else rows
    tried = [_cell(row, path) for row in spread]
    place = _Place(columns.root or "", columns.suffix, 0)
    if columns.root is not None:
        depths = (_depth(cell, base, columns.suffix) for cell in tried)
        place = place._replace(dropped=next((depth for depth in depths if depth is not None), 0))
    if not any(map(place.there, repeat(path.parent), tried)):
        there = _propose(path, tried, columns)
        if there is not None:
            raise MendableError(
                f"{show(path)}: none of its images is there, such as {quoted(tried[:1])}; paths "
                "are relative to the list's folder",
                path,
                replace(columns, root=there.root, suffix=there.suffix),
            )

    def locate(row: Row) -> bytes:
        cell = _cell(row, path)
        try:
            return place.file(path.parent, cell)
        except UnicodeEncodeError:
            raise bad_row(path, row, f"{quoted([cell])} is not a valid file name") from None

    return locate


_TRIED = 32  # rows whose images are looked for
_SUFFIXES = ("", ".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".tif", ".tiff", ".webp", ".bmp")
_FOLDERS = 200  # that are searched for images
_BESIDE = ("images", "image", "imgs", "img", "photos", "data", "jpg", "JPEGImages", "train")


class _Place(NamedTuple):
    """How a list's paths become files."""

    root: str
    suffix: str
    dropped: int
    """Leading folders of each path that are not below `root`."""

    def file(self, folder: Path, cell: str) -> bytes:
        """Return an image's file, relative to the list's folder or absolute."""
        if self.root:
            parts = _parts(cell)[self.dropped :] or _parts(cell)[-1:]
            cell = str(Path(expand(self.root), *parts))
        elif "\\" in cell and os.sep == "/" and not os.path.lexists(os.path.join(folder, cell)):
            cell = cell.replace("\\", "/")
        name = os.fsencode(f"{cell}{self.suffix}")
        if _ESCAPED.search(cell) and not os.path.lexists(os.path.join(os.fsencode(folder), name)):
            return read_cp1252(f"{cell}{self.suffix}").encode()
        return name

    def there(self, folder: Path, cell: str) -> bool:
        """Tell whether an image's file is there."""
        try:
            return os.path.lexists(os.path.join(os.fsencode(folder), self.file(folder, cell)))
        except (OSError, ValueError):
            return False


def _parts(cell: str) -> list[str]:
    """Split a path of this or another machine into its folders and its name."""
    usual = cell.replace("\\", "/")
    return [part for part in re.sub(r"^[A-Za-z]:", "", usual).split("/") if part not in ("", ".")]


def _depth(cell: str, base: Path, suffix: str) -> int | None:
    """Count the leading folders of a path to drop so that its file is below `base`."""
    parts = _parts(cell)
    for dropped in range(len(parts)):
        with suppress(OSError, ValueError):
            if os.path.lexists(os.path.join(base, *parts[dropped:]) + suffix):
                return dropped
    return None


def _propose(path: Path, tried: Sequence[str], columns: Columns) -> _Place | None:
    """Find the folder and ending with which a list's images are there."""
    roots = ["."]
    with suppress(OSError):
        roots += sorted(entry.name for entry in os.scandir(path.parent) if entry.is_dir())
        for name in roots[1:_FOLDERS]:
            below = os.scandir(path.parent / name)
            roots += sorted(f"{name}/{entry.name}" for entry in below if entry.is_dir())[:_FOLDERS]
        roots += [
            "..",
            *(f"../{name}" for name in _BESIDE if (path.parent.parent / name).is_dir()),
        ]
    suffixes = (columns.suffix,) if columns.suffix else _SUFFIXES
    for suffix in suffixes:
        for root in roots[: 2 * _FOLDERS]:
            for cell in tried[:2]:
                dropped = _depth(cell, path.parent / root, suffix)
                if dropped is None:
                    continue
                place = _Place(root, suffix, dropped)
                if sum(map(place.there, repeat(path.parent), tried)) * 2 > len(tried):
                    return place
    return None


def _cell(row: Row, path: Path) -> str:
    """Read a row's path; whole numbers, such as ids, count as text."""
    cell = str(row.path) if type(row.path) is int else row.path
    if not isinstance(cell, str) or not cell or "\0" in cell:
        raise bad_row(path, row, f"expected an image's path, got {shorten(cell)}")
    if "://" in cell:
        raise bad_row(path, row, f"{quoted([cell])} is a URL; download it and give the file's path")
    return cell


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
