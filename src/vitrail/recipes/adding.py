"""What recipes share: a warm-up, and adding options to a model's name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from vitrail.config import Duration
from vitrail.models import parse

WARMUP = Duration(10_000, "steps")
"""Of Table 3, and of the official code of its successors."""


def base_of(model: str) -> str:
    """Return a model's name without resolution and options."""
    return parse(model).name.partition(",")[0].partition("@")[0]


def add_options(model: str, **options: Any) -> str:
    """Add options to a model's name, except those that it has or that its family lacks."""
    spec = parse(model)
    said = {option.partition("=")[0] for option in model.split(",")[1:]}
    said |= {"image"} if "@" in model else set()
    free = {field.name for field in fields(spec)} - said
    return str(replace(spec, **{key: value for key, value in options.items() if key in free}))
