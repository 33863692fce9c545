"""The "vitrail" log during a run: into a file with times, and on stderr as plain lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from vitrail.config import InputError

log = logging.getLogger("vitrail")
_FORM = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


def format_log(text: str) -> str:
    """Write a line as the log's file has it, with the time."""
    record = log.makeRecord(log.name, logging.INFO, "", 0, text, (), None)
    return _FORM.format(record)


@contextmanager
def log_to(write: Callable[[str], None]) -> Iterator[None]:
    """Send the log's lines to `write`, with times, and to stderr until the block ends.

    Who shows the log on stderr already is left to do so. An exception that ends the block is
    written too, with its traceback unless it is a person's mistake or wish.
    """
    kept = _Sink(write, _FORM)
    sinks = [kept] if _is_shown() else [kept, _Sink(_say, _Plain())]
    level = log.level
    if level == logging.NOTSET:
        log.setLevel(logging.INFO)
    for sink in sinks:
        log.addHandler(sink)
    try:
        yield
    except BaseException as error:
        wished = isinstance(error, InputError) or not isinstance(error, Exception)
        text = f"the run ends here: {type(error).__name__} {error}".rstrip()
        trace = None if wished else sys.exc_info()
        kept.handle(log.makeRecord(log.name, logging.ERROR, "", 0, text, (), trace))
        raise
    finally:
        log.setLevel(level)
        for sink in sinks:
            log.removeHandler(sink)


class _Sink(logging.Handler):
    """Hands each line to a function."""

    def __init__(self, write: Callable[[str], None], formatter: logging.Formatter) -> None:
        super().__init__()
        self._write = write
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


class _Plain(logging.Formatter):
    """The text alone; what is more than news says so."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def _say(line: str) -> None:
    """Print on today's stderr: while a bar is shown, that is a stand-in which prints above it."""
    with suppress(OSError):  # the terminal has gone
        sys.stderr.write(line + "\n")


def _is_shown() -> bool:
    """Tell whether the program we are part of prints the log on stderr."""
    handlers = log.handlers + (logging.getLogger().handlers if log.propagate else [])
    streams = [getattr(handler, "stream", None) for handler in handlers]
    return any(stream in (sys.stderr, sys.__stderr__) for stream in streams if stream)
