"""A run with a deadline: it ends in time, its schedule at its end, whatever steps take."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from vitrail.distributed import Processes
from vitrail.signals import Signals
from vitrail.training.loop import LaunchedStep, Trainer, fit
from vitrail.training.optimization import deadline as module
from vitrail.training.optimization.deadline import Deadline
from vitrail.training.optimization.schedule import LRSchedule, rate_at
from vitrail.training.optimization.step_intervals import Intervals

ALONE = cast(Processes, type("Alone", (), {"broadcast": staticmethod(lambda value: value)}))
PLANNED, EVALUATION = 100, 2.0


@dataclass
class Clocked:
    """A trainer whose steps take the seconds that it is told, by a clock that nobody waits for."""

    seconds: Callable[[int], float]
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.places: list[float] = []
        self.evaluated: list[int] = []

    def launch(self, step: int, *_: Any) -> LaunchedStep:
        self.now += self.seconds(step)
        self.places.append(self.schedule(step))
        numbers: Tensor = tensor([1.0, 1, 0, 0, 0, 0, 1, 0])
        return LaunchedStep(step, 1e-3, numbers, stop=False)

    def evaluate(self, step: int) -> bool:
        self.now += EVALUATION
        self.evaluated.append(step)
        return False

    def fit(self, deadline: Deadline, intervals: Intervals, start: int = 0) -> tuple[str, int]:
        self.schedule = deadline.follow(lambda place: place)

        def batches() -> Iterator[Any]:
            yield from itertools.repeat(None)

        return fit(
            cast(Trainer, self),
            batches(),
            intervals,
            Signals(),
            start=start,
            ahead=0,
            deadline=deadline,
            record=lambda *_: None,
            evaluate=self.evaluate,
            save=lambda _: None,
            blame=lambda _: "",
        )


def run_for(
    seconds: float, each: Callable[[int], float], *, most: int = 2 * PLANNED, ending: float = 0.0
) -> tuple[Clocked, int, float]:
    """Run with a plan of 100 steps of a second; give what it took."""
    clocked = Clocked(each)
    intervals = Intervals(total=PLANNED, evaluate=25, save=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.time, "monotonic", lambda: clocked.now)
        deadline = Deadline(
            *(seconds, ALONE),
            started=1000.0,
            planned=PLANNED,
            most=most,
            evaluation=EVALUATION,
            after=0.0,
            ending=ending,
        )
        reason, step = clocked.fit(deadline, intervals)
    assert reason == "finished"
    assert intervals.total == step == clocked.evaluated[-1]
    return clocked, step, clocked.now - 1000.0


def test_a_plan_that_holds_is_the_plan() -> None:
    clocked, step, spent = run_for(PLANNED + 4 * EVALUATION, lambda step: 1.0)
    assert (step, spent) == (PLANNED, 108.0)
    assert clocked.places == pytest.approx(range(PLANNED), abs=0.5)
    assert clocked.evaluated == [25, 50, 75, 100]


@pytest.mark.parametrize("factor", [0.6, 1.5, 3.0])
def test_a_machine_of_another_speed_takes_other_steps_in_the_same_time(factor: float) -> None:
    clocked, step, spent = run_for(100.0, lambda step: factor)
    assert 95 <= spent <= 105
    assert step == pytest.approx(100 / factor, rel=0.15)
    assert clocked.places == sorted(clocked.places)
    plan = LRSchedule(kind="cosine", total=PLANNED, warmup=5)
    assert rate_at(clocked.places[-1], plan) < 0.01  # as of the last of a hundred steps


def test_time_is_left_for_what_follows() -> None:
    _, _, spent = run_for(100.0, lambda step: 1.0, ending=20.0)
    assert 77 <= spent <= 82


def test_no_more_than_the_most_steps_are_taken() -> None:
    clocked, step, spent = run_for(100.0, lambda step: 0.1, most=PLANNED)
    assert step == PLANNED
    assert clocked.places == pytest.approx(range(PLANNED), abs=0.5)
    assert spent < 20


@given(st.integers(1, 99), st.floats(1.1, 4.0), st.floats(0.55, 0.9))
def test_load_that_comes_and_goes_is_made_up_for(when: int, slow: float, fast: float) -> None:
    clocked, step, spent = run_for(100.0, lambda step: slow if step < when else fast)
    assert 100 - slow - EVALUATION <= spent <= 100 + slow + EVALUATION
    assert clocked.places[-1] >= PLANNED * (1 - 3 / step)


def test_a_resumed_run_has_the_time_that_is_left() -> None:
    clocked = Clocked(lambda step: 1.0, now=5000.0)
    intervals = Intervals(total=PLANNED, evaluate=0, save=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.time, "monotonic", lambda: clocked.now)
        words: dict[str, Any] = {"started": 5000.0, "planned": PLANNED, "most": 2 * PLANNED}
        deadline = Deadline(100.0, ALONE, **words, evaluation=0.0, after=0.0, ending=0.0)
        deadline.resume(0.4, 70.0, steps=30)
        assert (deadline.left, deadline.spent) == (30.0, 70.0)
        ending, step = clocked.fit(deadline, intervals, start=35)
    assert (ending, step) == ("finished", 65)
    assert clocked.places == pytest.approx([40 + 2 * each for each in range(30)])
