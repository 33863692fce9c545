"""A polite end: the first signal asks the loop to save and stop, a second one ends at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class Stopped(Exception):
    """A signal has stopped the run, which is saved; the exit code is 128 + the signal's number."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"{signal.Signals(number).name}: saved step {step}")
        self.number = number


class Signals:
    """Remembers which signal asked to stop."""

    def __init__(self) -> None:
        self.number = 0
        """The signal's; 0 while there was none."""
        self._owner = os.getpid()

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal; the next one has its default effect."""
        if os.getpid() == self._owner:
            self.number = number
            for each, handler in _DEFAULTS.items():
                signal.signal(each, handler)
        elif number == signal.SIGTERM:  # a forked data worker, which somebody ends
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        # Ctrl-C reaches the workers too; they stay, for the run ends with the step it is in.


@contextmanager
def listen() -> Iterator[Signals]:
    """Listen for SIGTERM and SIGINT; only a process's main thread can."""
    signals = Signals()
    try:
        old = {number: signal.signal(number, signals.take) for number in _DEFAULTS}
    except ValueError:  # not the main thread
        yield signals
        return
    try:
        yield signals
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
