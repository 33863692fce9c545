"""Plans that several studies share: runs that few-shot accuracy is measured of, and two stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.small_runs import few_shots
from vitrail.studies.study import DATA

NO_JFT = "JFT-300M is not public; give images of your own"
"""Why the paper's scale names no data."""


def plan_few_shots(words: Mapping[str, Any], axes: Mapping[str, Any], seeds: int) -> Sweep:
    """Train in each cell of the axes, then measure few-shot accuracy on the same data."""
    return Sweep(
        base={"data": DATA, **words},
        axes=axes,
        seeds=range(seeds),
        measures=(few_shots(DATA),),
    )


def by_model(models: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Give an axis of models by what a study calls them."""
    return {name: {"model": model} for name, model in models.items()}


def then(words: Mapping[str, Any]) -> dict[str, Any]:
    """Give the words of a second stage: fine-tuning, on DATA unless they say otherwise."""
    return {f"then.{key}": value for key, value in {"data": DATA, **words}.items()}
