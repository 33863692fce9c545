"""Evaluate a model on every image of a dataset, in one process, in several, or on Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.batches import EvalBatches
from vitrail.data.checks.output_place import check_output_place
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data
from vitrail.data.datasets.open import notes as notes_of
from vitrail.data.loader import LoaderConfig
from vitrail.data.trained_on import MOST, TRAINED, TrainingImages
from vitrail.distributed import Processes, process_group
from vitrail.evaluation.class_matching import ClassMap, match_classes, read_map
from vitrail.evaluation.dataset_predictions import (
    ClassMatching,
    Predictions,
    join_predictions,
    predict_dataset,
)
from vitrail.evaluation.evaluation_files import write_class_table, write_evaluation
from vitrail.evaluation.evaluation_result import EvaluationResult
from vitrail.evaluation.imagenet_subsets import open_subset, read_reassessed
from vitrail.evaluation.inputs import (
    OpenedImages,
    Selected,
    name_data,
    name_model,
    open_images,
    preprocess_of,
)
from vitrail.evaluation.scoring import score_predictions
from vitrail.files import check_writable
from vitrail.models.names import as_size
from vitrail.models.spec import Size
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel
from vitrail.weights.uncertainty_record import Uncertainty

BATCH = 64
"""Images in a forward pass; another number changes the last digits."""
Engine = Literal["local", "ray"]


def evaluate(
    model: AnyModel,
    data: Data,
    *,
    split: str | None = None,
    image: str | int | Size | None = None,
    patches: int | None = None,
    subset: str | None = None,
    map: ClassMap | str | Path | None = None,
    real: str | Path | None = None,
    csv: str | Path | None = None,
    out: str | Path | None = None,
    batch: int = BATCH,
    device: str | None = None,
    engine: Engine = "local",
    workers: int | None = None,
) -> EvaluationResult:
    """Evaluate a classifier: accuracy, calibration and confusion, each with a 95 % interval.

    `split` is by default `val`, of data without splits all images that the model was not trained on
    (`all` with `subset`); `image` another resolution than the model was trained at; `patches` a
    budget within which images keep their aspect ratio; `subset` one of
    `imagenet_subsets.SUBSETS`; `map` says which of the model's classes those of the data are;
    `real` is the file of ImageNet's reassessed labels. A table by class is written to `csv`,
    everything with plots into the folder `out`. Under torchrun all processes share the work, and
    all get the result.
    """
    if batch < 1:
        raise InputError(f"--batch must be at least 1, got {batch}")
    if csv is not None:
        check_writable(Path(csv))
    if out is not None:
        check_writable(Path(out), folder=True)
        check_output_place(out, data)
    with process_group(None if engine == "ray" else device) as processes:
        if engine == "ray" and processes.count > 1:
            raise InputError("--engine ray starts its own processes; run it without torchrun")
        size = as_size(image)
        loaded = as_loaded(model, image=size, patches=patches)
        check_head(name_model(model), loaded)
        classes = read_map(Path(map)) if isinstance(map, str | Path) else map
        opened, matching, notes = open_matched(
            loaded, data, split=split, subset=subset, classes=classes, models=(model,)
        )
        dataset = opened.dataset
        real_labels = read_reassessed(Path(real), dataset) if real is not None else None
        if processes.count > 1:
            processes.check_same({"images": len(dataset), "hash": dataset.fingerprint()})
        predictions = predict_matched(
            loaded,
            dataset,
            matching,
            processes,
            batch,
            engine=engine,
            device=device,
            workers=workers,
        )
        thresholds = map_thresholds(loaded, matching, dataset)
        result = score_predictions(predictions, dataset, real=real_labels, thresholds=thresholds)
        result = replace(
            result,
            model=name_model(model),
            data=name_data(data),
            image="x".join(str(side) for side in preprocess_of(loaded).size),
            notes=notes,
            selected=opened.selected,
            out=None if out is None else Path(out),
        )
    if processes.is_main and csv is not None:
        write_class_table(result, Path(csv))
    if processes.is_main and result.out is not None:
        write_evaluation(result, dataset, result.out)
    return result


def check_head(name: str, loaded: LoadedModel) -> None:
    """Refuse a model without a head to classify with, or with one that was never trained."""
    hint = "evaluate its features with vitrail fewshot, probe or knn, or train a head with finetune"
    output = loaded.model.head.output
    if output is None:
        raise InputError(f"{name} has no head, so no classes; {hint}")
    if not any(parameter.any() for parameter in output.parameters()):
        raise InputError(f"the head of {name} is all zeros, as published; {hint}")


def open_matched(
    loaded: LoadedModel,
    data: Data,
    *,
    split: str | None = None,
    subset: str | None = None,
    classes: ClassMap | None = None,
    models: Sequence[AnyModel] = (),
    opened: OpenedImages | None = None,
) -> tuple[OpenedImages, ClassMatching, tuple[str, ...]]:
    """Open a dataset, find its classes among the model's, and note what a person should know.

    `opened` has the images where several models are measured on the same ones.
    """
    outputs = loaded.model.spec.classes
    if subset is not None:
        if classes:
            raise InputError("give --subset or --map, not both: a subset brings its own classes")
        dataset, matching = open_subset(subset, data, split or "all", loaded.classes, outputs)
        whole = Selected(len(dataset), len(dataset), f"of {dataset.name}")
        opened = OpenedImages(dataset, whole)
    else:
        opened = opened or open_images(data, split, models)
        dataset = opened.dataset
        if dataset.regression != (loaded.activation == "none"):
            raise InputError(_mismatch(dataset, loaded))
        matching = match_classes(dataset, loaded.classes, outputs, classes)
    notes = (*opened.notes, *notes_of(dataset), *matching.notes)
    if dataset.multilabel and loaded.activation == "softmax":
        notes += ("the model was trained with softmax: one class per image, not several labels",)
    if dataset.multilabel:
        own = "the model has no thresholds: a label is predicted from a probability of 0.5 on"
        if loaded.thresholds is not None:
            own = "a label is predicted where its probability reaches the model's threshold"
        notes += (own,)
    if loaded.temperature != 1 and dataset.labels.ndim == 1:
        notes += (_tell_temperature(loaded, dataset),)
    if loaded.preprocess is not None and loaded.preprocess.patches:
        budget = loaded.preprocess.patches
        notes += (f"images keep their aspect ratio, in at most {budget} patches",)
    if loaded.preprocess is None:
        notes += ("the weights do not say how images are preprocessed: the paper's way is used",)
    return opened, matching, notes


def _tell_temperature(loaded: LoadedModel, dataset: ImageDataset) -> str:
    """Say which images chose the temperature; on these, calibration looks better than it is."""
    assert loaded.uncertainty is not None
    facts = loaded.uncertainty.facts
    said = f"probabilities are calibrated: temperature {loaded.temperature:.3f}, chosen on "
    count = _count_calibrated(loaded.uncertainty, dataset)
    if not count:
        return f"{said}{facts.images:,} images of {facts.data}"
    which = "these images" if count == len(dataset) else f"{count:,} of these images"
    return f"{said}{which} (calibration error on images that did not: {facts.ece_after:.1%})"


def _count_calibrated(known: Uncertainty, dataset: ImageDataset) -> int:
    """Count the images that chose the temperature; by the dataset's name where none is known."""
    if known.hashes is None:
        return len(dataset) if known.facts.data == dataset.name else 0
    hashes = known.hashes.numpy().view(np.uint64)
    record = TrainingImages(
        data=known.facts.data,
        kind="contents" if len(hashes) <= MOST else "names",
        images=len(hashes),
        held_out=0,
        trained=hashes,
        held=np.empty(0, np.uint64),
    )
    return int((record.statuses(dataset)[0] == TRAINED).sum())


def _mismatch(dataset: ImageDataset, loaded: LoadedModel) -> str:
    """Say that one of data and model has numbers, the other classes."""
    if dataset.regression:
        return f"{dataset.name} has numbers to predict, but the model predicts classes"
    names = "+".join(loaded.classes or ("COLUMN",))
    return f"the model predicts numbers; name them in the data: csv:FILE,targets={names}"


def map_thresholds(
    loaded: LoadedModel, matching: ClassMatching, dataset: ImageDataset
) -> list[float] | None:
    """Give the model's thresholds in the order of the data's classes, if they are needed."""
    if loaded.thresholds is None or not dataset.multilabel:
        return None
    return [loaded.thresholds[output] for output in matching.outputs(len(dataset.classes))]


def predict_matched(
    loaded: LoadedModel,
    dataset: ImageDataset,
    matching: ClassMatching,
    processes: Processes,
    batch: int,
    *,
    engine: Engine = "local",
    device: str | None = None,
    workers: int | None = None,
) -> Predictions:
    """Run the model over the dataset in all processes, or on Ray's workers."""
    batches = EvalBatches(dataset, preprocess_of(loaded), batch=batch, shard=processes.shard)
    with show_progress("images", len(dataset)) as report:
        if engine == "ray":
            from vitrail.evaluation.engine_ray import predict_on_ray

            parts = predict_on_ray(
                loaded, batches, matching, device=device, workers=workers, report=report
            )
        else:
            parts = predict_dataset(
                loaded.model,
                batches,
                matching,
                device=processes.device,
                activation=loaded.activation,
                temperature=loaded.temperature,
                loader=LoaderConfig(workers=workers),
                report=lambda done: report(done * processes.count),
            )
    return join_predictions([part for each in processes.gather(parts) for part in each])
