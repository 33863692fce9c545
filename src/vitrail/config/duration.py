"""Lengths of training: "500 steps", "7 epochs", "5 %", "1_000_000 images"."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from fractions import Fraction
from reprlib import repr as shorten
from typing import Literal, get_args

from vitrail.config.wording import InputError, either, is_number, read_literal

Unit = Literal["steps", "epochs", "%", "images"]
A_DURATION = "a duration such as '500 steps', '7 epochs', '5 %' or '1_000_000 images'"
_UNITS: dict[str, Unit] = {unit.removesuffix("s"): unit for unit in get_args(Unit)}


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of training in steps, epochs, images or percent; `steps` converts it."""

    amount: int | float
    unit: Unit

    def __post_init__(self) -> None:
        """Refuse what is not a length; hold whole amounts as int so that each prints one way."""
        if self.unit not in get_args(Unit):
            raise InputError(f"expected {either(get_args(Unit))}, got {shorten(self.unit)}")
        if not is_number(self.amount):
            raise InputError(f"expected a number of {self.unit}, got {shorten(self.amount)}")
        most = 100 if self.unit == "%" else 2**53  # up to which a float holds whole numbers exactly
        if not 0 <= self.amount <= most:
            raise InputError(f"expected 0 to {most:_} {self.unit}, got {self.amount}")
        if self.amount == int(self.amount):
            object.__setattr__(self, "amount", int(self.amount))
        elif self.unit in ("steps", "images"):
            raise InputError(f"expected a whole number of {self.unit}, got {self.amount}")

    def __str__(self) -> str:
        """Print the canonical text, which `parse` reads back to an equal Duration."""
        return f"{self.amount:_} {self.unit.removesuffix('s') if self.amount == 1 else self.unit}"

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read text such as "500 steps", "0.5 epochs", "5%" or "1_000_000 images"."""
        number = text.strip().rstrip(string.ascii_letters + "%")
        word = text.strip()[len(number) :].lower().removesuffix("s")
        amount = read_literal(number.strip())
        if type(amount) not in (int, float):
            raise InputError(f"expected {A_DURATION}, got {shorten(text)}")
        if word not in _UNITS:
            examples = either(f"'{number.strip()} {unit}'" for unit in get_args(Unit))
            raise InputError(f"{shorten(text)} has no known unit; write {examples}")
        return cls(amount, _UNITS[word])

    def steps(self, *, images: int, batch: int, total: int | None = None) -> int:
        """Return how many optimizer steps this is, at least one for any epochs above zero.

        An epoch has `images` images, a step `batch`; a percentage refers to `total` steps.
        """
        if self.unit == "%" and total is None:
            raise InputError(f"'{self}' requires a total; give steps or epochs")
        each = {"steps": Fraction(1), "epochs": Fraction(images, batch)}
        each |= {"images": Fraction(1, batch), "%": Fraction(total or 0, 100)}
        # The decimal the user wrote, not its binary neighbor: 0.3 epochs of 5 steps are 1.5 steps.
        count = Fraction(str(self.amount)) * each[self.unit]
        least = 1 if self.unit == "epochs" and self.amount > 0 else 0
        return math.ceil(count) if self.unit == "images" else max(least, round(count))
