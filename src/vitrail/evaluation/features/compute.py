"""Features for an evaluation: computed, or taken from the cache."""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack

from vitrail.console import show_progress
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data, open_dataset
from vitrail.data.loader import LoaderConfig
from vitrail.data.split import NoSplitError
from vitrail.distributed import process_group
from vitrail.evaluation.features.extract import BATCH, Engine, Features, check_pair, extract
from vitrail.evaluation.features.feature_kinds import parse_feature_kind
from vitrail.evaluation.features.feature_store import features_folder
from vitrail.evaluation.inputs import preprocess_of
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


def features_of_pair(
    model: AnyModel, data: Data, test: str | None, **options: Unpack[FeatureOptions]
) -> tuple[Features, Features]:
    """Compute the features of the training split and of the one to evaluate on.

    By default that is `test`, or `val` if there is none.
    """
    parse_feature_kind(options.get("features", "pre-logits"))
    if test is not None:
        evaluated = open_dataset(data, split=test)
    else:
        try:
            evaluated = open_dataset(data, split="test")
        except NoSplitError:
            evaluated = open_dataset(data, split="val")
    datasets = [open_dataset(data, split="train"), evaluated]
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
) -> list[Features]:
    """Run a model over datasets, or take their features from the cache."""
    kind = parse_feature_kind(features)
    found: list[Features] = []
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
                        engine=_choose_engine(engine, workers, gpus=device != "cpu"),
                        report=report,
                    )
                )
    return found


def _choose_engine(engine: str, workers: int | None, *, gpus: bool) -> Engine | None:
    """Give what computes batches, unless it is this process."""
    if engine == "local":
        return None
    from vitrail.evaluation.engine_ray import encode_on_ray

    return encode_on_ray(workers, gpus=gpus)
