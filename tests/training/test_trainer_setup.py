"""When a run evaluates and saves, unless it is told when."""

from typing import Any

import pytest

from tests.training.tasks_of import config_of
from vitrail.config import Duration
from vitrail.training.optimization import step_intervals
from vitrail.training.optimization.step_intervals import SaveTimer
from vitrail.training.trainer_setup import plan_intervals


@pytest.mark.parametrize(
    ("steps", "batch", "images", "every"),
    [
        (100, 64, 64, 10),  # ten evaluations are cheap
        (100, 64, 480, 50),  # two of them are 960 passes: a twentieth of 3 * 6,400
        (100, 64, 481, 100),
        (40, 64, 10_000, 40),  # one, however dear: a result needs it
        (3, 64, 0, 1),
    ],
)
def test_evaluations_take_a_twentieth_of_the_computation(
    steps: int, batch: int, images: int, every: int
) -> None:
    config = config_of(length=Duration(steps, "steps"), batch=batch)
    intervals = plan_intervals(config, 1_000, images, None)
    assert (intervals.total, intervals.evaluate, intervals.save) == (steps, every, None)


def test_what_is_asked_for_is_done() -> None:
    settings: dict[str, Any] = {"eval_every": Duration(1, "epochs"), "save_every": Duration(5, "%")}
    config = config_of(length=Duration(10, "epochs"), batch=10, **settings)
    intervals = plan_intervals(config, 100, 10**6, Duration(25, "%"))
    assert (intervals.total, intervals.evaluate, intervals.save) == (100, 10, 5)
    assert intervals.pause == 25
    never = config_of(eval_every=Duration(0, "steps"), save_every=Duration(0, "steps"))
    assert plan_intervals(never, 100, 10, None).evaluate == 0
    assert plan_intervals(never, 100, 10, None).save == 0


def test_checkpoints_come_by_time_and_take_a_twentieth_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(step_intervals.time, "monotonic", lambda: now[0])
    timer = SaveTimer()
    assert not timer.due()
    now[0] += SaveTimer.SECONDS
    assert timer.due()

    def save(step: int) -> None:
        assert step == 7
        now[0] += 60  # a slow disk

    timer.time(save, 7)
    now[0] += 20 * 60 - 1
    assert not timer.due()
    now[0] += 1
    assert timer.due()
