"""Learning rate schedules, as in big_vision: warm-up, decay, cool-down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from vitrail.config import Duration, InputError, UnitFloat, UsedIf, validate

DecayFrom = Literal["warmup", "start"]
Decay = Literal["cosine", "linear", "constant", "rsqrt", "multistep"]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate schedule."""

    kind: Decay = "cosine"
    """Decay after the warm-up; `rsqrt` does not depend on the run's length (arXiv 2106.04560)."""
    milestones: Annotated[tuple[Duration, ...], UsedIf("kind", "multistep")] = ()
    """When `multistep` divides the rate by 10."""
    warmup: Duration = field(default=Duration(5, "%"))
    """Length of the linear warm-up (500 steps in the official fine-tuning)."""
    start: UnitFloat = 0.0
    """Fraction of the learning rate that the warm-up begins with."""
    decay_from: Annotated[DecayFrom, UsedIf("kind", "cosine", "linear")] = "warmup"
    """Where `cosine` and `linear` begin: at the end of the `warmup` (big_vision, Hugging Face,
    MAE), or at the run's `start`, so that the warm-up hides their first part (timm, DeiT)."""
    final: Annotated[UnitFloat, UsedIf("kind", "cosine", "linear")] = 0.0
    """Fraction of the learning rate that `cosine` and `linear` end with."""
    cooldown: Duration = field(default=Duration(0, "steps"))
    """Length of a linear decay to 0 at the end, which multiplies the rate of any kind: meant for
    `rsqrt`, `constant` and `multistep`; `cosine` falls faster with it, which a run says."""
    timescale: Annotated[Duration, UsedIf("kind", "rsqrt")] = field(
        default=Duration(10_000, "steps")
    )
    """Time after the warm-up at which `rsqrt` has fallen to 1 / sqrt(2)."""

    def __post_init__(self) -> None:
        validate(self, "schedule")
        if self.kind == "multistep" and not self.milestones:
            raise InputError(
                "schedule.kind multistep requires schedule.milestones, such as '50 %,75 %'"
            )

    def plan(self, *, total: int, images: int, batch: int) -> LRSchedule:
        """Convert to steps, for a run of `total` steps of `batch` images; an epoch has `images`."""
        durations = {"warmup": self.warmup, "cooldown": self.cooldown, "timescale": self.timescale}
        steps = {
            name: duration.steps(images=images, batch=batch, total=total)
            for name, duration in durations.items()
        }
        milestones = tuple(
            each.steps(images=images, batch=batch, total=total) for each in self.milestones
        )
        return LRSchedule(
            kind=self.kind,
            final=self.final,
            start=self.start,
            decay_from=self.decay_from,
            total=total,
            milestones=milestones,
            **steps,
        )


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """A schedule in whole steps; the fields are ScheduleConfig's."""

    kind: Decay
    total: int
    warmup: int = 0
    start: float = 0.0
    decay_from: DecayFrom = "warmup"
    final: float = 0.0
    cooldown: int = 0
    timescale: int = 10_000
    milestones: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.warmup + self.cooldown > self.total:
            cooldown = f" and cool-down of {self.cooldown}" if self.cooldown else ""
            raise InputError(
                f"a warm-up of {self.warmup} steps{cooldown} does not fit into a run of "
                f"{self.total}; shorten it, or give a percentage such as '5 %'"
            )
        if self.warmup == self.total > 0:
            raise InputError(
                f"a warm-up of {self.warmup} steps is as long as the run, which never reaches its "
                "learning rate; shorten it, or give a percentage such as '5 %'"
            )
        if self.kind == "rsqrt" and self.timescale < 1:
            raise InputError("schedule.timescale must be at least 1 step")


def rate_at(step: float, plan: LRSchedule) -> float:
    """Return the learning rate at a step, counted from 0, as a fraction of the base rate.

    It rises linearly during the warm-up, and is 1 at step `warmup`, unless the decay has begun
    before. A run with a deadline asks for places between steps.
    """
    assert 0 <= step <= plan.total, (step, plan.total)
    decaying = max(step - plan.warmup, 0)
    hidden = plan.warmup if plan.decay_from == "start" and step >= plan.warmup else 0
    whole = plan.total - (plan.warmup if plan.decay_from == "warmup" else 0)
    progress = (decaying + hidden) / max(whole, 1)
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
        rate *= plan.start + (1 - plan.start) * step / plan.warmup
    if plan.total - step < plan.cooldown:
        rate *= (plan.total - step) / plan.cooldown
    return rate
