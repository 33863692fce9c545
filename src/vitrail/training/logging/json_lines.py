"""Files of JSON lines: truncated to a step when a run resumes; errors never stop a run."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vitrail.config import InputError

log = logging.getLogger("vitrail")


class JSONLines:
    """A file to append lines to; a line that can't be written is dropped, with one warning."""

    def __init__(self, path: Path, *, upto: int | None = None) -> None:
        """Open the file, created if needed; if a step is given, keep only lines up to it."""
        self._path = path
        self._failed = False
        try:
            if upto is not None and path.exists():
                os.truncate(path, _find_end(path, upto))
            # Unbuffered: a line is with the system before append ends, so no kill can take it.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None

    def append(self, line: str) -> None:
        """Write a line whole, or not at all."""
        data = line.encode(errors="backslashreplace") + b"\n"
        start = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(start)
            self._warn(error)

    def read(self) -> bytes:
        """Return the file's content; nothing if it can't be read."""
        with suppress(OSError):
            return self._path.read_bytes()
        return b""

    def sync(self) -> None:
        """Flush all lines to disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:  # some network file systems say so late that the disk is full
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.warning("%s: lines are missing from here on: %s", self._path, error.strerror)


def format_row(step: int, values: Mapping[str, float]) -> str:
    """Format a step's values as JSON that reads back to the same floats; NaN is the text "nan"."""
    row = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
    return json.dumps({"step": step, **row}, allow_nan=False)


def _find_end(path: Path, upto: int) -> int:
    """Find where the last whole line of a step up to `upto` ends."""
    end = position = 0
    with path.open("rb") as file:
        for line in file:
            position += len(line)
            if line.endswith(b"\n") and _step_of(line) <= upto:
                end = position
    return end


def _step_of(line: bytes) -> float:
    try:
        step = json.loads(line)["step"]
    except (ValueError, LookupError, TypeError):  # not ours, or half on disk when power failed
        return math.inf
    return step if isinstance(step, int) else math.inf
