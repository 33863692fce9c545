"""How fast a run is: images a second, the share of time that waits for data, memory."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Throughput:
    """The pace of some steps."""

    images: float
    """Images a second."""
    waiting: float
    """Part of the time that was spent waiting for data."""


class _Totals(NamedTuple):
    """What a session's steps have taken so far, all but the first, which also sets up."""

    seconds: float = 0.0
    images: int = 0
    waited: float = 0.0


class ThroughputMeter:
    """Counts the steps' images and seconds; time between steps for other work can be left out."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.totals = _Totals()

    def step(self, now: float, images: int, waited: float) -> None:
        """Count a step that ends now."""
        if self._last is not None:
            past = self.totals
            self.totals = _Totals(
                past.seconds + now - self._last, past.images + images, past.waited + waited
            )
        self._last = now

    def skip(self, now: float) -> None:
        """Leave out the time since the last step: it went to an evaluation."""
        if self._last is not None:
            self._last = now


class ThroughputWindow:
    """Reads a pace: over the time since the reading before, or since the `span`-th before."""

    def __init__(self, pace: ThroughputMeter, span: int = 1) -> None:
        self._pace = pace
        self._marks = deque([pace.totals], maxlen=span)

    def read(self) -> Throughput | None:
        """Give the speed; None while no time has passed."""
        now, then = self._pace.totals, self._marks[0]
        self._marks.append(now)
        if now.seconds == then.seconds:
            return None
        seconds = now.seconds - then.seconds
        waiting = min((now.waited - then.waited) / seconds, 1.0)
        return Throughput((now.images - then.images) / seconds, waiting)


def peak_memory() -> int | None:
    """Give the most bytes held so far: on the GPU where one is used, else of this process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved()
    try:
        import resource  # here, because Windows has none
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
