"""The learning rate over a run, as big_vision computes it: warm-up, decay, cool-down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vitrail.config import Duration, InputError

Decay = Literal["cosine", "linear", "constant", "rsqrt", "multistep"]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate rises and falls."""

    kind: Decay = "cosine"
    """How it falls after the warm-up; `rsqrt` falls without knowing the end (arXiv 2106.04560)."""
    milestones: tuple[Duration, ...] = ()
    """When `multistep` falls, each time to a tenth of what it was."""
    warmup: Duration = field(default=Duration(5, "%"))
    """How long it rises, linearly from 0 (500 steps in the official fine-tuning)."""
    final: float = 0.0
    """Part of the rate that `cosine` and `linear` end with."""
    cooldown: Duration = field(default=Duration(0, "steps"))
    """How long before the end it falls to 0, linearly; for `rsqrt` and `constant`."""
    timescale: Duration = field(default=Duration(10_000, "steps"))
    """How long after the warm-up `rsqrt` takes to fall to 1 / sqrt(2)."""

    def __post_init__(self) -> None:
        if not 0 <= self.final <= 1:
            raise InputError(f"final is a part of the learning rate from 0 to 1, not {self.final}")
        if bool(self.milestones) != (self.kind == "multistep"):
            raise InputError("schedule.kind multistep and schedule.milestones require each other")

    def plan(self, *, total: int, images: int, batch: int) -> LRSchedule:
        """Count in steps, for a run of `total` steps of `batch` images out of `images`."""
        durations = {"warmup": self.warmup, "cooldown": self.cooldown, "timescale": self.timescale}
        steps = {
            name: duration.steps(images=images, batch=batch, total=total)
            for name, duration in durations.items()
        }
        milestones = tuple(
            each.steps(images=images, batch=batch, total=total) for each in self.milestones
        )
        return LRSchedule(
            kind=self.kind, final=self.final, total=total, milestones=milestones, **steps
        )


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """A schedule in whole steps; the fields are ScheduleConfig's."""

    kind: Decay
    total: int
    warmup: int = 0
    final: float = 0.0
    cooldown: int = 0
    timescale: int = 10_000
    milestones: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.warmup + self.cooldown > self.total:
            cooldown = f" and cool-down of {self.cooldown}" if self.cooldown else ""
            raise InputError(
                f"a warm-up of {self.warmup} steps{cooldown} does not fit into a run of "
                f"{self.total}; shorten it, or give a part such as '5 %'"
            )
        if self.kind == "rsqrt" and self.timescale < 1:
            raise InputError("the timescale of rsqrt is at least 1 step")


def rate_at(step: int, plan: LRSchedule) -> float:
    """Give the part of the base learning rate at a step, counted from 0.

    It is step / warmup at first, and 1 at step `warmup`.
    """
    assert 0 <= step <= plan.total, (step, plan.total)
    decaying = max(step - plan.warmup, 0)
    progress = decaying / max(plan.total - plan.warmup, 1)
    match plan.kind:
        case "cosine":
            rate = plan.final + (1 - plan.final) * (1 + math.cos(math.pi * progress)) / 2
        case "linear":
            rate = 1 - (1 - plan.final) * progress
        case "rsqrt":
            rate = 1 / math.sqrt(1 + decaying / plan.timescale)
        case "constant":
            rate = 1.0
        case "multistep":
            rate = 0.1 ** sum(step >= milestone for milestone in plan.milestones)
    if step < plan.warmup:
        rate *= step / plan.warmup
    if plan.total - step < plan.cooldown:
        rate *= (plan.total - step) / plan.cooldown
    return rate
