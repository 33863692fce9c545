"""A sweep's plan as text: from the shell's words, or a file.

base:                           # words of all cells
data: digits
model: ViT/4@8,depth=2,width=32,heads=2,mlp=64,channels=1
steps: 100
lr: best(1e-3, 3e-3)          # chosen for each cell on held-out images
vary:
model.depth: [1, 2, 4]        # a setting and its values
pooling:                      # or groups of settings by name
token: {model.pool: token}
gap: {model.pool: gap}
seeds: 3                        # 0, 1, 2; or a list
measures: ["fewshot:digits"]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.config import InputError, read_file, suggest
from vitrail.studies.engine.stage_words import takes_none
from vitrail.studies.engine.sweep_plan import Measure, Sweep, Values

_KEYS = ("base", "vary", "seeds", "best", "measures")
_BEST = re.compile(r"best\((.*)\)", re.DOTALL)


def make_plan(
    base: Mapping[str, Any],
    *,
    vary: Mapping[str, Values] | None = None,
    seeds: int | Sequence[int] = 1,
    best: Mapping[str, Sequence[Any]] | None = None,
    measures: Sequence[Measure] = (),
) -> Sweep:
    """Make a plan of words; a word that is the text `best(…)` is chosen from what it lists."""
    words, chosen = dict(base), dict(best or {})
    for name, value in base.items():
        if isinstance(value, str) and (found := _BEST.fullmatch(value.strip())):
            chosen[name] = split_values(found[1], name)
            del words[name]
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    return Sweep(words, vary or {}, tuple(numbers), chosen, measures)


def read_plan(path: str | Path) -> dict[str, Any]:
    """Read a plan file as the arguments of `make_plan`."""
    data = read_file(path)
    for key in data:
        if key not in _KEYS:
            hint = suggest(key, _KEYS) or f"; expected {', '.join(_KEYS)}"
            raise InputError(f"{path}: unknown key {key!r}{hint}")
    for key in ("base", "vary", "best"):
        if not isinstance(data.get(key) or {}, Mapping):
            raise InputError(f"{path}: {key}: expected names and values")
    seeds = data.get("seeds", 1)
    listed = seeds if isinstance(seeds, list) else [seeds]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
        raise InputError(f"{path}: seeds: expected a number or a list of them, got {seeds!r}")
    if not isinstance(data.get("measures") or [], list):
        raise InputError(f"{path}: measures: expected a list")
    return {"base": {}, **{key: value for key, value in data.items() if value is not None}}


def read_words(settings: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Read the shell's words, numbers as numbers."""
    return {
        name: text if _BEST.fullmatch(text.strip()) else read_value(text, name)
        for name, text in ((name.replace("-", "_"), text) for name, text in settings)
    }


def read_axes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Read axes as the shell writes them: NAME=VALUE,VALUE,…; one may come again with more."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise InputError(f"--vary {text}: expected NAME=VALUE,VALUE,…, such as lr=1e-3,3e-3")
        name = name.strip().replace("-", "_")
        axes.setdefault(name, []).extend(split_values(values, name))
    return axes


def read_seeds(text: str) -> int | list[int]:
    """Read --seeds: how many, or which ones."""
    values = split_values(text)
    if not values or not all(isinstance(each, int) and each >= 0 for each in values):
        raise InputError(f"--seeds: expected how many, or a list such as 3,4,5; got {text!r}")
    if len(values) == 1 and values[0] == 0:
        raise InputError("--seeds 0 leaves nothing to run; give one or more")
    return values[0] if len(values) == 1 else values


def split_values(text: str, name: str = "") -> list[Any]:
    """Split a word's values at commas, but not before an option: `ViT-S/16,pool=gap` is one."""
    pieces: list[str] = []
    for piece in text.split(","):
        if pieces and re.match(r"\s*\w+=", piece):
            pieces[-1] += f",{piece}"
        elif piece.strip():
            pieces.append(piece.strip())
    return [read_value(piece, name) for piece in pieces]


def read_value(text: str, name: str = "") -> Any:
    """Read a number, true, false or none; anything else stays text, and `none` where it is one."""
    if text.lower() == "none" and name and takes_none(name):
        return "none"
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text) if text[-1:].isdigit() else text
        except ValueError:
            continue
    return text
