"""The studies that there are, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from vitrail.config import InputError, suggest
from vitrail.result import Result, ResultTable
from vitrail.studies.study import SCALES, Study
from vitrail.text import show_duration

NAMES = (
    *("figure3", "figure4", "figure5", "table7", "table8", "figure8", "figure9", "resolution"),
    *("selfsupervision", "inspection", "figure12", "figure13", "d6", "transfer"),
)
"""The studies, in the paper's order; each is a module of `paper/`."""


@dataclass(frozen=True)
class StudyList(Result):
    """The studies that there are."""

    studies: tuple[Study, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: one row per study, hours by scale."""
        return {
            "studies": [
                {
                    "study": each.name,
                    "where": each.where,
                    "question": each.question,
                    "hours": {scale: one.hours for scale, one in each.settings.items()},
                }
                for each in self.studies
            ]
        }

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per study: its question, and what each scale costs."""
        rows = []
        for each in self.studies:
            times = [
                show_duration(3600 * each.settings[scale].hours) if scale in each.settings else ""
                for scale in SCALES
            ]
            rows.append((each.name, each.where, *times, each.question))
        yield ResultTable(("study", "in the paper", *SCALES, "question"), rows, justify="left")
        told = "; ".join(f"{scale}: {of}" for scale, of in SCALES.items())
        yield f"Times are of {told}; those of gpu and paper are rough guesses."
        yield "vitrail reproduce figure9 --scale smoke runs one; vitrail reproduce all runs all."


def load_study(name: str) -> Study:
    """Return a study by its name."""
    if name not in NAMES:
        hint = suggest(name, NAMES) or f"; there are: {', '.join(NAMES)}"
        raise InputError(f"unknown study {name!r}{hint} ('vitrail reproduce' lists them)")
    module = {"transfer": "finetuned_weights"}.get(name, name)
    return import_module(f"vitrail.studies.paper.{module}").STUDY
