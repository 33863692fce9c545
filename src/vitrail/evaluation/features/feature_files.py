"""Features as files: Parquet, npy or safetensors, the same bytes for the same features.

FILE.parquet       name, label, class, features: one row per image
FILE.npy           features (n, width); FILE.rows.csv beside it has name, label and class
FILE.safetensors   features and labels; FILE.rows.csv as well

Names that are not UTF-8 are escaped, as in messages.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.evaluation.features.image_features import Features
from vitrail.files import check_writable, replacing
from vitrail.text import encodable, to_json

SUFFIXES = (".parquet", ".npy", ".safetensors")
_ROWS = 8192  # of a row group, and written at a time


def check_out(path: Path) -> None:
    """Refuse a file that can't be written, before hours of computing."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    check_writable(path)
    if path.suffix == ".parquet":
        import_arrow()


def write_features(features: Features, path: Path, facts: Mapping[str, str]) -> list[Path]:
    """Write features with labels and names; `facts` say in the file where they come from.

    Return the files, each of which is whole or not there; the one named comes last.
    """
    check_out(path)
    if path.suffix == ".parquet":
        with replacing(path) as part:
            _write_parquet(features, part, facts)
        return [path]
    rows = path.with_suffix(".rows.csv")
    with replacing(rows) as part:
        _write_rows(features, part)
    write = _write_npy if path.suffix == ".npy" else _write_safetensors
    with replacing(path) as part:
        write(features, part, facts)
    return [rows, path]


def _write_npy(features: Features, path: Path, facts: Mapping[str, str]) -> None:
    with path.open("wb") as file:
        np.save(file, features.values)


def _write_safetensors(features: Features, path: Path, facts: Mapping[str, str]) -> None:
    """Write what safetensors' own `save_file` would, which holds the file in memory twice."""
    tensors = {"features": features.values, "labels": features.labels}
    # In its order: the widest types first, then by name.
    ordered = sorted(tensors.items(), key=lambda each: (-each[1].itemsize, each[0]))
    # One entry, because safetensors writes several in an order that changes from call to call.
    header: dict[str, Any] = {"__metadata__": {"vitrail": to_json({**facts})}}
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        kind = f"{array.dtype.kind.upper()}{8 * array.itemsize}"
        header[name] = {"dtype": kind, "shape": [*array.shape], "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            for start in range(0, len(array), _ROWS):
                file.write(np.ascontiguousarray(array[start : start + _ROWS]).data)


def _write_rows(features: Features, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("name", "label", "class"))
        for name, label in zip(features.names.tolist(), features.labels, strict=True):
            numbers = np.flatnonzero(label) if label.ndim else [int(label)]
            texts = " ".join(map(str, numbers)), "|".join(features.classes[n] for n in numbers)
            writer.writerow((encodable(name), texts[0], encodable(texts[1])))


def _write_parquet(features: Features, path: Path, facts: Mapping[str, str]) -> None:
    pa, parquet = import_arrow()
    said = {key: encodable(text) for key, text in facts.items()}
    names = [encodable(name) for name in features.classes]
    several = features.labels.ndim == 2
    whole = pa.list_(pa.int64()), pa.list_(pa.string())
    label, name = whole if several else (pa.int64(), pa.string())
    vector = pa.list_(pa.float32(), features.values.shape[1])
    kinds = {"name": pa.string(), "label": label, "class": name, "features": vector}
    schema = pa.schema(list(kinds.items()), metadata=said)
    # Through a file, because pyarrow takes only names that are UTF-8.
    with path.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            labels: list[Any] = features.labels[rows].tolist()
            if several:
                labels = [np.flatnonzero(row).tolist() for row in features.labels[rows]]
            classes = [[names[n] for n in each] if several else names[each] for each in labels]
            flat = pa.array(features.values[rows].reshape(-1))
            columns = {
                "name": pa.array(map(encodable, features.names[rows].tolist()), pa.string()),
                "label": pa.array(labels, label),
                "class": pa.array(classes, name),
                "features": pa.FixedSizeListArray.from_arrays(flat, type=vector),
            }
            writer.write_table(pa.table(columns, schema=schema))


def import_arrow() -> tuple[Any, Any]:
    """Import pyarrow and its parquet, or say how to get them."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install 'vitrail[data]'") from None
    return pa, parquet
