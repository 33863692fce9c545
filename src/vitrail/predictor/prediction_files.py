"""Predictions as files: CSV with one row per class, Parquet with one row per image."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
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
def csv_writer(
    path: Path, targets: Sequence[str] | None = None
) -> Iterator[Callable[[Prediction], None]]:
    """Write a CSV file, complete or not at all; an unreadable image gets one row.

    With `targets`, the numbers of a regression, an image has one row with a column for each.
    """
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS if targets is None else ("path", *targets, "error"))

        def add(prediction: Prediction) -> None:
            name = printable(prediction.path)
            if targets is not None:
                values = prediction.values or dict.fromkeys(targets, "")
                writer.writerow((name, *values.values(), prediction.error or ""))
                return
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
def parquet_writer(
    path: Path, targets: Sequence[str] | None = None
) -> Iterator[Callable[[Prediction], None]]:
    """Write a Parquet file, complete or not at all; an image's classes are a list.

    With `targets`, the numbers of a regression, each is a column.
    """
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
    if targets is not None:
        numbers = [(name, pa.float64()) for name in targets]
        fields = [("path", pa.string()), *numbers, ("error", pa.string())]
    schema = pa.schema(fields)
    rows: list[dict[str, Any]] = []
    with (
        replacing(path) as part,
        part.open("wb") as file,  # whose name may be no UTF-8, which pyarrow takes only
        pq.ParquetWriter(file, schema) as writer,
    ):

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def add(prediction: Prediction) -> None:
            failed = prediction.error is not None
            top = None if failed else [asdict(each) for each in prediction.top]
            named = {"path": printable(prediction.path), "top": top, "error": prediction.error}
            doubts = {"unsure": prediction.unsure, "ood": prediction.ood}
            found = prediction.values or {} if targets is not None else doubts
            rows.append({key: each for key, each in (named | found).items() if key in schema.names})
            if len(rows) == _ROWS_PER_WRITE:
                flush()

        yield add
        flush()
