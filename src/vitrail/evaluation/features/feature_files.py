"""Features as files: Parquet, npy or safetensors, the same bytes for the same features.

FILE.parquet       name, label, class, features: one row per image
FILE.npy           features (n, width); FILE.rows.csv beside it has name, label and class
FILE.safetensors   features and labels; FILE.rows.csv as well

Names that are not UTF-8 are escaped, as in messages.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.evaluation.features.extract import Features
from vitrail.files import check_writable, replacing
from vitrail.text import encodable, to_json

SUFFIXES = (".parquet", ".npy", ".safetensors")


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
    from safetensors.numpy import save_file

    tensors = {"features": features.values, "labels": features.labels}
    # One entry, because safetensors writes several in an order that changes from call to call.
    said = {"vitrail": to_json({**facts})}
    save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, path, said)


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
    width = features.values.shape[1]
    several = features.labels.ndim == 2
    rows = [np.flatnonzero(row).tolist() for row in features.labels] if several else None
    labels = pa.array(features.labels if rows is None else rows)
    names = [encodable(name) for name in features.classes]
    classes = (
        [names[number] for number in features.labels.tolist()]
        if rows is None
        else [[names[number] for number in row] for row in rows]
    )
    flat = pa.array(features.values.reshape(-1))
    columns = {
        "name": pa.array([encodable(name) for name in features.names.tolist()], pa.string()),
        "label": labels,
        "class": pa.array(classes),
        "features": pa.FixedSizeListArray.from_arrays(flat, width),
    }
    said = {key: encodable(text) for key, text in facts.items()}
    table = pa.table(columns).replace_schema_metadata(said)
    with path.open("wb") as file:  # because pyarrow takes only names that are UTF-8
        parquet.write_table(table, file, row_group_size=8192)


def import_arrow() -> tuple[Any, Any]:
    """Import pyarrow and its parquet, or say how to get them."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install 'vitrail[data]'") from None
    return pa, parquet
