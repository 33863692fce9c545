"""Models side by side on the same images: how good, how fast, how large, and whether by luck."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.data.datasets.open import open_dataset
from vitrail.data.transforms.preprocess import default_preprocess
from vitrail.evaluation.class_matching import ClassMap
from vitrail.evaluation.evaluate import BATCH, ask, check_head, match
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.probes.fewshot import few_shot
from vitrail.evaluation.result import Report, make_report
from vitrail.evaluation.scored import Predictions, join_answers
from vitrail.evaluation.significance import Paired, pair
from vitrail.models import BiT, ViT
from vitrail.models.cost.total import cost_of
from vitrail.models.spec import Size
from vitrail.weights.load import LoadedModel, load

_ROUNDS = 7
"""Times that each model's speed is taken, in turn with the others."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of the models, and all that was measured of it."""

    model: str
    """As it was asked for."""
    name: str
    image: str
    """The size of its images, which need not be that of its positions (DINOv2's)."""
    parameters: int
    flops: int
    """Of one image forward, two for a multiplication with its addition."""
    speed: float
    """Images a second, the median of several rounds."""
    ratio: float
    """The same by the first model's, the median of the rounds' ratios."""
    report: Report | None
    """On the whole split; None where the model has not the data's classes."""
    shots: dict[int, tuple[float, float]]
    """Few-shot accuracy, mean and std over seeds, by the number of shots."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All models, and each two of them that can be held against each other."""

    contenders: tuple[Contender, ...]
    pairs: tuple[tuple[int, int, Paired], ...]
    """Numbers of the first and the second model, and how they differ."""
    images: int
    """Images that every model with an accuracy has answered."""


def compare(
    models: Sequence[str],
    data: str,
    *,
    split: str | None = None,
    image: Size | None = None,
    classes: ClassMap | None = None,
    shots: Sequence[int] = (5,),
    seeds: int = 3,
    batch: int = BATCH,
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Measure models on one split of a set; few-shot learns from its `train` split."""
    if len(models) < 2:
        raise InputError(f"expected two models or more to compare, got {len(models)}")
    device = torch.device(device)
    loaded = [load(model, image=image) for model in models]
    answers: list[Predictions | None] = []
    reports: list[Report | None] = []
    few: list[dict[int, tuple[float, float]]] = []
    notes: list[list[str]] = []
    for model, each in zip(models, loaded, strict=True):
        say(f"{model}: every image")
        found, report, said = _examine(model, each, data, split, classes, batch, device)
        few.append(_few_shot(each, data, split, shots, seeds, device, cache))
        answers.append(found)
        reports.append(report)
        notes.append(said)
    if not shots and not any(reports):
        raise InputError(f"none of the models has the classes of {data}: {notes[0][0]}")
    say("speed")
    sizes = [each.preprocess.size if each.preprocess else each.model.spec.image for each in loaded]
    speeds = _time([each.model.to(device) for each in loaded], sizes, batch, device)
    rows = []
    for number, (model, each) in enumerate(zip(models, loaded, strict=True)):
        cost = cost_of(each.model.spec, image=sizes[number])
        rows.append(
            Contender(
                model=model,
                name=each.model.spec.name,
                image="x".join(map(str, cost.image)),
                parameters=cost.parameters,
                flops=cost.flops,
                speed=statistics.median(speeds[number]),
                ratio=statistics.median(
                    mine / first for mine, first in zip(speeds[number], speeds[0], strict=True)
                ),
                report=reports[number],
                shots=few[number],
                notes=tuple(notes[number]),
            )
        )
    pairs, common = pair_up(answers)
    return Comparison(tuple(rows), pairs, common)


def _examine(
    model: str,
    loaded: LoadedModel,
    data: str,
    split: str | None,
    classes: ClassMap | None,
    batch: int,
    device: torch.device,
) -> tuple[Predictions | None, Report | None, list[str]]:
    """Ask one model about every image, if its classes are the data's."""
    try:
        check_head(model, loaded)
        exam = match(loaded, data, split=split, classes=classes)
    except InputError as error:
        return None, None, [str(error)]
    answers = join_answers(ask(exam, device=device, batch=batch))
    return answers, make_report(answers, exam.source), list(exam.notes)


def pair_up(
    answers: Sequence[Predictions | None],
) -> tuple[tuple[tuple[int, int, Paired], ...], int]:
    """Hold each two models against each other on the images that all of them answered."""
    there = [
        number
        for number, each in enumerate(answers)
        if each is not None and each.scores is None  # one label an image: right or wrong
    ]
    if not there:
        return (), 0
    known = [each for number in there if (each := answers[number]) is not None]
    common = known[0].indices
    for each in known[1:]:
        common = np.intersect1d(common, each.indices)
    right = {
        number: each.right()[np.isin(each.indices, common)]
        for number, each in zip(there, known, strict=True)
    }
    pairs = tuple((one, two, pair(right[one], right[two])) for one, two in combinations(there, 2))
    return pairs, len(common)


def _few_shot(
    loaded: LoadedModel,
    data: str,
    split: str | None,
    shots: Sequence[int],
    seeds: int,
    device: torch.device,
    cache: Path | None,
) -> dict[int, tuple[float, float]]:
    """Give the accuracy of few-shot learning from a model's features, at each number of shots."""
    if not shots:
        return {}
    spec = loaded.model.spec
    preprocess = loaded.preprocess or default_preprocess(spec.image, spec.channels)
    features = []
    for part in ("train", split or "val"):
        source = open_dataset(data, split=part)
        features.append(extract(loaded.model, source, preprocess, device=device, cache=cache))
    try:
        found = few_shot(features[0], features[1], shots=shots, seeds=seeds)
    except InputError as error:
        raise InputError(f"{error}; a bare --shots leaves few-shot out") from None
    return {
        each.shots: (float(each.accuracy[0].mean()), float(each.accuracy[0].std()))
        for each in found
    }


@torch.inference_mode()
def _time(
    models: Sequence[ViT | BiT], sizes: Sequence[Size], batch: int, device: torch.device
) -> list[list[float]]:
    """Take the models' speeds in turn, so that what else the machine does slows all alike."""
    inputs = [
        torch.randn(batch, model.spec.channels, *size, device=device)
        for model, size in zip(models, sizes, strict=True)
    ]
    speeds: list[list[float]] = [[] for _ in models]
    for lap in range(_ROUNDS + 1):
        for model, images, found in zip(models, inputs, speeds, strict=True):
            start = time.perf_counter()
            model(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if lap:  # the first is for warming up
                found.append(batch / (time.perf_counter() - start))
    return speeds
