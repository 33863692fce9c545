"""Names of files in messages: any bytes, on one line.

A name that is not UTF-8 is text with surrogates, as os.fsdecode makes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrail.config import suggest

# What breaks a line, moves a terminal's cursor, turns the direction of writing, or is not text.
# The set is fixed (not str.isprintable, which changes with Python's Unicode tables), because hashes
# of printable names decide splits.
_UNSAFE = re.compile(
    r"[\\\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_LETTERS = {"\\": "\\\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|(.))", re.DOTALL)


def printable(name: str) -> str:
    r"""Write a name on one line, different names differently: `\n`, `\x1b`, `\xff` for a byte."""
    return _UNSAFE.sub(_escape, name)


def displayable(text: str) -> str:
    r"""Escape what would break a line or a terminal; a backslash may be such an escape already."""
    return "".join(each if each == "\\" else printable(each) for each in text)


def original(text: str) -> str:
    """Read back the name that `printable` wrote."""
    return _ESCAPE.sub(_character, text)


def encodable(name: str) -> str:
    """Return a name for a UTF-8 file: unchanged, or `printable` if it is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return printable(name)
    return name


def to_json(value: Any, indent: int | None = None) -> str:
    """Write plain data as JSON that every reader takes: names that are not UTF-8 are `printable`.

    NaN and infinity, which JSON lacks, are a ValueError.
    """
    text = json.dumps(value, indent=indent, allow_nan=False)
    # Only a surrogate is written so, alone or as half of a character beyond the first 65,536.
    if "\\ud" in text:
        text = json.dumps(_make_encodable(value), indent=indent)
    return text


def _make_encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_make_encodable(key): _make_encodable(item) for key, item in value.items()}
    return [_make_encodable(each) for each in value] if isinstance(value, list | tuple) else value


def expand(text: str) -> Path:
    """Make a path of text; ~ is the user's home."""
    with suppress(RuntimeError):  # there is no such user
        return Path(text).expanduser()
    return Path(text)


def show_duration(seconds: float) -> str:
    """Write a time: 45 s, 12.0 minutes, 3.5 hours."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def show_rate(rate: float) -> str:
    """Write images per second: 0.65, 21.3, 32,592."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def show(path: Path) -> str:
    """Return a path for a message."""
    return printable(path.as_posix())


def neighbors(path: Path) -> str:
    """Suggest existing names near a path that does not exist."""
    with suppress(OSError, ValueError):
        return suggest(path.name, (other.name for other in path.parent.iterdir()))
    return ""


def quoted(names: Sequence[str], most: int = 3) -> str:
    """Quote names for a message, the first few of many."""
    shown = ", ".join(f"'{printable(name)}'" for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        code -= 0xDC00
    elif code >= 0x80:
        return f"\\u{code:04x}"
    return _LETTERS.get(character) or f"\\x{code:02x}"


def _character(match: re.Match[str]) -> str:
    if match[1]:
        code = int(match[1], 16)
        return chr(code if code < 0x80 else code + 0xDC00)
    if match[2]:
        return chr(int(match[2], 16))
    return {"t": "\t", "n": "\n", "r": "\r"}.get(match[3], match[3])
