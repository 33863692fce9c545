"""Predictions as files for other programs: CSV, a row a guess, and Parquet, a row an image."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrail.config import InputError
from vitrail.files import replacing
from vitrail.predictor.predictions import Prediction
from vitrail.text import printable

Row = Callable[[str, Prediction | None, str | None], None]
"""What takes an image's path, its prediction, or else why there is none."""

COLUMNS = ("path", "rank", "index", "label", "probability", "error")
_TOGETHER = 4096  # rows of a Parquet file that are written at once


@contextmanager
def csv_table(path: Path) -> Iterator[Row]:
    """Write a CSV, whole or not at all: a row a guess, with one row for an unreadable image."""
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)

        def add(where: str, found: Prediction | None, error: str | None) -> None:
            where = printable(where)
            if found is None:
                writer.writerow((where, "", "", "", "", error))
                return
            for rank, guess in enumerate(found.top, 1):
                row = (where, rank, guess.index, guess.label, f"{guess.probability:.6g}", "")
                writer.writerow(row)

        yield add
        file.flush()


@contextmanager
def parquet_table(path: Path) -> Iterator[Row]:
    """Write a Parquet file, whole or not at all: a row an image, its guesses a list."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install 'vitrail[data]'") from None
    guess = pa.struct(
        [("index", pa.int64()), ("label", pa.string()), ("probability", pa.float64())]
    )
    fields = [("path", pa.string()), ("top", pa.list_(guess)), ("error", pa.string())]
    schema = pa.schema(fields)
    rows: list[dict[str, Any]] = []
    with replacing(path) as part, pq.ParquetWriter(part, schema) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def add(where: str, found: Prediction | None, error: str | None) -> None:
            top = None if found is None else [asdict(guess) for guess in found.top]
            rows.append({"path": printable(where), "top": top, "error": error})
            if len(rows) == _TOGETHER:
                flush()

        yield add
        flush()
