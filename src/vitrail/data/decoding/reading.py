"""How the files of a dataset become 8 bits: one rule for all its images, kept with the model.

A 16-bit file does not say whether its camera filled 12 bits or all 16, nor a float what is white,
nor a stack of pages which one matters. The rule is found in the dataset, or said with DATA:
`photos/,levels=0-4095`, `stacks/,page=max`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitrail.config import InputError

TOPS = (255, 1023, 4095, 16383, 65535)
"""The largest values of 8, 10, 12, 14 and 16 bits."""
_LARGEST = 1e30
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_LEVELS = re.compile(rf"({_NUMBER})-({_NUMBER})", re.IGNORECASE)
_OPTION = re.compile(r",(levels|page)=([^,]*)")
_PAGES = 10_000  # of a file; no stack has more


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is black and white in images of more than 8 bits, and which page of a TIFF counts."""

    levels: tuple[float, float] | None = None
    """Values of black and white; without them, each file's own range or bits."""
    page: int | Literal["max", "mean"] = 1
    """The page that is used, from 1; or the largest or mean value of all pages, pixel by pixel."""

    def __post_init__(self) -> None:
        if self.levels is not None:
            low, high = self.levels
            if not (abs(low) <= _LARGEST and abs(high) <= _LARGEST and low < high):
                raise InputError(f"levels must be two numbers, black below white, got {low}-{high}")
        if isinstance(self.page, int) and not 1 <= self.page <= _PAGES:
            raise InputError(f"page must be in [1, {_PAGES:_}], max or mean, got {self.page}")
        if isinstance(self.page, str) and self.page not in ("max", "mean"):
            raise InputError(f"page must be a number, max or mean, got {self.page!r}")

    def __str__(self) -> str:
        """Write it as DATA's options do."""
        found = ""
        if self.levels is not None:
            found += f",levels={show_level(self.levels[0])}-{show_level(self.levels[1])}"
        return found + (f",page={self.page}" if self.page != 1 else "")

    def explain(self) -> str:
        """Say how a program that has no such option has to read files before."""
        steps = list[str]()
        if self.page != 1:
            one = f"page {self.page}" if isinstance(self.page, int) else f"the {self.page} value"
            of = "of TIFFs" if isinstance(self.page, int) else "of all pages of TIFFs"
            steps.append(f"take {one} {of}")
        if self.levels is not None:
            low, high = map(show_level, self.levels)
            shifted = "value" if self.levels[0] == 0 else f"(value - {low})"
            width = high if self.levels[0] == 0 else f"({high} - {low})"
            scale = f"255 * {shifted} / {width}, rounded and clipped to [0, 255]"
            steps.append(f"scale images of more than 8 bits to {scale}")
        return "; ".join(steps)


PLAIN = Reading()
"""Each file by itself, and its first page."""


def show_level(value: float) -> str:
    """Write a level so that it is read back the same."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def split_reading(text: str) -> tuple[str, Reading | None]:
    """Take `,levels=LOW-HIGH` and `,page=N` out of DATA, wherever they stand among its options."""
    found: dict[str, str] = {}
    for name, value in _OPTION.findall(text):
        if name in found:
            raise InputError(f"{text}: {name} is there twice")
        found[name] = value
    if not found:
        return text, None
    levels, page = None, found.get("page", "1")
    if "levels" in found:
        match = _LEVELS.fullmatch(found["levels"])
        if match is None:
            form = "expected the values of black and white, such as levels=0-4095"
            raise InputError(f"{text}: levels={found['levels']}: {form}")
        levels = float(match[1]), float(match[2])
    if page not in ("max", "mean") and not re.fullmatch(r"\d{1,6}", page, re.ASCII):
        raise InputError(f"{text}: page={page}: expected a number from 1, max or mean")
    try:
        reading = Reading(levels=levels, page=int(page) if page.isdigit() else page)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"{text}: {error}") from None
    return _OPTION.sub("", text), reading


def usual_levels(low: float, high: float, *, whole: bool) -> tuple[float, float]:
    """Choose black and white for values that go from `low` to `high` over a whole dataset.

    They are 0 and the top of a usual range (of 8 to 16 bits, for floats also 1), if the values
    fill a quarter of it; else the smallest and largest value.
    """
    tops = TOPS if whole else (1, *TOPS)
    for top in tops:
        if low >= 0 and high <= top:
            if high - low > top / 4 or (whole and top == TOPS[0]):
                return 0, top
            break
    if 0 <= low <= high / 4 and high > 0:
        return 0, high
    return (low, high) if high > low else (low, low + 1)


def value_range(values: np.ndarray) -> tuple[float, float] | None:
    """Return the smallest and largest finite value; None without any."""
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
