"""What a sweep runs: words that all cells share, what varies, seeds, and what is measured.

    plan = Sweep(
        base={"data": "cifar10", "model": "ViT/4@32,depth=6,width=192,heads=3,mlp=768",
              "recipe": "small-data", "flops": 1e15, "then.data": "pets", "then.steps": 100},
        axes={"model.depth": [3, 6, 12],                         # a setting: its values
              "data.take": [1000, 5000, 25000],                  # nested subsets
              "pooling": {"token": {"model.pool": "token"},      # or groups of settings by name
                          "gap": {"model.pool": "gap", "augment": "none"}}},
        seeds=(0, 1, 2),
        best={"optim.lr": [3e-4, 1e-3, 3e-3]},
        measures=(FewShot("digits", shots=(5,)), "mypackage.measures:sharpness"),
    )

There is a cell for each combination of the axes' values and each seed. `best` tries each of its
combinations for a cell with the first seed, without a tenth of the training images, and takes the
one that does best on them for the cell's runs on all images, with every seed. Words that begin with
`then.` are a second run from the first one's model; cells that differ only in them share the first.
stage_words.py says which words there are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.config import InputError, PositiveInt, from_dict, path_of, suggest, validate
from vitrail.studies.engine.stage_words import THEN, check_word, split_stages

Values = Sequence[Any] | Mapping[str, Any]
"""An axis: values of a setting, the same by name, or groups of settings by name."""
HELD_OUT = 0.1
"""The fraction of the training images on which `best` chooses."""


@dataclass(frozen=True)
class FewShot:
    """Measure the few-shot accuracy of a run's model on other data, as the paper does."""

    data: str
    shots: tuple[PositiveInt, ...] = (5,)
    seeds: PositiveInt = 3
    name: str = "fewshot"
    """The columns are `NAME_5` and so on, by the number of shots."""

    def __post_init__(self) -> None:
        validate(self, "fewshot")


Measure = FewShot | str | Callable[[Path], float | Mapping[str, float]]
"""A few-shot evaluation, or a function of the run's folder, or its import path."""


@dataclass(frozen=True)
class Choice:
    """What a cell has of an axis."""

    axis: str
    label: Any
    """What the table says: the value, or its name."""
    words: Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    choices: tuple[Choice, ...]
    words: Mapping[str, Any]
    seed: int

    def __str__(self) -> str:
        """Name the cell by what varies."""
        said = [f"{each.axis}={each.label}" for each in self.choices]
        return ", ".join([*said, f"seed={self.seed}"])


@dataclass(frozen=True)
class Sweep:
    """A plan of many runs."""

    base: Mapping[str, Any]
    """Words of all cells; what varies takes their place."""
    axes: Mapping[str, Values] = field(default_factory=dict)
    seeds: Sequence[int] = (0,)
    best: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Settings that are chosen for each cell on held-out images, and what from."""
    measures: Sequence[Measure] = ()
    """What is measured of each first run, besides its validation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(self.seeds))
        object.__setattr__(self, "measures", tuple(read_measure(each) for each in self.measures))
        for name in (*self.base, *self.best):
            check_word(name)
        choices = [_read_axis(axis, values) for axis, values in self.axes.items()]
        for values in choices:
            for name in {name for choice in values for name in choice.words}:
                check_word(name)
        _check_once(choices, self.best)
        for name, values in self.best.items():
            if len(values) < 2:
                raise InputError(f"best {name} needs two or more values, got {len(values)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"expected seeds, each once, got {list(self.seeds)}")
        names = [name for each in self.measures if (name := measure_name(each))]
        if len(set(names)) < len(names):
            raise InputError(f"two measures have one name: {', '.join(names)}; name them apart")

    def cells(self) -> Iterator[Cell]:
        """Give the cells in the table's order: the last axis changes fastest, then the seed."""
        axes = [_read_axis(axis, values) for axis, values in self.axes.items()]
        for choices in itertools.product(*axes):
            words = dict(self.base)
            for choice in choices:
                words |= choice.words
            for seed in self.seeds:
                yield Cell(choices, words, seed)

    def candidates(self, *, then: bool) -> list[dict[str, Any]]:
        """List what `best` tries for a first run, or for the run after it."""
        names = [name for name in self.best if name.startswith(THEN) == then]
        if not names:
            return []
        combined = itertools.product(*(self.best[name] for name in names))
        return [dict(zip(names, values, strict=True)) for values in combined]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, by which the same sweep is known again."""
        return json.loads(
            json.dumps(
                {
                    "base": dict(self.base),
                    "axes": {
                        axis: dict(values) if isinstance(values, Mapping) else list(values)
                        for axis, values in self.axes.items()
                    },
                    "seeds": list(self.seeds),
                    "best": {name: list(values) for name, values in self.best.items()},
                    "measures": [plain_measure(each) for each in self.measures],
                },
                default=str,
            )
        )


def _read_axis(axis: str, values: Values) -> list[Choice]:
    """Read an axis's values; if its name is not a setting, they must be groups of settings."""
    if isinstance(values, str) or not isinstance(values, Mapping | Sequence):
        raise InputError(f"{axis}: expected a list of values or of groups, got {values!r}")
    if not values:
        raise InputError(f"{axis} has no values, so there is nothing to run; give one or more")
    if not isinstance(values, Mapping):
        check_word(axis)
        labels = [_label(value) for value in values]
        if len(set(map(str, labels))) < len(labels):
            raise InputError(f"{axis}: a value is there twice in {', '.join(map(str, labels))}")
        return [Choice(axis, _label(value), {axis: value}) for value in values]
    choices = []
    for name, group in values.items():
        if isinstance(group, Mapping):
            choices.append(Choice(axis, name, dict(group)))
        else:
            check_word(axis)
            choices.append(Choice(axis, name, {axis: group}))
    return choices


def _label(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else json.dumps(value)


def _check_once(choices: Sequence[Sequence[Choice]], best: Mapping[str, Any]) -> None:
    """Refuse a setting that two axes vary, or that varies and is chosen too."""
    owners = dict.fromkeys(best, "best")
    for values in choices:
        axis = values[0].axis
        for name in sorted({name for choice in values for name in choice.words}):
            if name in owners:
                raise InputError(f"{name} is set by {owners[name]} and by {axis}; once is enough")
            owners[name] = axis


def read_measure(measure: Any) -> Measure:
    """Read a measure: `fewshot:DATA`, an import path, plain data of a FewShot, or itself."""
    if isinstance(measure, Mapping):
        return from_dict(FewShot, measure)
    if isinstance(measure, str) and measure.startswith("fewshot:"):
        return FewShot(measure.removeprefix("fewshot:"))
    if isinstance(measure, str) and not re.fullmatch(r"[\w.]+:[\w.]+", measure):
        hint = suggest(measure, ["fewshot:DATA"])
        raise InputError(f"unknown measure {measure!r}; expected fewshot:DATA or module:name{hint}")
    return measure


def plain_measure(measure: Measure) -> Any:
    """Return a measure as plain data."""
    if isinstance(measure, FewShot):
        return {
            "data": measure.data,
            "shots": list(measure.shots),
            "seeds": measure.seeds,
            "name": measure.name,
        }
    return measure if isinstance(measure, str) else path_of(measure)


def measure_name(measure: Measure) -> str:
    """Name a measure as its column begins."""
    if isinstance(measure, FewShot):
        return measure.name
    return plain_measure(measure).rpartition(":")[2].rpartition(".")[2]


def stage_words(cell: Cell) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Give the words of a cell's first run, and of the one after it, where there are such.

    A second run whose weights are given (none, or others) needs no first one.
    """
    first, second = split_stages(cell.words)
    if not second:
        return first, None
    return (None if "weights" in second else first), second


def job_name(
    choices: Sequence[Choice], key: Any, seed: int, *, then: bool, trial: bool = False
) -> str:
    """Name a run's folder: what varies in it, as far as that is short, and a hash of the rest."""
    mine = [
        choice
        for choice in choices
        if then or not all(name.startswith(THEN) for name in choice.words)
    ]
    said = "_".join(f"{choice.axis.rpartition('.')[2]}={choice.label}" for choice in mine)
    safe = re.sub(r"[^\w.=+-]+", "-", said)[:60].strip("-")
    text = json.dumps(key, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    parts = ["trial" * trial, "then" * then, safe, f"seed={seed}", digest]
    return "_".join(part for part in parts if part)
