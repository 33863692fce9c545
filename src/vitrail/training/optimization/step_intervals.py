"""When what happens in a run beside its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(kw_only=True)
class Intervals:
    """When what happens, in steps; 0 is never."""

    total: int
    """The last step; a run with a deadline plans it anew."""
    evaluate: int
    save: int | None
    """None: by time."""
    fewshot: int = 0
    pause: int | None = None
    """The step at which the run pauses, evaluated and saved, before it is at its end."""

    def due(self, every: int, step: int) -> bool:
        """Tell whether something is to happen after a step; at an end or a pause everything is."""
        return every > 0 and step > 0 and (step % every == 0 or self.rests(step))

    def acts(self, step: int) -> bool:
        """Tell whether anything is to happen after a step that needs the weights of that step."""
        return self.rests(step) or self.measures(step) or self.due(self.save or 0, step)

    def measures(self, step: int) -> bool:
        """Tell whether the weights of a step are evaluated in any way."""
        return self.due(self.evaluate, step) or self.due(self.fewshot, step)

    def rests(self, step: int) -> bool:
        """Tell whether no step is taken after this one for now."""
        return step == self.total or (self.pause is not None and step >= self.pause)


class SaveTimer:
    """Says by the clock when to save: every five minutes, and less often where saving is slow."""

    SECONDS = 300.0
    _COST = 20  # saves take at most the 20th part of the time

    def __init__(self) -> None:
        self._next = time.monotonic() + self.SECONDS

    def due(self) -> bool:
        """Tell whether it is time."""
        return time.monotonic() >= self._next

    def time(self, save: Callable[[int], None], step: int) -> None:
        """Save, and plan the next time."""
        start = time.monotonic()
        save(step)
        now = time.monotonic()
        self._next = now + max(self.SECONDS, self._COST * (now - start))
