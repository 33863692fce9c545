"""Images in a Parquet file: as paths, or as bytes in the file itself.

Bytes are stored as on the Hugging Face hub: a column of {bytes, path}, or of bytes alone. They are
read by row groups, of which those used last are held in memory.
"""

from __future__ import annotations

import errno
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, select, stat_files
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.lists import (
    Columns,
    Row,
    choose_rows,
    label_by_name,
    open_rows,
    read_rows,
)
from vitrail.files import utf8_path
from vitrail.text import neighbors, printable, show

_HELD = 1 << 29  # bytes of row groups that a process holds, if they are more than one
_HASHED = 4  # row groups that a fingerprint reads


class _RowGroups:
    """The images of row groups, those that were used last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def read(self, file: Path, version: tuple[int, ...], column: str, group: int) -> Any:
        """Return the images of one row group; `version` tells a rewritten file from the old one."""
        key = (file, version, column, group)
        with self._lock:  # or threads that need the same one would all read it
            if key not in self._held:
                with _opened(file) as parquet:
                    # One thread, because threads that Arrow keeps do not survive a fork.
                    table = parquet.read_row_group(group, [column], use_threads=False)
                self._held[key] = _leaf(table.column(0)).combine_chunks()
            self._held.move_to_end(key)
            while len(self._held) > 1 and sum(x.nbytes for x in self._held.values()) > _HELD:
                self._held.popitem(last=False)
            return self._held[key]


_groups = _RowGroups()


def _forget_groups() -> None:
    """Begin anew in a forked process, where the lock may be held by a thread that is not there."""
    global _groups
    _groups = _RowGroups()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_groups)


class ParquetDataset(ImageDataset):
    """Images stored in a Parquet file."""

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        labels: np.ndarray,
        file: Path,
        column: str,
        groups: Sequence[tuple[int, int]],
    ) -> None:
        """Take the images from a column; `groups` has the rows and bytes of each row group."""
        super().__init__(name, classes, labels, file.parent)
        self._column, self._groups = column, tuple(groups)
        self._ends = np.cumsum([rows for rows, _ in groups])
        self._path = file
        status = file.stat()
        self._version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def read(self, index: int) -> bytes:
        """Return the image of a row."""
        group = self._group(index)
        try:
            images = _groups.read(self._path, self._version, self._column, group)
            content = images[index - int(self._ends[group]) + len(images)].as_py()
        except (ValueError, IndexError) as error:  # Arrow's errors are ValueErrors
            raise OSError(errno.EIO, f"The file changed or is damaged: {error}") from None
        if content is None:
            raise OSError(errno.ENODATA, "No image in this row")
        return content

    def where(self, index: int) -> str:
        """Name an image by its row, counted from 1."""
        return _name_row(self._path, index + 1)

    def storage(self) -> str:
        """Give the file's path, size and modification time."""
        return stat_files([self._path])

    def _group(self, index: int) -> int:
        return int(np.searchsorted(self._ends, index, "right"))

    def _hash_some(self, update: Callable[[bytes], None], indices: Sequence[int]) -> None:
        """Hash images of a few row groups, and how large all groups are."""
        update(repr(self._groups).encode())
        few = sorted(set(map(self._group, indices)))
        few = {few[i] for i in np.linspace(0, len(few) - 1, min(len(few), _HASHED)).astype(int)}
        super()._hash_some(update, [index for index in indices if self._group(index) in few])


def open_parquet(
    path: Path, split: str = "train", *, columns: Columns | None = None, seed: int = 0
) -> ImageDataset:
    """Open a split of a Parquet file."""
    columns = columns or Columns()
    if columns.onehot:
        raise InputError(f"{show(path)}: onehot is for CSV files; name the label's column")
    with _opened(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        image, label, part = columns.find(schema.names, path)
        targets = columns.find_targets(schema.names, path)
        held = _find_images(file, image)
        wanted = {*filter(None, (label, part)), *targets, *(() if held else (image,))}
        table = file.read(sorted(wanted), use_threads=False)
    count = metadata.num_rows
    labels: list[Any] = [UNLABELED] * count
    if targets:
        labels = list(zip(*(table[name].to_pylist() for name in targets), strict=True))
    elif label:
        labels = table[label].to_pylist()
    cells = (
        [None] * count if held else _paths(table[image]).to_pylist(),
        labels,
        table[part].to_pylist() if part else [None] * count,
    )
    rows = [Row(n, *row, unit="row") for n, row in enumerate(zip(*cells, strict=True), 1)]
    names = _class_names(schema.metadata, label) if label else None
    if not held:
        return open_rows(path, rows, split, seed, names, columns=columns)
    classes, numbers, splits = read_rows(path, rows, names, columns.targets)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    whole = ParquetDataset(show(path), classes, numbers, path, held, sizes)
    indices, chosen = choose_rows(whole, splits, split, seed)
    return select(whole, indices, f"{whole.name} ({chosen})")


def read_parquet_column(path: Path, columns: Columns, name: str) -> dict[str, str] | None:
    """Read a column of a Parquet file by the images' names; None if it has none such."""
    with _opened(path) as file:
        if name not in file.schema_arrow.names:
            return None
        image = columns.find(file.schema_arrow.names, path)[0]
        held = _find_images(file, image)
        table = file.read([name] if held else sorted({name, image}), use_threads=False)
    cells = table[name].to_pylist()
    if held:
        texts = ("" if cell is None else str(cell) for cell in cells)
        return {_name_row(path, number): text for number, text in enumerate(texts, 1)}
    paths = _paths(table[image]).to_pylist()
    pairs = enumerate(zip(paths, cells, strict=True), 1)
    rows = [Row(number, *pair, None, unit="row") for number, pair in pairs]
    return label_by_name(path, rows, columns)


def _name_row(path: Path, number: int) -> str:
    return f"{printable(path.name)}[{number}]"


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet files need pyarrow: pip install 'vitrail[data]'") from None
    try:
        with utf8_path(path) as place, parquet.ParquetFile(place) as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"no file {show(path)}{neighbors(path)}") from None
    except (pa.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise InputError(f"cannot read {show(path)}: {reason}") from None


def _find_images(file: Any, column: str) -> str | None:
    """Return the column of images themselves; None if there are only their paths."""
    from pyarrow import types

    kind = file.schema_arrow.field(column).type
    if not types.is_struct(kind):
        return column if types.is_binary(kind) or types.is_large_binary(kind) else None
    if kind.get_field_index("bytes") < 0:
        return None
    inner = f"{column}.bytes"
    for number in range(file.num_row_groups):  # the first one that has an image tells
        images = _leaf(file.read_row_group(number, [inner], use_threads=False).column(0))
        if images.null_count < len(images):
            return inner
    return None


def _leaf(column: Any) -> Any:
    """Return a column, or the only part of a struct's."""
    from pyarrow import types

    return column.flatten()[0] if types.is_struct(column.type) else column


def _paths(column: Any) -> Any:
    """Return a column of paths, or the part of it that holds them."""
    from pyarrow import types

    if not types.is_struct(column.type):
        return column
    found = column.type.get_field_index("path")
    return column if found < 0 else column.flatten()[found]


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> list[str] | None:
    """Find the class names in the metadata that the `datasets` library writes."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        return list((feature.get("feature") or feature)["names"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
