"""Models side by side on the same images: accuracy, speed, size, and whether differences count."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.console import log_line
from vitrail.data.batches import EvalBatches
from vitrail.data.datasets.open import Data
from vitrail.distributed import process_group
from vitrail.evaluation.class_matching import ClassMap, read_map
from vitrail.evaluation.dataset_predictions import Predictions, join_predictions, predict_dataset
from vitrail.evaluation.evaluate import BATCH, check_head, map_thresholds, open_matched
from vitrail.evaluation.evaluation_result import EvaluationResult, score_predictions
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.features.feature_store import features_folder
from vitrail.evaluation.inputs import name_data, name_model, open_images, preprocess_of
from vitrail.evaluation.probes.fewshot import fit_shots
from vitrail.evaluation.significance import PairedTest, paired_test
from vitrail.models import BiT, ViT
from vitrail.models.cost.total import cost_of
from vitrail.models.names import parse_size
from vitrail.models.spec import Size
from vitrail.result import Result, ResultTable, plain_fields
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel

_ROUNDS = 7
"""Times that each model's speed is measured, in turn with the others."""


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
    shots: dict[int, tuple[float, float]]
    """Few-shot accuracy, mean and std over seeds, by the number of shots."""
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
        names = ("top-1", "95 %", "top-5", "loss", "calibration error")
        quality: dict[str, str] = dict.fromkeys(names, "")
        if (found := self.result) is not None:
            top1, calibration = found.top1, found.calibration
            quality = {
                "top-1": f"{top1.value:.2%}",
                "95 %": f"{top1.low:.1%} to {top1.high:.1%}",
                "top-5": f"{found.top5.value:.2%}",
                "loss": f"{found.loss.value:.3f}",
                "calibration error": "" if calibration is None else f"{calibration.ece.value:.1%}",
            }
        few = {f"{n}-shot": f"{mean:.2%} ± {std:.2%}" for n, (mean, std) in self.shots.items()}
        return quality | few | {
            "resolution": self.image,
            "parameters": f"{self.parameters:,}",
            "GFLOPs per image": f"{self.flops / 1e9:.2f}",
            "images per second": f"{self.speed:,.1f}",
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
        return {"data": self.data, "images": self.images, "models": rows, "pairs": pairs}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one column per model, then what each difference is worth."""
        labels = _label(self.models)
        columns = [each.figures() for each in self.models]
        yield ResultTable(
            ("", *(f"{number}: {label}" for number, label in enumerate(labels, 1))),
            [(row, *(figures[row] for figures in columns)) for row in columns[0]],
        )
        for number, each in enumerate(self.models, 1):
            yield f"{number}: {each.model}"
            yield from (f"   {note}" for note in each.notes)
        for one, two, test in self.pairs:
            points = [f"{100 * value:+.2f}" for value in test.difference]
            wins = f"only {two + 1} is correct on {test.only_second:,}, only {one + 1} on "
            yield (
                f"{two + 1} against {one + 1}: {points[0]} points ({points[1]} to {points[2]}) on "
                f"{self.images:,} images; {wins}{test.only_first:,}; p = {test.exact:.3g} "
                f"(McNemar, exact; mid-p {test.midp:.3g})"
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


def compare(
    models: Sequence[AnyModel],
    data: Data,
    *,
    split: str | None = None,
    image: str | Size | None = None,
    map: ClassMap | str | Path | None = None,
    shots: Sequence[int] = (5,),
    seeds: int = 3,
    batch: int = BATCH,
    device: str | None = None,
) -> Comparison:
    """Compare models on one split of a dataset: accuracy, few-shot, speed, size, significance.

    `split` is by default the images that the first run among the models held out of its data,
    otherwise `val`; few-shot learns from `train`, and empty `shots` leave it out. `image` and `map`
    are as for `evaluate`.
    """
    if batch < 1:
        raise InputError(f"--batch must be at least 1, got {batch}")
    if len(models) < 2:
        raise InputError(f"expected two or more models to compare, got {len(models)}")
    with process_group(device) as processes:
        if processes.count > 1:
            raise InputError("compare runs in one process; run it without torchrun")
        size = parse_size(image) if isinstance(image, str) else image
        classes = read_map(Path(map)) if isinstance(map, str | Path) else map
        loaded = [as_loaded(model, image=size) for model in models]
        found: list[tuple[Predictions | None, EvaluationResult | None, tuple[str, ...]]] = []
        few: list[dict[int, tuple[float, float]]] = []
        for model, each in zip(models, loaded, strict=True):
            log_line(f"{name_model(model)}: every image")
            found.append(
                _evaluate(models, model, each, data, split, classes, batch, processes.device)
            )
            few.append(_few_shot(models, each, data, split, shots, seeds, processes.device))
        if not shots and not any(result for _, result, _ in found):
            raise InputError(
                f"none of the models has the classes of {name_data(data)}: {found[0][2][0]}"
            )
        log_line("speed")
        sizes = [preprocess_of(each).size for each in loaded]
        on_device = [each.model.to(processes.device) for each in loaded]
        speeds = _measure_speeds(on_device, sizes, batch, processes.device)
    rows = []
    for number, each in enumerate(loaded):
        cost = cost_of(each.model.spec, image=sizes[number])
        pairs = zip(speeds[number], speeds[0], strict=True)
        rows.append(
            ComparedModel(
                model=name_model(models[number]),
                name=each.model.spec.name,
                image="x".join(str(side) for side in cost.image),
                parameters=cost.parameters,
                flops=cost.flops,
                speed=statistics.median(speeds[number]),
                ratio=statistics.median(mine / first for mine, first in pairs),
                result=found[number][1],
                shots=few[number],
                notes=found[number][2],
            )
        )
    tests, common = compare_predictions([predictions for predictions, _, _ in found])
    return Comparison(name_data(data), tuple(rows), tests, common)


def _evaluate(
    models: Sequence[AnyModel],
    model: AnyModel,
    loaded: LoadedModel,
    data: Data,
    split: str | None,
    classes: ClassMap | None,
    batch: int,
    device: torch.device,
) -> tuple[Predictions | None, EvaluationResult | None, tuple[str, ...]]:
    """Run one model over every image, if its classes are the data's; otherwise say why not."""
    try:
        check_head(name_model(model), loaded)
        dataset, matching, notes = open_matched(
            loaded, data, split=split, classes=classes, models=models
        )
    except InputError as error:
        return None, None, (str(error),)
    batches = EvalBatches(dataset, preprocess_of(loaded), batch=batch)
    predictions = join_predictions(
        predict_dataset(
            loaded.model, batches, matching, device=device, activation=loaded.activation
        )
    )
    thresholds = map_thresholds(loaded, matching, dataset)
    return predictions, score_predictions(predictions, dataset, thresholds=thresholds), notes


def compare_predictions(
    predictions: Sequence[Predictions | None],
) -> tuple[tuple[tuple[int, int, PairedTest], ...], int]:
    """Test each pair of models on the images that all of them could predict."""
    known = {
        number: each
        for number, each in enumerate(predictions)
        if each is not None and each.logits is None  # one label per image: correct or wrong
    }
    if not known:
        return (), 0
    common: np.ndarray | None = None
    for each in known.values():
        common = each.indices if common is None else np.intersect1d(common, each.indices)
    assert common is not None
    correct = {
        number: each.correct()[np.isin(each.indices, common)] for number, each in known.items()
    }
    tests = tuple(
        (one, two, paired_test(correct[one], correct[two])) for one, two in combinations(known, 2)
    )
    return tests, len(common)


def _few_shot(
    models: Sequence[AnyModel],
    loaded: LoadedModel,
    data: Data,
    split: str | None,
    shots: Sequence[int],
    seeds: int,
    device: torch.device,
) -> dict[int, tuple[float, float]]:
    """Give the few-shot accuracy of a model's features, at each number of shots."""
    if not shots:
        return {}
    train, test = (
        extract(
            loaded.model,
            open_images(data, part, models)[0],
            preprocess_of(loaded),
            device=device,
            cache=features_folder(),
        )
        for part in ("train", split)
    )
    try:
        found = fit_shots(train, test, shots=shots, seeds=seeds)
    except InputError as error:
        raise InputError(f"{error}; a bare --shots leaves few-shot out") from None
    return {
        each.shots: (float(each.accuracy[0].mean()), float(each.accuracy[0].std()))
        for each in found
    }


@torch.inference_mode()
def _measure_speeds(
    models: Sequence[ViT | BiT], sizes: Sequence[Size], batch: int, device: torch.device
) -> list[list[float]]:
    """Measure the models in turn, so that other load on the machine slows all of them alike."""
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
            if lap:  # the first is a warm-up
                found.append(batch / (time.perf_counter() - start))
    return speeds
