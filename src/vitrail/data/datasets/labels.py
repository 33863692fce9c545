"""Labels as they are written in lists: text, whole numbers, or several in one cell."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from vitrail.config import InputError

UNLABELED = "image"
"""The one class of images without labels."""

Label = str | int
Labels = Label | list[Label] | None
"""An image's label; a list for several, None for none."""


def read_label(cell: Any) -> Labels:
    """Read a cell: a label, or several as a list, as JSON, or separated by `|` or `;`."""
    if isinstance(cell, str):
        return _read_text(cell)
    return _read_several(cell) if isinstance(cell, list | tuple | np.ndarray) else _read_one(cell)


@lru_cache(1 << 16)  # a million rows have a thousand labels
def _read_text(text: str) -> Labels:
    if text.lstrip().startswith("["):
        try:
            cells = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{text[:60]!r} is not a JSON list") from None
        return _read_several(cells)
    return _read_several(re.split(r"[|;]", text)) if re.search(r"[|;]", text) else _read_one(text)


def _read_several(cells: Any) -> list[Label]:
    found = [_read_one(cell) for cell in cells]
    return list(dict.fromkeys(label for label in found if label is not None))


def _read_one(cell: Any) -> Label | None:
    if isinstance(cell, str):
        text = cell.strip()
        # 007 stays text: only what a number prints as is one.
        return int(text) if re.fullmatch(r"0|-?[1-9]\d{0,17}", text, re.ASCII) else text or None
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, int | float) and cell == cell // 1:
        return int(cell)
    raise InputError(f"expected a label of text or a whole number, got {str(cell)[:60]!r}")


def name_labels(
    labels: Sequence[Labels], names: Sequence[str] | None
) -> tuple[list[str], Sequence[Labels]]:
    """Name the classes; return them and the labels, as names or as class indices.

    Without `names`, the labels are the names: numbers sorted by value, text by its bytes. With
    them, whole numbers are indices, unless each is a name too. If one label is a list, all are.
    """
    several = any(isinstance(label, list) for label in labels)
    rows = [
        each if isinstance(each, list) else [each] if each is not None else [] for each in labels
    ]
    there = {label for row in rows for label in row}
    words = {str(label) for label in there}
    whole = [label for label in there if isinstance(label, int)]
    counting = len(whole) == len(there) and names is not None and not words <= set(names)
    if names is None and len(whole) == len(there):
        names = [str(label) for label in sorted(whole)]
    elif names is None:
        names = sorted(words, key=lambda word: word.encode("utf-8", "surrogatepass"))
    named: list[list[Label]] = rows
    if not counting:
        named = [[str(label) for label in row] for row in rows]
    return list(names), named if several else [row[0] if row else None for row in named]
