"""A run that has to end at a time: which step is its last, and how far its schedule is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from vitrail.distributed import Processes
from vitrail.training.optimization.step_intervals import Intervals

_RECENT = 16  # steps whose mean time the next ones are expected to take


class Deadline:
    """Plans a run's remaining steps before each of them, by the time that the last ones took.

    A step takes the schedule on by its part of the steps that are left. So it is the planned
    schedule while steps take the planned time, and ends at its end however long they take.
    """

    def __init__(
        self,
        seconds: float,
        processes: Processes,
        *,
        started: float,
        planned: int,
        most: int,
        evaluation: float,
        after: float,
        ending: float,
    ) -> None:
        """End `seconds` after `started`, a reading of time.monotonic.

        About `planned` steps fit, and `most` are never exceeded. An evaluation takes the time of so
        many steps (`evaluation`), until it is measured; what follows the last one, of `after`, and
        `ending` seconds.
        """
        self.most, self.reached, self._place = most, 0.0, 0.0
        """`reached` is the part of the schedule that is behind."""
        self._seconds, self._started, self._processes = seconds, started, processes
        self._planned, self._after, self._ending = planned, after, ending
        self._guessed = evaluation
        self._last: float | None = None
        self._guess(planned)

    @property
    def spent(self) -> float:
        """Seconds that the run has taken, before it was resumed too."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._seconds - self.spent

    def resume(self, reached: float, spent: float, *, steps: int) -> None:
        """Go on where a run was saved: with so much of schedule and time behind, `steps` ahead."""
        self.reached = reached
        self._started -= spent
        self._guess(steps)

    def follow(self, schedule: Callable[[float], float]) -> Callable[[float], float]:
        """Return the planned schedule at the place where the step that `replan` saw last is."""
        return lambda step: schedule(self._place * self._planned)

    def replan(self, step: int, intervals: Intervals) -> None:
        """Plan a step and those after it; set the total that can be reached."""
        now = time.monotonic()
        if self._last is not None:
            gap = now - self._last
            if intervals.measures(step):
                self._evaluation = max(0.0, gap - self._step_seconds)
            else:
                self._gaps.append(gap)
        self._last = now
        steps = self._processes.broadcast(self._steps_left(step, intervals.evaluate))
        steps = max(1, min(steps, self.most - step))
        intervals.total = step + steps
        self._place = self.reached
        self.reached += (1 - self.reached) / steps

    def _guess(self, steps: int) -> None:
        """Take a step's time to be what lets so many fill the time that is left."""
        each = max(0.0, self.left - self._ending) / (steps + self._guessed + self._after or 1)
        self._gaps, self._evaluation = deque([each], _RECENT), self._guessed * each

    @property
    def _step_seconds(self) -> float:
        return sum(self._gaps) / len(self._gaps)

    def _steps_left(self, step: int, every: int) -> int:
        """Count the steps that fit, with an evaluation `every` so many and one at the end."""
        each, evaluation = self._step_seconds, self._evaluation if every else 0.0
        left = self.left - self._ending - self._after * each - evaluation
        most = self.most - step
        if each <= 0:
            return most
        steps, ahead = 0, every - step % every if every else most
        while steps < most and left >= ahead * each + evaluation:
            steps, left, ahead = steps + ahead, left - ahead * each - evaluation, every or most
        return steps + min(ahead, round(max(0.0, left) / each))
