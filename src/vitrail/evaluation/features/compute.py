"""Features for an evaluation: computed, or taken from the cache."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypedDict, Unpack

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data, open_dataset, whole_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.split import NoSplitError
from vitrail.distributed import process_group
from vitrail.evaluation.features.extract import BATCH, Engine, extract
from vitrail.evaluation.features.feature_kinds import parse_feature_kind
from vitrail.evaluation.features.feature_store import features_folder
from vitrail.evaluation.features.image_features import Features, check_pair
from vitrail.evaluation.inputs import preprocess_of
from vitrail.text import quoted
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel


class FeatureOptions(TypedDict, total=False):
    """How features are computed; the same for all commands on frozen features."""

    features: str
    """pre-logits, class-token or patch-mean; after an earlier block class-token@6, patch-mean@6."""
    batch: int
    """Images in a forward pass."""
    device: str | None
    """cpu, cuda:1, mps; by default the best there is."""
    workers: int | None
    """Threads that decode images, or Ray workers; by default one per core."""
    engine: Literal["local", "ray"]
    """ray: run on a Ray cluster (Ray Data)."""
    fresh: bool
    """Neither read features from the cache nor write them there."""
    patches: int | None
    """A patch budget within which images keep their aspect ratio; by default as the weights say."""


def open_pair(data: Data, test: str | None) -> list[ImageDataset]:
    """Open the training split and the one to evaluate on, of a classifier.

    By default that is `test`, or `val` if there is none. A subset is one of the training split.
    """
    whole = whole_data(data)
    if test is not None:
        evaluated = open_dataset(whole, split=test)
    else:
        try:
            evaluated = open_dataset(whole, split="test")
        except NoSplitError:
            evaluated = open_dataset(whole, split="val")
    train = open_dataset(data, split="train")
    if train.labels.ndim == 2:
        has = "numbers" if train.regression else "several labels"
        raise InputError(f"{train.name} has {has} per image; expected one class each")
    if len(train.classes) < 2:
        only = f"{train.name} has only the class {quoted(train.classes)}"
        raise InputError(f"{only}; a classifier needs two or more")
    return [train, evaluated]


def features_of_pair(
    model: AnyModel, data: Data, test: str | None, **options: Unpack[FeatureOptions]
) -> tuple[Features, Features]:
    """Compute the features of the training split and of the one to evaluate on."""
    parse_feature_kind(options.get("features", "pre-logits"))
    datasets = open_pair(data, test)
    train, evaluated = features_of(as_loaded(model), datasets, **options)
    check_pair(train, evaluated)
    return train, evaluated


def features_of(
    loaded: LoadedModel,
    datasets: list[ImageDataset],
    *,
    features: str = "pre-logits",
    batch: int = BATCH,
    device: str | None = None,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    fresh: bool = False,
    patches: int | None = None,
) -> list[Features]:
    """Run a model over datasets, or take their features from the cache."""
    loaded = as_loaded(loaded, patches=patches)
    kind = parse_feature_kind(features)
    found: list[Features] = []
    elsewhere: Engine | None = None
    if engine == "ray":
        from vitrail.evaluation.engine_ray import map_on_ray

        elsewhere = partial(map_on_ray, workers=workers, gpus=device != "cpu")
    with process_group(device) as processes:
        for dataset in datasets:
            with show_progress(dataset.name, len(dataset)) as report:
                found.append(
                    extract(
                        loaded.model,
                        dataset,
                        preprocess_of(loaded),
                        kind,
                        batch=batch,
                        device=processes.device,
                        loader=LoaderConfig(workers=workers),
                        cache=None if fresh else features_folder(),
                        engine=elsewhere,
                        report=report,
                    )
                )
    return found
