"""Features larger than memory: rows in a file without a name, mapped, and read block by block.

What fits easily is held in memory. The file is in the folder for temporary files (TMPDIR); it takes
space while it is used and is gone when the process ends, however it ends.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError

HELD = 2**28
"""Bytes of rows that are held in memory; more go to a file."""
_BLOCK = 2**26  # bytes of a block of float64


class RowWriter:
    """Collects rows (n, width) as they come."""

    def __init__(self) -> None:
        self._held: list[np.ndarray] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def add(self, rows: np.ndarray) -> None:
        """Append rows; all have the same width and type."""
        self._held.append(np.ascontiguousarray(rows))
        self._bytes += rows.nbytes
        if self._file is None and self._bytes <= HELD:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="vitrail-")  # noqa: SIM115
            for each in self._held:
                self._file.write(each.data)
        except OSError as error:
            hint = "free some space, or set TMPDIR to another folder"
            where = f"{tempfile.gettempdir()}: features can't be written"
            raise InputError(f"{where}: {error.strerror}; {hint}") from None
        self._held = [rows[:0]]

    def finish(self) -> np.ndarray:
        """Give all rows: an array, or the mapped file."""
        if self._file is None:
            return np.concatenate(self._held) if self._held else np.empty((0, 0), np.float32)
        like = self._held[0]
        with self._file as file:
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0)  # which keeps the file after it is closed
        return np.frombuffer(mapped, like.dtype).reshape(-1, *like.shape[1:])


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Copy rows (given by their numbers), to a mapped file where they are many."""
    if len(rows) * values[:1].nbytes <= HELD:
        return values[rows]
    writer = RowWriter()
    for block in split_rows(len(rows), values.shape[1]):
        writer.add(values[rows[block]].numpy())
    return torch.from_numpy(writer.finish())


def split_rows(count: int, numbers: int) -> Iterator[slice]:
    """Split rows into blocks whose `numbers` a row are a bounded part of memory in float64."""
    size = max(1, _BLOCK // (8 * max(numbers, 1)))
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))


class StandardizedRows:
    """Features (n, width) with a mean of 0 and a std of 1, in float64 when they are read.

    Both are those of the features themselves unless given. A feature that is always the same is 0.
    """

    def __init__(
        self, values: Tensor, mean: Tensor | None = None, std: Tensor | None = None
    ) -> None:
        if mean is None or std is None:
            mean, std = _mean_std(values)
        self.mean, self.std = mean, std
        self._held: Tensor | None = None
        self._values = values
        if 8 * values.numel() <= HELD:
            self._held = self._standardize(values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def shape(self) -> torch.Size:
        """Rows and width."""
        return self._values.shape

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Read some rows."""
        return self._standardize(self._values[rows]) if self._held is None else self._held[rows]

    def only(self, rows: Tensor) -> StandardizedRows:
        """Select rows; mean and std stay."""
        return StandardizedRows(take_rows(self._values, rows), self.mean, self.std)

    def _standardize(self, values: Tensor) -> Tensor:
        return (values.double() - self.mean) / self.std


def _mean_std(values: Tensor) -> tuple[Tensor, Tensor]:
    """Give each feature's mean, and its std, which is 1 where all are the same."""
    blocks = list(split_rows(*values.shape))
    if len(blocks) == 1:
        std, mean = torch.std_mean(values.double(), 0, correction=0)
    else:
        total = torch.zeros(values.shape[1], dtype=torch.float64)
        mean = sum((values[block].double().sum(0) for block in blocks), total) / len(values)
        squares = ((values[block].double() - mean).square_().sum(0) for block in blocks)
        std = (sum(squares, total) / len(values)).sqrt()
    return mean, std.masked_fill(std == 0, 1.0)
