"""The "vitrail" log during a run: with times to a file, as plain lines to stderr."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from vitrail.config import InputError

log = logging.getLogger("vitrail")
_FORM = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


def format_log(text: str) -> str:
    """Format a line as in the log file, with the time."""
    record = log.makeRecord(log.name, logging.INFO, "", 0, text, (), None)
    return _FORM.format(record)


class _Level:
    """The log's level, which the last of several runs in threads puts back."""

    def __init__(self) -> None:
        self._lock, self._runs, self._before = threading.Lock(), 0, logging.NOTSET

    def enter(self) -> None:
        """Let lines of INFO through, unless somebody has chosen a level."""
        with self._lock:
            if not self._runs:
                self._before = log.level
                if log.level == logging.NOTSET:
                    log.setLevel(logging.INFO)
            self._runs += 1

    def leave(self) -> None:
        """Put the level back that was there before the first one."""
        with self._lock:
            self._runs -= 1
            if not self._runs:
                log.setLevel(self._before)


_level = _Level()


@contextmanager
def show_log() -> Iterator[None]:
    """Show the log on stderr until the block ends, unless somebody does already."""
    sink = None if _is_shown() else _Sink(_say, _Plain())
    _level.enter()
    if sink is not None:
        log.addHandler(sink)
    try:
        yield
    finally:
        _level.leave()
        if sink is not None:
            log.removeHandler(sink)


@contextmanager
def log_to(write: Callable[[str], None]) -> Iterator[None]:
    """Send the log's lines to `write`, with times, and to stderr until the block ends.

    If the program prints the log on stderr already, that is left to it. An exception that ends the
    block is logged too, with its traceback unless it is the user's input or a stop.
    """
    kept = _Sink(write, _FORM)
    with show_log():
        log.addHandler(kept)
        try:
            yield
        except BaseException as error:
            wished = isinstance(error, InputError) or not isinstance(error, Exception)
            text = f"the run ends here: {type(error).__name__} {error}".rstrip()
            trace = None if wished else sys.exc_info()
            kept.handle(log.makeRecord(log.name, logging.ERROR, "", 0, text, (), trace))
            raise
        finally:
            log.removeHandler(kept)


class _Sink(logging.Handler):
    """Hands each line to a function."""

    def __init__(self, write: Callable[[str], None], formatter: logging.Formatter) -> None:
        super().__init__()
        self._write, self.shows = write, write is _say
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


class _Plain(logging.Formatter):
    """The text alone, with the level for warnings and errors."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def _say(line: str) -> None:
    """Print on the current stderr, which prints above a progress bar while one is shown."""
    with suppress(OSError):  # the terminal has gone
        sys.stderr.write(line + "\n")


def _is_shown() -> bool:
    """Tell whether the program we are part of prints the log on stderr."""
    handlers = log.handlers + (logging.getLogger().handlers if log.propagate else [])
    if any(isinstance(handler, _Sink) and handler.shows for handler in handlers):
        return True
    streams = [getattr(handler, "stream", None) for handler in handlers]
    return any(stream in (sys.stderr, sys.__stderr__) for stream in streams if stream)
