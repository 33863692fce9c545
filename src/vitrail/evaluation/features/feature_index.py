"""Features read back from the files of `vitrail embed`, to find the images nearest to others.

The search is exact and reads every feature once: a million images of width 768 are 3 GB.
FILE.safetensors is memory-mapped, one copy for all processes; FILE.parquet is held by each.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.evaluation.features.feature_files import import_arrow
from vitrail.evaluation.features.neighbors import nearest_rows, row_norms
from vitrail.files import utf8_path

_AGAIN = "write it again with vitrail embed"


@dataclass(frozen=True, kw_only=True)
class FeatureIndex:
    """The features of images, with their names and labels."""

    facts: dict[str, str]
    """Where the features come from: model, data, split, features, weights."""
    values: Tensor
    """(n, width), float32."""
    names: Sequence[str]
    labels: Sequence[str]
    """Each image's class, or several: A|B."""

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def norms(self) -> Tensor:
        """The norm of each row."""
        return row_norms(self.values)

    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the rows nearest to each query (n, width) by cosine: cosines and rows, (n, k)."""
        return nearest_rows(self.values, queries, k, norms=self.norms)


def read_index(path: Path) -> FeatureIndex:
    """Read what `vitrail embed` wrote; InputError if it is damaged, empty or incomplete."""
    if path.suffix not in (".parquet", ".safetensors"):
        raise InputError(f"{path}: expected FILE.safetensors or FILE.parquet of vitrail embed")
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}; expected features that vitrail embed wrote")
    found = _read_parquet(path) if path.suffix == ".parquet" else _read_safetensors(path)
    if found.values.ndim != 2 or found.values.dtype != torch.float32:
        shape = f"{found.values.dtype} {[*found.values.shape]}"
        raise _damaged(path, f"expected rows of float32, got {shape}")
    if missing := {"model", "data", "split", "features", "weights"} - set(found.facts):
        raise InputError(f"{path} does not say its {' and '.join(sorted(missing))}; {_AGAIN}")
    if not len(found):
        raise InputError(f"{path} holds no images")
    if not len(found) == len(found.names) == len(found.labels):
        raise InputError(f"{path} has names for {len(found.names):,} of {len(found):,}; {_AGAIN}")
    if not bool(found.norms.isfinite().all()):
        raise InputError(f"{path} is damaged: some features are NaN or infinite; {_AGAIN}")
    return found


def _read_safetensors(path: Path) -> FeatureIndex:
    from safetensors import SafetensorError, safe_open

    rows = path.with_suffix(".rows.csv")
    try:
        with utf8_path(path) as name, safe_open(name, "pt") as file:
            facts = dict(json.loads((file.metadata() or {}).get("vitrail", "{}")))
            values: Tensor = file.get_tensor("features")
        with rows.open(encoding="utf-8", newline="") as opened:
            table = list(csv.DictReader(opened))
        names = [row["name"] for row in table]
        labels = [sys.intern(row["class"]) for row in table]
    except FileNotFoundError:
        raise InputError(f"{rows} is missing, which names the rows of {path.name}") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise _damaged(path, error) from None
    return FeatureIndex(facts=facts, values=values, names=names, labels=labels)


def _read_parquet(path: Path) -> FeatureIndex:
    pa, parquet = import_arrow()
    try:
        with utf8_path(path) as name:
            table = parquet.read_table(name, memory_map=True)
        said = table.schema.metadata or {}
        column = table["features"].combine_chunks()
        width = column.type.list_size
        values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), width)
        names: list[str] = table["name"].to_pylist()
        several = pa.types.is_list(table["class"].type)
        classes = table["class"].to_pylist()
    except (OSError, pa.ArrowException, KeyError, AttributeError, ValueError) as error:
        raise _damaged(path, error) from None
    labels = [sys.intern("|".join(each) if several else each) for each in classes]
    facts = {key.decode(): text.decode() for key, text in said.items() if key != b"ARROW:schema"}
    return FeatureIndex(facts=facts, values=torch.tensor(values), names=names, labels=labels)


def _damaged(path: Path, why: object) -> InputError:
    text = " ".join(str(why).split())[:120]
    return InputError(f"{path} is damaged, or vitrail embed did not write it: {text}; {_AGAIN}")
