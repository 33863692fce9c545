"""A source of weights whose files were found, and the configs beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.config import InputError
from vitrail.weights.published.published_weights import PublishedWeights

LARGEST_JSON = 16 << 20
"""Most bytes of a config; 21,843 class names take 2 million."""
INDEX = "model.safetensors.index.json"
"""Which shards hold the weights."""
HUB_NAMES = ("model.safetensors", INDEX, "pytorch_model.bin")
"""What weights are called on the hub, in the order of preference."""
OPEN_CLIP = "open_clip_"
"""How OpenCLIP's files begin, which may stand beside transformers' of the same model."""


@dataclass(frozen=True)
class Resolved:
    """A source's files on this machine."""

    source: str
    """The source in full: a short name is replaced by the file that it stands for."""
    path: Path
    """The weights file; for our own model folder, the folder."""
    config: dict[str, Any] = field(default_factory=dict)
    """What the folder's config.json says; empty without one."""
    preprocessor: dict[str, Any] = field(default_factory=dict)
    """What the folder's preprocessor_config.json says; empty without one."""
    published: PublishedWeights | None = None
    """The checkpoint's record, if it is a known one."""


def read_json(path: Path | None) -> dict[str, Any]:
    """Read a folder's config; nothing where there is none."""
    if path is None or not path.is_file():
        return {}
    if path.stat().st_size > LARGEST_JSON:
        raise InputError(f"{path}: too large for a config ({path.stat().st_size:,} bytes)")
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected keys and values at the top")
    return data
