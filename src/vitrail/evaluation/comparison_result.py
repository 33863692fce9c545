"""What a comparison of models found, for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from vitrail.evaluation.evaluation_result import EvaluationResult, Selected
from vitrail.evaluation.metrics.significance import PairedTest
from vitrail.result import Result, ResultTable, plain_fields, to_plain
from vitrail.text import show_rate


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """One of the models, and all that was measured of it."""

    model: str
    """As it was given."""
    name: str
    image: str
    """The size of its images, which may differ from that of its positions (DINOv2)."""
    parameters: int
    flops: int
    """For one image forward, two per multiply-add."""
    speed: float
    """Images per second, the median of several rounds."""
    ratio: float
    """Speed relative to the first model, the median of the rounds' ratios."""
    notes: tuple[str, ...]
    shots: dict[int, tuple[float, float | None]]
    """Few-shot accuracy by the number of shots: mean and sample std over seeds, None of a single
    one."""
    result: EvaluationResult | None
    """On the whole split; None if the model does not have the data's classes."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is known by class."""
        shots = {str(n): {"mean": mean, "std": std} for n, (mean, std) in self.shots.items()}
        found = plain_fields(self) | {"shots": shots}
        del found["result"]
        return found | (self.result.metrics() if self.result else {})

    def figures(self) -> dict[str, str]:
        """Write what was measured, by name; nothing where the model lacks the classes."""
        quality: dict[str, str] = {}
        if (found := self.result) is not None:
            (name, main), *others = found.scores().items()
            quality = {name: f"{main.value:.2%}", "95 %": f"{main.low:.1%} to {main.high:.1%}"}
            quality |= {name: f"{each.value:.2%}" for name, each in others}
            quality["loss"] = f"{found.loss.value:.3f}"
            if found.calibration is not None:
                quality["calibration error"] = f"{found.calibration.ece.value:.1%}"
        few = {
            f"{n}-shot": f"{mean:.2%}" + ("" if std is None else f" ± {std:.2%}")
            for n, (mean, std) in self.shots.items()
        }
        return quality | few | {
            "resolution": self.image,
            "parameters": f"{self.parameters:,}",
            "GFLOPs per image": f"{self.flops / 1e9:.2f}",
            "images per second": show_rate(self.speed),
            "speed": f"{self.ratio:.2f}x",
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison(Result):
    """All models, and each pair of them that can be compared."""

    data: str
    models: tuple[ComparedModel, ...]
    pairs: tuple[tuple[int, int, PairedTest], ...]
    """Positions of the first and the second model, and how they differ."""
    images: int
    """Images that every model with an accuracy has predicted."""
    selected: Selected | None = None
    """How many images of how many accuracy was measured on, and why those."""
    few: Selected | None = None
    """The same of few-shot accuracy, where it was measured."""
    notes: tuple[str, ...] = ()
    """What a person should know before believing the numbers, one line each."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        pairs = [
            {
                "first": self.models[one].model,
                "second": self.models[two].model,
                "difference": test.difference.value,
                "difference_interval": [test.difference.low, test.difference.high],
                "only_first": test.only_first,
                "only_second": test.only_second,
                "p": test.exact,
                "p_mid": test.midp,
            }
            for one, two, test in self.pairs
        ]
        rows = [each.to_dict() for each in self.models]
        found = {"data": self.data, "images": self.images, "selected": to_plain(self.selected)}
        found["few"] = to_plain(self.few)
        return {**found, "notes": list(self.notes), "models": rows, "pairs": pairs}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one column per model, then what each difference is worth."""
        labels = _label(self.models)
        columns = [each.figures() for each in self.models]
        known = max(columns, key=len)  # of a model that has the data's classes, if there is one
        yield ResultTable(
            ("", *(f"{number}: {label}" for number, label in enumerate(labels, 1))),
            [(row, *(figures.get(row, "") for figures in columns)) for row in known],
        )
        for number, each in enumerate(self.models, 1):
            yield f"{number}: {each.model}"
            yield from (f"   {note}" for note in each.notes)
        yield from self.notes
        if self.selected is not None:
            yield f"evaluated on {self.selected}"
        if self.few is not None and self.few != self.selected:
            yield f"few-shot evaluated on {self.few}"
        for one, two, test in self.pairs:
            points = [f"{100 * value:+.2f}" for value in test.difference]
            wins = f"only {two + 1} is correct on {test.only_second:,}, only {one + 1} on "
            yield (
                f"{two + 1} against {one + 1}: {points[0]} points ({points[1]} to {points[2]}) on "
                f"{self.images:,} images; {wins}{test.only_first:,}; p = {test.exact:.3g} "
                "(McNemar, exact)"
            )


def _label(models: Sequence[ComparedModel]) -> list[str]:
    """Name the models shortly; those of one architecture by what differs in their texts."""
    names = [each.name.partition(",")[0] for each in models]
    labels = []
    for name, each in zip(names, models, strict=True):
        alike = [other.model for other, known in zip(models, names, strict=True) if known == name]
        letters = zip(*alike, strict=False)
        same = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, letters))
        common = re.match(r".*[:/._-]", each.model[:same])
        rest = each.model[common.end() if common else 0 :]
        labels.append(f"{name} {rest}" if len(set(alike)) > 1 else name)
    return labels
