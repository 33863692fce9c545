"""Images in a Parquet file: as paths, or as bytes in the file itself.

Bytes are stored as on the Hugging Face hub: a column of {bytes, path}, or of bytes alone.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, select, stat_files
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.lists import Columns, Row, choose_rows, open_rows, read_rows
from vitrail.files import utf8_path
from vitrail.text import neighbors, printable, show


class ParquetDataset(ImageDataset):
    """Images stored in a Parquet file, all read into memory."""

    def __init__(
        self, name: str, classes: Sequence[str], labels: np.ndarray, file: Path, images: Any
    ) -> None:
        super().__init__(name, classes, labels, file.parent)
        self._images = images  # a column of Arrow's: one piece of memory, shared when forked
        self._file, self._path = printable(file.name), file

    def read(self, index: int) -> bytes:
        """Return the image of a row."""
        content = self._images[index].as_py()
        if content is None:
            raise OSError(errno.ENODATA, "No image in this row")
        return content

    def where(self, index: int) -> str:
        """Name an image by its row, counted from 1."""
        return f"{self._file}[{index + 1}]"

    @cached_property
    def _sizes(self) -> list[int | None]:
        from pyarrow import compute

        return compute.binary_length(self._images).to_pylist()  # pyright: ignore

    def size(self, index: int) -> int:
        """Return the size of the row's image."""
        return -1 if (size := self._sizes[index]) is None else size

    def storage(self) -> str:
        """Give the file's path, size and modification time."""
        return stat_files([self._path])


def open_parquet(
    path: Path, split: str = "train", *, columns: Columns | None = None, seed: int = 0
) -> ImageDataset:
    """Open a split of a Parquet file."""
    columns = columns or Columns()
    table, image, label, part = _read(path, columns)
    targets = [table[name].to_pylist() for name in columns.targets]
    labels = list(zip(*targets, strict=True)) if targets else [UNLABELED] * len(table)
    names = _class_names(table.schema.metadata, label) if label else None
    images, held = _images(table[image])
    nothing = [None] * len(table)
    cells = (
        nothing if held else images.to_pylist(),
        table[label].to_pylist() if label and not targets else labels,
        table[part].to_pylist() if part else nothing,
    )
    rows = [Row(n, *row, unit="row") for n, row in enumerate(zip(*cells, strict=True), 1)]
    if not held:
        return open_rows(path, rows, split, seed, names, columns.targets)
    classes, numbers, splits = read_rows(path, rows, names, columns.targets)
    whole = ParquetDataset(show(path), classes, numbers, path, images)
    indices, chosen = choose_rows(whole, splits, split, seed)
    return select(whole, indices, f"{whole.name} ({chosen})")


def _read(path: Path, columns: Columns) -> tuple[Any, str, str | None, str | None]:
    """Read the needed columns; return the table and their names."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet files need pyarrow: pip install 'vitrail[data]'") from None
    try:
        with utf8_path(path) as place, parquet.ParquetFile(place) as file:
            names = columns.find(file.schema_arrow.names, path)
            # One thread, because threads that Arrow keeps do not survive a fork.
            wanted = {*filter(None, names), *columns.find_targets(file.schema_arrow.names, path)}
            return file.read(sorted(wanted), use_threads=False), *names
    except FileNotFoundError:
        raise InputError(f"no file {show(path)}{neighbors(path)}") from None
    except (pa.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise InputError(f"cannot read {show(path)}: {reason}") from None


def _images(column: Any) -> tuple[Any, bool]:
    """Return a column of images or of their paths, and whether it holds images."""
    from pyarrow import types

    if types.is_struct(column.type):
        parts = {
            field.name: part for field, part in zip(column.type, column.flatten(), strict=True)
        }
        held = parts.get("bytes")
        if held is None or held.null_count == len(held):
            return parts.get("path", column), False
        column = held
    return column, types.is_binary(column.type) or types.is_large_binary(column.type)


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> list[str] | None:
    """Find the class names in the metadata that the `datasets` library writes."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        return list((feature.get("feature") or feature)["names"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
