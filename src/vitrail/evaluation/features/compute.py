"""Features for an evaluation: computed, or taken from the cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple, TypedDict, Unpack

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data, open_dataset, subset_of, whole_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.split import NoSplitError
from vitrail.distributed import process_group
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.features.extract import BATCH, Engine, extract
from vitrail.evaluation.features.feature_kinds import parse_feature_kind
from vitrail.evaluation.features.feature_store import features_folder
from vitrail.evaluation.features.image_features import Features, check_pair
from vitrail.evaluation.inputs import look_over, open_images, preprocess_of
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


def open_pair(
    data: Data, test: str | None, models: Sequence[AnyModel] = (), *, default: str = "test"
) -> tuple[ImageDataset, ImageDataset, Selected, tuple[str, ...]]:
    """Open the images that a classifier learns from and those that it is evaluated on.

    The latter are by default the `default` split, or `val` if there is none; of data without splits
    none that one of the models was trained on. Also say which they are, and what should be known. A
    subset is one of the images that are learned from.
    """
    whole = whole_data(data)
    try:
        opened = open_images(whole, test or default, models, learns=True)
    except NoSplitError:
        if test is not None:
            raise
        opened = open_images(whole, None, models, learns=True)
    part = subset_of(data)
    if opened.rest is None:
        train = open_dataset(data, split="train")
        look_over(train)
    else:
        train = opened.rest if part is None else part.of(opened.rest)
    if train.labels.ndim == 2:
        has = "numbers" if train.regression else "several labels"
        raise InputError(f"{train.name} has {has} per image; expected one class each")
    if len(train.classes) < 2:
        only = f"{train.name} has only the class {quoted(train.classes)}"
        raise InputError(f"{only}; a classifier needs two or more")
    return train, opened.dataset, opened.selected, opened.notes


class FeaturePair(NamedTuple):
    """Features to learn from and features to evaluate on."""

    train: Features
    test: Features
    selected: Selected
    """How many images of how many are evaluated on, and why those."""
    notes: tuple[str, ...]
    datasets: tuple[ImageDataset, ImageDataset] | None = None
    """The images that they are of."""


def features_of_pair(
    model: AnyModel,
    data: Data,
    test: str | None,
    named: AnyModel | None = None,
    **options: Unpack[FeatureOptions],
) -> FeaturePair:
    """Compute the features of the images to learn from and of those to evaluate on.

    `named` is the model as it was given, where it was loaded before.
    """
    parse_feature_kind(options.get("features", "pre-logits"))
    *datasets, selected, notes = open_pair(data, test, (model if named is None else named,))
    train, evaluated = features_of(as_loaded(model), list(datasets), **options)
    check_pair(train, evaluated)
    return FeaturePair(train, evaluated, selected, notes, (datasets[0], datasets[1]))


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
    look_over(*datasets)
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
