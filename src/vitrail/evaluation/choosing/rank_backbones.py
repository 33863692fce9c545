"""Rank backbones for a dataset: accuracy of their frozen features, speed here, size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.console import log_line
from vitrail.data.datasets.open import Data
from vitrail.distributed import choose_device
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.features.compute import FeatureOptions, features_of, open_pair
from vitrail.evaluation.features.feature_kinds import parse_feature_kind
from vitrail.evaluation.features.image_features import check_pair
from vitrail.evaluation.inputs import name_data, name_model, preprocess_of
from vitrail.evaluation.metrics.intervals import Estimate, wilson
from vitrail.evaluation.probes.fewshot import SHOTS, fit_shots
from vitrail.evaluation.probes.linear_probe import probe_lbfgs
from vitrail.models.cost.total import cost_of
from vitrail.result import Result, ResultTable, to_plain
from vitrail.text import show_rate
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel

_ROUNDS, _IMAGES = 5, 8  # forward passes that speed is the median of, and images in each


@dataclass(frozen=True, kw_only=True)
class RankedBackbone:
    """What one backbone's frozen features are worth, and what they cost here."""

    model: str
    """What it was asked for by."""
    name: str
    """The architecture."""
    top1: Estimate
    """Accuracy of a linear probe on the test images, with its 95 % interval."""
    few_shot: float
    """Accuracy of least squares with `shots` images per class."""
    speed: float
    """Images per second on this machine, features only."""
    parameters: int
    on_front: bool = False
    """Whether no other is both faster and more accurate."""


@dataclass(frozen=True, kw_only=True)
class BackboneRanking(Result):
    """Backbones for a dataset, the most accurate first."""

    data: str
    shots: int
    """Images per class of the few-shot accuracy."""
    images: int
    """Test images."""
    ranked: tuple[RankedBackbone, ...]
    selected: Selected | None = None
    """How many images of how many the test images are, and why those."""
    notes: tuple[str, ...] = ()
    """What a person should know before believing the numbers, one line each."""
    page: str | None = field(default=None, kw_only=True)
    """The page that was written, if one was asked for."""

    @property
    def recommended(self) -> RankedBackbone:
        """The fastest of those that the best one's interval does not exclude."""
        good = [each for each in self.ranked if each.top1.value >= self.ranked[0].top1.low]
        return max(good, key=lambda each: each.speed)

    @property
    def reason(self) -> str:
        """Why that one is recommended."""
        best, first = self.recommended, self.ranked[0]
        if len(self.ranked) == 1:
            return "the only one at hand"
        if best is first:
            return "the most accurate"
        return f"{best.speed / first.speed:.1f} times as fast as the most accurate, within error"

    @property
    def next_command(self) -> str:
        """The command that fine-tunes it."""
        return f"vitrail finetune {self.data} --weights {self.recommended.model}"

    @property
    def recommendation(self) -> str:
        """The choice and its reason in one sentence, with the next command."""
        return f"recommended: {self.recommended.model}, {self.reason}; next: {self.next_command}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        keys = ("model", "name", "few_shot", "speed", "parameters", "on_front")
        rows = [
            {**{key: getattr(each, key) for key in keys}, "top1": each.top1._asdict()}
            for each in self.ranked
        ]
        head = {"data": self.data, "shots": self.shots, "images": self.images}
        head |= {"selected": to_plain(self.selected), "notes": list(self.notes)}
        said = {"recommended": self.recommended.model, "recommendation": self.recommendation}
        return {**head, "models": rows, **said, "page": self.page}

    def table(self) -> ResultTable:
        """Give one row per backbone."""
        rows = [
            (
                each.model,
                f"{each.top1.value:.1%}",
                f"{each.top1.low:.1%} to {each.top1.high:.1%}",
                f"{each.few_shot:.1%}",
                show_rate(each.speed),
                f"{each.parameters / 1e6:,.1f} M",
                "yes" if each.on_front else "",
            )
            for each in self.ranked
        ]
        few = f"{self.shots}-shot"
        columns = ("backbone", "probe", "95 %", few, "images/s", "parameters", "Pareto")
        return ResultTable(columns, rows)

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per backbone, then the recommendation."""
        yield self.table()
        if self.selected is not None:
            yield f"evaluated on {self.selected}"
        yield from self.notes
        yield self.recommendation
        if self.page is not None:
            yield f"page written to {self.page}"


def rank_backbones(
    models: Sequence[AnyModel],
    data: Data,
    *,
    test: str | None = None,
    **options: Unpack[FeatureOptions],
) -> BackboneRanking:
    """Rank backbones by the accuracy of a linear probe; features come from the cache."""
    if not models:
        raise InputError("no backbones to choose from; give --among MODEL …")
    # What is wrong with them is said before the first model is tried.
    *images_of, selected, notes = open_pair(data, test, models)
    parse_feature_kind(options.get("features", "pre-logits"))
    found: list[RankedBackbone] = []
    speeds = dict[str, float]()  # measured once for models that compute the same
    shots = images = 0
    for model in models:
        loaded = as_loaded(model)
        log_line(f"trying {name_model(model)}")
        train, evaluated = features_of(loaded, list(images_of), **options)
        check_pair(train, evaluated)
        images = len(evaluated)
        least = int(np.bincount(train.labels, minlength=len(train.classes)).min())
        shots = max([count for count in SHOTS if count <= least] or [1])
        few = fit_shots(train, evaluated, shots=[shots])[0].accuracy.mean()
        accuracy = probe_lbfgs(train, evaluated).accuracy
        computed = f"{loaded.model.spec.name} {preprocess_of(loaded).size}"
        if computed not in speeds:
            speeds[computed] = _measure_speed(loaded, options.get("device"))
        found.append(
            RankedBackbone(
                model=name_model(model),
                name=loaded.model.spec.name,
                top1=wilson(round(accuracy * images), images),
                few_shot=float(few),
                speed=speeds[computed],
                parameters=cost_of(loaded.model.spec).parameters,
            )
        )
    ranked = sorted(found, key=lambda each: (-each.top1.value, -each.speed))
    return BackboneRanking(
        data=name_data(data),
        shots=shots,
        images=images,
        ranked=tuple(mark_front(ranked)),
        selected=selected,
        notes=notes,
    )


def mark_front(ranked: Sequence[RankedBackbone]) -> Iterator[RankedBackbone]:
    """Mark those of the Pareto front: each is faster than all that are more accurate."""
    fastest = 0.0
    for each in ranked:  # the most accurate first
        yield replace(each, on_front=each.speed > fastest)
        fastest = max(fastest, each.speed)


@torch.inference_mode()
def _measure_speed(loaded: LoadedModel, device: str | None) -> float:
    """Measure images per second of the features; the first pass is a warm-up."""
    place = choose_device(device)
    model, size = loaded.model.to(place).eval(), preprocess_of(loaded).size
    images = torch.randn(_IMAGES, model.spec.channels, *size, device=place)
    seconds = []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        model.features(images).sum().item()  # which waits for a GPU
        seconds.append(time.perf_counter() - start)
    return _IMAGES / statistics.median(seconds[1:])
