"""Models side by side on the same images: accuracy, speed, size, and whether differences count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.console import log_line
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data
from vitrail.distributed import process_group
from vitrail.evaluation.class_matching import ClassMap, read_map
from vitrail.evaluation.comparison_result import ComparedModel, Comparison
from vitrail.evaluation.dataset_predictions import Predictions, join_predictions, predict_dataset
from vitrail.evaluation.evaluate import BATCH, check_head, map_thresholds, open_matched
from vitrail.evaluation.evaluation_result import EvaluationResult, Selected
from vitrail.evaluation.features.compute import open_pair
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.features.feature_store import features_folder
from vitrail.evaluation.inputs import (
    OpenedImages,
    name_data,
    name_model,
    open_images,
    preprocess_of,
)
from vitrail.evaluation.metrics.significance import PairedTest, paired_test
from vitrail.evaluation.probes.fewshot import check_shots, fit_shots
from vitrail.evaluation.scoring import score_predictions
from vitrail.models import BiT, ViT
from vitrail.models.cost.total import cost_of
from vitrail.models.names import as_size
from vitrail.models.spec import Size
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel

_ROUNDS = 7  # of measuring each model's speed, in turn with the others
_LARGEST = 1_000_000  # images in a batch, as in training


def compare(
    models: Sequence[AnyModel],
    data: Data,
    *,
    split: str | None = None,
    image: str | int | Size | None = None,
    map: ClassMap | str | Path | None = None,
    shots: Sequence[int] = (5,),
    seeds: int = 3,
    batch: int = BATCH,
    device: str | None = None,
) -> Comparison:
    """Compare models on one split of a dataset: accuracy, few-shot, speed, size, significance.

    `split` is by default the data's own `val`; of data without splits, the images that none of the
    models was trained on. Few-shot learns from the others, and empty `shots` leave it out. `image`
    and `map` are as for `evaluate`.
    """
    if not 1 <= batch <= _LARGEST:
        raise InputError(f"--batch must be at least 1 and at most {_LARGEST:,}, got {batch}")
    if len(models) < 2:
        raise InputError(f"expected two or more models to compare, got {len(models)}")
    with process_group(device) as processes:
        if processes.count > 1:
            raise InputError("compare runs in one process; run it without torchrun")
        size = as_size(image)
        classes = read_map(Path(map)) if isinstance(map, str | Path) else map
        opened = open_images(data, split, models)
        few_images = _open_few(models, data, split, shots, seeds) if shots else None
        loaded = [as_loaded(model, image=size) for model in models]
        found: list[tuple[Predictions | None, EvaluationResult | None, tuple[str, ...]]] = []
        few: list[dict[int, tuple[float, float | None]]] = []
        for model, each in zip(models, loaded, strict=True):
            log_line(f"evaluating {name_model(model)}")
            found.append(_evaluate(opened, model, each, data, classes, batch, processes.device))
            if few_images is not None:
                few.append(_few_shot(each, few_images[:2], shots, seeds, processes.device))
        if not shots and not any(result for _, result, _ in found):
            raise InputError(
                f"none of the models has the classes of {name_data(data)}: {found[0][2][0]}"
            )
        log_line("measuring speed")
        sizes = [preprocess_of(each).size for each in loaded]
        on_device = [each.model.to(processes.device) for each in loaded]
        speeds = _measure_speeds(on_device, sizes, batch, processes.device)
    rows = []
    for number, each in enumerate(loaded):
        cost = cost_of(each.model.spec, image=sizes[number])
        pairs = zip(speeds[number], speeds[0], strict=True)
        row = ComparedModel(
            model=name_model(models[number]),
            name=each.model.spec.name,
            image="x".join(str(side) for side in cost.image),
            parameters=cost.parameters,
            flops=cost.flops,
            speed=statistics.median(speeds[number]),
            ratio=statistics.median(mine / first for mine, first in pairs),
            result=found[number][1],
            shots=few[number] if few else {},
            notes=found[number][2],
        )
        rows.append(row)
    tests, common = compare_predictions([predictions for predictions, _, _ in found])
    return Comparison(
        data=name_data(data),
        models=tuple(rows),
        pairs=tests,
        images=common,
        selected=opened.selected,
        few=None if few_images is None else few_images[2],
        notes=opened.notes,
    )


def _evaluate(
    opened: OpenedImages,
    model: AnyModel,
    loaded: LoadedModel,
    data: Data,
    classes: ClassMap | None,
    batch: int,
    device: torch.device,
) -> tuple[Predictions | None, EvaluationResult | None, tuple[str, ...]]:
    """Run one model over every image, if its classes are the data's; otherwise say why not."""
    try:
        check_head(name_model(model), loaded)
        _, matching, notes = open_matched(loaded, data, opened=opened, classes=classes)
    except InputError as error:
        return None, None, (str(error),)
    dataset = opened.dataset
    batches = EvalBatches(dataset, preprocess_of(loaded), batch=batch)
    predictions = join_predictions(
        predict_dataset(
            loaded.model,
            batches,
            matching,
            device=device,
            activation=loaded.activation,
            temperature=loaded.temperature,
        )
    )
    thresholds = map_thresholds(loaded, matching, dataset)
    own = tuple(note for note in notes if note not in opened.notes)
    return predictions, score_predictions(predictions, dataset, thresholds=thresholds), own


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


def _open_few(
    models: Sequence[AnyModel], data: Data, split: str | None, shots: Sequence[int], seeds: int
) -> tuple[ImageDataset, ImageDataset, Selected]:
    """Open the images that few-shot learns from and is evaluated on; refuse what they lack."""
    train, test, selected, _ = open_pair(data, split, models, default="val")
    try:
        check_shots(train, shots, seeds)
    except InputError as error:
        raise InputError(f"{error}; a bare --shots leaves few-shot out") from None
    return train, test, selected


def _few_shot(
    loaded: LoadedModel,
    datasets: tuple[ImageDataset, ImageDataset],
    shots: Sequence[int],
    seeds: int,
    device: torch.device,
) -> dict[int, tuple[float, float | None]]:
    """Give the few-shot accuracy of a model's features, at each number of shots."""
    preprocess, cache = preprocess_of(loaded), features_folder()
    train, test = (
        extract(loaded.model, dataset, preprocess, device=device, cache=cache)
        for dataset in datasets
    )
    return {
        each.shots: (float(each.accuracy[0].mean()), each.stds[0])
        for each in fit_shots(train, test, shots=shots, seeds=seeds)
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
