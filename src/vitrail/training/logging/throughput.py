"""Throughput of a run: images per second, fraction of time waiting for data, memory."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Throughput:
    """The throughput of some steps."""

    images: float
    """Images per second."""
    waiting: float
    """Fraction of the time spent waiting for data."""


class _Totals(NamedTuple):
    """Sums over the steps so far, without the first, which also sets up."""

    seconds: float = 0.0
    images: int = 0
    waited: float = 0.0


class ThroughputMeter:
    """Counts images and seconds of the steps, without the time of evaluations between them."""

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
        """Leave out the time since the last step, which went to an evaluation."""
        if self._last is not None:
            self._last = now


class ThroughputWindow:
    """Throughput since the previous reading, or since the `span`-th reading before."""

    def __init__(self, pace: ThroughputMeter, span: int = 1) -> None:
        self._pace = pace
        self._marks = deque([pace.totals], maxlen=span)

    def read(self) -> Throughput | None:
        """Return the throughput; None if no time has passed."""
        now, then = self._pace.totals, self._marks[0]
        self._marks.append(now)
        if now.seconds == then.seconds:
            return None
        seconds = now.seconds - then.seconds
        waiting = min((now.waited - then.waited) / seconds, 1.0)
        return Throughput((now.images - then.images) / seconds, waiting)


def peak_memory() -> int | None:
    """Return the peak memory in bytes, of the GPU if one is used, otherwise of this process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved()
    try:
        import resource  # here, because Windows has none
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
