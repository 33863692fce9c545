"""`InputError`, and the words of its messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress
from numbers import Real
from typing import Any

_SECRETS = re.compile(
    r"([?&](?:[\w-]*(?:signature|credential|token|accesskeyid)|sig)=)[^&\s'\"]+", re.IGNORECASE
)
"""Parameters of a URL that let whoever reads them open it."""


class InputError(ValueError):
    """A mistake in the user's input; its text is one line that says what to fix, and where."""

    def __str__(self) -> str:
        """Join the problems, which are the arguments, to one line without a URL's signature."""
        return _SECRETS.sub(r"\1…", " ".join("; ".join(map(str, self.args)).splitlines()))


def suggest(word: str, choices: Iterable[str], *, where: str = "") -> str:
    """Return "; did you mean 'x' or 'y'?" for the choices (of path `where`) near word, or ""."""
    spellings = {choice.lower(): choice for choice in choices}
    word = word.lower()
    near = [word] if word in spellings else difflib.get_close_matches(word, spellings, n=3)
    shown = [repr(join_path(where, spellings[match])) for match in near]
    return f"; did you mean {either(shown)}?" if shown else ""


def either(words: Iterable[str]) -> str:
    """List words as choices: "a, b or c"."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def join_path(where: str, key: object) -> str:
    """Add a key to a dotted path."""
    return f"{where}.{key}" if where else str(key)


def is_number(value: Any) -> bool:
    """Tell whether a value is a real number, of Python or NumPy, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def read_literal(text: str) -> Any:
    """Read text as None, a bool or a number where it is one."""
    words = {"none": None, "null": None, "true": True, "false": False}
    for read in (words.__getitem__, int, float):
        with suppress(KeyError, ValueError):
            return read(text.lower())
    return text
