"""What a study of the paper is: a question, its cells at several scales, claims, and a drawing.

One file in `paper/` is one study: it makes a `Study` named STUDY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from vitrail.config import InputError
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, Rows
from vitrail.studies.engine.sweep_plan import FewShot, Sweep

if TYPE_CHECKING:
    from vitrail.plotting.canvas import Plot

Scale = Literal["smoke", "desk", "gpu", "paper"]
SCALES: dict[Scale, str] = {
    "smoke": "two cores",
    "desk": "two cores",
    "gpu": "one GPU",
    "paper": "one TPUv3 core",
}
"""The scales, and what their hours are of."""

DATA, WEIGHTS = "{data}", "{weights}"
"""In the words of a plan: what --data and --weights say, or the setting's own."""


@dataclass(frozen=True)
class Measurements:
    """Rows that need no training: what a function measures in each case, with each seed."""

    function: Callable[..., Mapping[str, Any]]
    """Called with a case's words and `seed`."""
    cases: Mapping[str, Mapping[str, Any]]
    seeds: Sequence[int] = (0,)
    timed: tuple[str, ...] = ()
    """Columns that a clock decides, and that another run would not repeat."""


Plan = Sweep | Measurements


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a study runs at one scale."""

    plan: Plan
    hours: float
    """About how long that takes, on what SCALES says."""
    data: str = ""
    """What DATA is unless it is given; empty if it must be."""
    weights: str = ""
    """What WEIGHTS are unless they are given."""
    why: str = ""
    """Why it is set so."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A figure, table or section of the paper as an experiment."""

    name: str
    title: str
    where: str
    """The figure, table or section."""
    question: str
    paper: str
    """What the paper claims, with its own numbers."""
    published: ResultTable
    """The paper's figure or table as numbers."""
    settings: Mapping[Scale, Setting]
    by: tuple[str, ...]
    """Columns that say what a row is of, but for its seed."""
    measures: Mapping[str, str]
    """Columns that are shown, and what they are called."""
    numbers: tuple[str, ...] = ()
    """Those of them that are numbers; the others are fractions, shown in percent."""
    claims: tuple[Claim, ...]
    draw: Callable[[Rows], Plot]
    notes: str = field(default="")
    """How a small scale differs from the paper's."""

    def plan(self, scale: Scale, data: str | None = None, weights: str | None = None) -> Plan:
        """Give what is run at a scale, with data and weights put in."""
        setting = self.settings[scale]
        plan = setting.plan
        given = {DATA: data or setting.data, WEIGHTS: weights or setting.weights}
        for word, value in ((DATA, data), (WEIGHTS, weights)):
            name = word.strip("{}")
            if value is not None and word not in repr(plan):
                raise InputError(f"{self.name} at scale {scale} has no use for --{name}")
            if word in repr(plan) and (not given[word] or given[word].endswith(":DIR")):
                what = f", such as {given[word]}" if given[word] else f": {setting.why}"
                raise InputError(f"{self.name} at scale {scale} needs --{name}{what}")
        if isinstance(plan, Measurements):
            return replace(plan, cases=_put_in(plan.cases, given))
        measures = [
            replace(each, data=_put_in(each.data, given)) if isinstance(each, FewShot) else each
            for each in plan.measures
        ]
        base, axes = _put_in(plan.base, given), _put_in(plan.axes, given)
        return replace(plan, base=base, axes=axes, measures=measures)


def _put_in(value: Any, given: Mapping[str, str]) -> Any:
    """Put data and weights into the words of a plan."""
    if isinstance(value, str):
        for word, text in given.items():
            value = value.replace(word, text)
        return value
    if isinstance(value, Mapping):
        return {key: _put_in(each, given) for key, each in value.items()}
    return [_put_in(each, given) for each in value] if isinstance(value, list | tuple) else value
