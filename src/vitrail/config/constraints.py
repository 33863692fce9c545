"""What the type of a field says beyond its Python type: which numbers, and when it is used."""

from __future__ import annotations

import math
from typing import Annotated


class Range:
    """The numbers a field may have, in interval notation: `Annotated[float, Range("[0, 1)")]`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._low, self._high = (float(bound) for bound in text[1:-1].split(","))

    def __contains__(self, value: float) -> bool:
        if abs(value) == math.inf:  # math.isinf refuses large whole numbers
            return False
        low = value > self._low or (value == self._low and self.text.startswith("["))
        return low and (value < self._high or (value == self._high and self.text.endswith("]")))

    def __str__(self) -> str:
        """Say what a value must be: "in [0, 1)", "at least 1", "above 0"."""
        if math.isfinite(self._high):
            return f"in {self.text}"
        return f"{'at least' if self.text.startswith('[') else 'above'} {self._low:g}"


class UsedIf:
    """Where a field is read: `Annotated[float, UsedIf("kind", "sgd", "muon")]`.

    With another `kind` its value is refused unless it is the default, and changing the kind of a
    record puts the default back.
    """

    def __init__(self, field: str, *values: object) -> None:
        self.field, self.values = field, values


PositiveInt = Annotated[int, Range("[1, inf)")]
NonNegativeInt = Annotated[int, Range("[0, inf)")]
PositiveFloat = Annotated[float, Range("(0, inf)")]
NonNegativeFloat = Annotated[float, Range("[0, inf)")]
UnitFloat = Annotated[float, Range("[0, 1]")]
