"""Predictions as files: CSV with one row per class, Parquet with one row per image."""

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

COLUMNS = ("path", "rank", "index", "label", "probability", "predicted", "error", "unsure", "ood")
_ROWS_PER_WRITE = 4096


@contextmanager
def csv_writer(path: Path) -> Iterator[Callable[[Prediction], None]]:
    """Write a CSV file, complete or not at all; an unreadable image gets one row."""
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)

        def add(prediction: Prediction) -> None:
            name = printable(prediction.path)
            if prediction.error is not None:
                writer.writerow((name, *[""] * 5, prediction.error, "", ""))
            unsure = "" if prediction.unsure is None else str(prediction.unsure).lower()
            ood = "" if prediction.ood is None else f"{prediction.ood:.4g}"
            for rank, score in enumerate(prediction.top, 1):
                flag = "" if score.predicted is None else str(score.predicted).lower()
                probability = f"{score.probability:.6g}"
                cells = (name, rank, score.index, score.label, probability, flag, "")
                writer.writerow((*cells, unsure, ood))

        yield add
        file.flush()


@contextmanager
def parquet_writer(path: Path) -> Iterator[Callable[[Prediction], None]]:
    """Write a Parquet file, complete or not at all; an image's classes are a list."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install 'vitrail[data]'") from None
    score = pa.struct(
        [
            ("index", pa.int64()),
            ("label", pa.string()),
            ("probability", pa.float64()),
            ("predicted", pa.bool_()),
        ]
    )
    fields = [("path", pa.string()), ("top", pa.list_(score)), ("error", pa.string())]
    fields += [("unsure", pa.bool_()), ("ood", pa.float64())]
    schema = pa.schema(fields)
    rows: list[dict[str, Any]] = []
    with replacing(path) as part, pq.ParquetWriter(part, schema) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def add(prediction: Prediction) -> None:
            failed = prediction.error is not None
            top = None if failed else [asdict(each) for each in prediction.top]
            named = {"path": printable(prediction.path), "top": top, "error": prediction.error}
            rows.append({**named, "unsure": prediction.unsure, "ood": prediction.ood})
            if len(rows) == _ROWS_PER_WRITE:
                flush()

        yield add
        flush()
