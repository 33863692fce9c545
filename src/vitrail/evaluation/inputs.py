"""The model and the images of an evaluation, whichever way they are given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vitrail.config import InputError, from_dict, read_file
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data, open_dataset
from vitrail.data.split import NoSplitError
from vitrail.data.transforms.preprocess import Preprocess, default_preprocess
from vitrail.text import expand
from vitrail.training.checkpoints.run_folder import CONFIG
from vitrail.training.run_data import open_run_data
from vitrail.training.train_config import TrainConfig
from vitrail.weights.loaded import AnyModel, LoadedModel


def name_model(model: AnyModel) -> str:
    """Name a model in a result: the text it was given by, or its spec."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return str(model.model.spec if isinstance(model, LoadedModel) else model.spec)


def name_data(data: Data) -> str:
    """Name data in a result: the text it was given by, or its type."""
    return os.fspath(data) if isinstance(data, str | os.PathLike) else type(data).__name__


def preprocess_of(loaded: LoadedModel) -> Preprocess:
    """Give a model's own preprocessing, or the paper's."""
    spec = loaded.model.spec
    return loaded.preprocess or default_preprocess(spec.image, spec.channels)


def is_labeled(dataset: ImageDataset) -> bool:
    """Tell whether labels say anything: images without any are all of one class."""
    return dataset.regression or dataset.multilabel or len(dataset.classes) > 1


def open_images(
    data: Data, split: str | None, models: Sequence[AnyModel] = (), *, labels: bool = True
) -> tuple[ImageDataset, tuple[str, ...]]:
    """Open the images to evaluate on, and note what a person should know about them.

    For the data that a run was trained on, `val` is what the run was validated on, however it was
    held out; it is also the default. Other data has its own splits. `labels=False` also takes
    images without labels, and all of them by default, as none of them were held out.
    """
    for model in models:
        if (config := read_run_config(model)) is None or not same_data(config.data, data):
            continue
        if not (config.val_split or config.hold_out):
            continue
        if split not in (None, "val", "train"):
            break
        dataset = open_run_data(config, split)
        what = "was trained on" if split == "train" else "was validated on"
        return dataset, (f"{dataset.name}: images that the run {what}",)
    try:
        dataset = open_dataset(data, split=split or "val", labels=labels)
        text = isinstance(data, str | os.PathLike)
        if text and split is None and not labels and not is_labeled(dataset):
            dataset = open_dataset(data, split="all", labels=False)
        return dataset, ()
    except NoSplitError as error:
        if split is None or split == "val":
            raise
        raise NoSplitError(f"{error}; leave --split out to evaluate on held-out images") from None


def read_run_config(model: AnyModel) -> TrainConfig | None:
    """Read the settings of a run that is named by its folder; None for any other model."""
    if not isinstance(model, str | os.PathLike):
        return None
    path = expand(os.fspath(model).removeprefix("run:")) / CONFIG
    try:
        return from_dict(TrainConfig, read_file(path)) if path.is_file() else None
    except (InputError, OSError):  # another project's config.yaml
        return None


def same_data(trained: str, asked: Data) -> bool:
    """Tell whether a run's data is what was asked for, however the two are written."""
    if not isinstance(asked, str | os.PathLike):
        return False
    here, there = os.fspath(asked), trained
    if here == there:
        return True
    return _place(here) == _place(there) is not None


def _place(text: str) -> Path | None:
    path = expand(text.removeprefix("folder:"))
    return path.resolve() if path.exists() else None
