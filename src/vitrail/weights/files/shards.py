"""Weights in several safetensors files, which an index lists (model.safetensors.index.json)."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from vitrail.config import InputError
from vitrail.weights.files.archives import HEADER_LIMIT, check_count
from vitrail.weights.files.tensor_files import WeightsFile, open_weights


def open_checkpoint(path: Path) -> WeightsFile:
    """Open a weights file, or all files that an index lists, and read their headers."""
    if not path.name.endswith(".index.json"):
        return open_weights(path)
    places = read_shard_index(path)
    names = sorted(set(places.values()))
    for name in names:
        if not (path.parent / name).is_file():
            raise InputError(f"{path} lists {name}, which is missing; put it into {path.parent}")
    shards = {name: open_weights(path.parent / name) for name in names}
    lost = [key for key, name in places.items() if key not in shards[name].shapes]
    if lost:
        raise InputError(f"{path.parent / places[lost[0]]} has no {lost[0][:80]!r}, as {path} says")

    def read() -> dict[str, Tensor]:
        tensors = {name: shard.read() for name, shard in shards.items()}
        return {key: tensors[name][key] for key, name in places.items()}

    return WeightsFile(
        path=path,
        kind="safetensors",
        shapes={key: shards[name].shapes[key] for key, name in places.items()},
        dtypes={key: shards[name].dtypes[key] for key, name in places.items()},
        metadata={},
        ignored=(),
        load=read,
        parts=tuple(path.parent / name for name in names),
    )


def read_shard_index(path: Path) -> dict[str, str]:
    """Read which file beside an index holds each tensor."""
    if path.stat().st_size > HEADER_LIMIT:
        raise InputError(f"{path}: too large for an index ({path.stat().st_size:,} bytes)")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    places = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(places, dict) or not places:
        raise InputError(f"{path}: expected files by the names of tensors in weight_map")
    check_count(len(places))
    for name in places.values():
        plain = isinstance(name, str) and name.endswith(".safetensors")
        if not plain or Path(name).name != name or "\\" in name:
            raise InputError(f"{path}: {str(name)[:80]!r} is not a safetensors file beside it")
    return places
