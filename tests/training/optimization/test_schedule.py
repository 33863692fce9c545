"""The learning rate's closed forms, its ends, and that it rises once and falls once."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.config import Duration, InputError, from_dict
from vitrail.training.optimization.schedule import Decay, LRSchedule, ScheduleConfig, rate_at

KINDS: list[Decay] = ["cosine", "linear", "constant", "rsqrt"]


@st.composite
def plans(draw: st.DrawFn) -> LRSchedule:
    total = draw(st.integers(1, 400))
    warmup = draw(st.integers(0, total - 1))
    return LRSchedule(
        kind=draw(st.sampled_from(KINDS)),
        total=total,
        warmup=warmup,
        cooldown=draw(st.integers(0, total - warmup)),
        final=draw(st.floats(0, 1)),
        timescale=draw(st.integers(1, 500)),
    )


def test_cosine_of_table_4() -> None:
    """20k steps with the official 500 of warm-up."""
    plan = LRSchedule(kind="cosine", total=20_000, warmup=500)
    for step in (0, 100, 499, 500):
        assert rate_at(step, plan) == step / 500
    for step in (501, 10_250, 19_999):
        angle = math.pi * (step - 500) / 19_500
        assert rate_at(step, plan) == pytest.approx(math.cos(angle / 2) ** 2, abs=1e-12)
    assert rate_at(10_250, plan) == pytest.approx(0.5)
    assert rate_at(20_000, plan) == pytest.approx(0, abs=1e-15)


def test_linear_falls_to_its_final_part() -> None:
    plan = LRSchedule(kind="linear", total=10, warmup=2, final=0.2)
    expected = [0, 0.5, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    assert [rate_at(step, plan) for step in range(11)] == pytest.approx(expected)


def test_cosine_falls_to_its_final_part() -> None:
    plan = LRSchedule(kind="cosine", total=10, final=0.2)
    assert rate_at(5, plan) == pytest.approx(0.6)
    assert rate_at(10, plan) == pytest.approx(0.2)


def test_rsqrt_with_cooldown_is_big_visions() -> None:
    plan = LRSchedule(kind="rsqrt", total=100, warmup=10, cooldown=20, timescale=30)
    assert rate_at(5, plan) == 0.5
    assert rate_at(10, plan) == 1
    assert rate_at(40, plan) == pytest.approx(1 / math.sqrt(2))
    assert rate_at(80, plan) == pytest.approx((1 + 70 / 30) ** -0.5)
    assert rate_at(95, plan) == pytest.approx((1 + 85 / 30) ** -0.5 * 5 / 20)
    assert rate_at(100, plan) == 0


def test_constant_is_a_trapezium() -> None:
    plan = LRSchedule(kind="constant", total=10, warmup=2, cooldown=4)
    expected = [0, 0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    assert [rate_at(step, plan) for step in range(11)] == expected


@given(plans())
def test_it_rises_linearly_then_never_again(plan: LRSchedule) -> None:
    rates = [rate_at(step, plan) for step in range(plan.total + 1)]
    assert all(0 <= rate <= 1 for rate in rates)
    assert rates[: plan.warmup] == [step / plan.warmup for step in range(plan.warmup)]
    assert rates[plan.warmup] == 1
    after = rates[plan.warmup :]
    assert all(next <= rate + 1e-12 for rate, next in pairwise(after))


def test_multistep_falls_to_a_tenth_at_each_milestone() -> None:
    half = ScheduleConfig(
        kind="multistep",
        milestones=(Duration(50, "%"), Duration(9, "epochs")),
        warmup=Duration(2, "steps"),
    )
    plan = half.plan(total=20, images=8, batch=4)
    assert plan.milestones == (10, 18)
    rates = [rate_at(step, plan) for step in (1, 2, 9, 10, 17, 18, 20)]
    assert rates == pytest.approx([0.5, 1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("kind", ["multistep", "cosine"])
def test_milestones_and_multistep_go_together(kind: Decay) -> None:
    milestones = () if kind == "multistep" else (Duration(1, "epochs"),)
    with pytest.raises(InputError, match=r"requires schedule.milestones|only with multistep"):
        ScheduleConfig(kind=kind, milestones=milestones)


@given(plans())
def test_it_ends_where_it_should(plan: LRSchedule) -> None:
    end = rate_at(plan.total, plan)
    ends = {"cosine": plan.final, "linear": plan.final, "constant": 1.0}
    ends["rsqrt"] = (1 + (plan.total - plan.warmup) / plan.timescale) ** -0.5
    if plan.cooldown:
        assert end == 0
    elif plan.warmup < plan.total:
        assert end == pytest.approx(ends[plan.kind], abs=1e-12)


def test_a_warmup_as_long_as_the_run_is_refused() -> None:
    """Of a run of one step it would be a rate of 0."""
    for total in (1, 10):
        with pytest.raises(InputError, match=r"is as long as the run, which never reaches"):
            LRSchedule(kind="constant", total=total, warmup=total)
        LRSchedule(kind="constant", total=total, warmup=total - 1)


def test_a_warmup_beyond_the_run_is_refused() -> None:
    with pytest.raises(InputError, match="warm-up of 11 steps does not fit into a run of 10"):
        LRSchedule(kind="cosine", total=10, warmup=11)
    with pytest.raises(InputError, match="warm-up of 6 steps and cool-down of 5 does not fit"):
        LRSchedule(kind="rsqrt", total=10, warmup=6, cooldown=5)
    with pytest.raises(InputError, match="timescale"):
        LRSchedule(kind="rsqrt", total=10, timescale=0)
    with pytest.raises(InputError, match=r"final must be in \[0, 1\], got 1\.5"):
        ScheduleConfig(final=1.5)


def test_durations_become_steps_of_the_run() -> None:
    config = from_dict(
        ScheduleConfig,
        {"kind": "rsqrt", "warmup": "0.5 epochs", "cooldown": "10 %", "timescale": "640 images"},
    )
    assert config.warmup == Duration(0.5, "epochs")
    plan = config.plan(total=200, images=1000, batch=64)
    assert plan == LRSchedule(kind="rsqrt", total=200, warmup=8, cooldown=20, timescale=10)
