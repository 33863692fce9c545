"""The data of a run, opened the same way for training, evaluation and its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from vitrail.config import InputError, from_dict, read_file
from vitrail.data.dataset import ImageDataset, ImageStream, select
from vitrail.data.datasets.groups import group_images
from vitrail.data.datasets.open import (
    Data,
    group_column,
    is_divided,
    open_data,
    open_dataset,
    open_stand_in,
    whole_data,
)
from vitrail.data.grouped_split import hold_out_groups, torn_groups
from vitrail.data.split import HELD_OUT, NoSplitError, assign_folds, spell, split_dataset
from vitrail.text import quoted
from vitrail.training.checkpoints.run_folder import CONFIG
from vitrail.training.train_config import TrainConfig


def hold_out_for_choosing(
    config: TrainConfig, data: Data | None = None, *, thresholds: bool = True
) -> TrainConfig:
    """Hold out training images where a run chooses by evaluations and only a test split is there.

    So no run chooses on the images that it is judged by, unless asked to: `val_split` test. It
    chooses its best weights, and, unless its task has no `thresholds`, those of several labels.
    """
    chooses = config.keep == "best" or config.patience > 0
    thresholds = thresholds and config.task == "classification" and config.loss.kind != "softmax"
    if not (chooses or thresholds):
        return config
    if config.hold_out or config.folds or config.val_split != "val" or config.val_data:
        return config
    stand_in = open_stand_in(config.data if data is None else data)
    if stand_in is None or not (chooses or stand_in.multilabel):
        return config
    return replace(config, hold_out=HELD_OUT)


def open_datasets(
    config: TrainConfig, data: Data | None = None, *, labels: bool = True
) -> tuple[ImageDataset | ImageStream, ImageDataset | None]:
    """Open the training and validation images of a run; `data` may be an object.

    A subset is one of the training images; the others are evaluated on whole.
    A dataset without splits is divided the same whatever the run's seed, so that no run is
    evaluated on images that another one was trained on.
    """
    _check_evaluated(config)
    data = config.data if data is None else data
    if (divided := _divide_training(config, data, labels=labels)) is not None:
        return divided
    train_set = open_data(data, split="train", labels=labels)
    if isinstance(train_set, ImageStream):
        _check_stream(train_set, config)
    return train_set, _open_val(config, data, labels=labels)


def _divide_training(
    config: TrainConfig, data: Data, *, labels: bool
) -> tuple[ImageDataset, ImageDataset] | None:
    """Divide the training images where settings ask for it: what is left, and what is held out.

    Folds and groups of a dataset without splits are made of all its images.
    """
    grouped = config.group is not None or config.folds > 0
    whole = grouped and not is_divided(data)
    if not (config.hold_out or config.folds or whole):
        return None
    found = open_data(data, split="all" if whole else "train", labels=labels)
    if isinstance(found, ImageStream):
        raise InputError(f"{found.name} is a stream, of which no part can be held out")
    groups = groups_of(config, data, found)
    if config.folds:
        plain = found.labels.ndim == 1
        folds = assign_folds(
            found.labels if plain else np.zeros(len(found), np.int64),
            len(found.classes) if plain else 1,
            config.folds,
            groups=groups,
        )
        fold = max(config.fold, 1)  # a run of all folds is estimated by its first
        held_out = folds == fold - 1
        name = f"{found.name} (fold {fold} of {config.folds})"
    elif groups is None:
        return split_dataset(found, config.hold_out, seed=0)
    else:
        held_out = hold_out_groups(found.labels, groups, config.hold_out or HELD_OUT)
        name = f"{found.name} (held out)"
    return select(found, np.flatnonzero(~held_out)), select(found, np.flatnonzero(held_out), name)


def groups_of(config: TrainConfig, data: Data, dataset: ImageDataset) -> np.ndarray | None:
    """Name the group of each image, where settings say what a group is."""
    if config.group is None:
        return None
    return group_images(dataset, config.group, group_column(data, config.group))


def group_notes(
    config: TrainConfig,
    data: Data | None,
    train: ImageDataset | ImageStream,
    val: ImageDataset | None,
) -> tuple[str, ...]:
    """Say how many groups there are on each side, and warn of those that are torn apart."""
    if config.group is None:
        return ()
    data = config.data if data is None else data
    if val is None or isinstance(train, ImageStream):
        raise InputError("group needs images that are held out; give hold_out or folds")
    column = group_column(config.val_data or data, config.group)
    here = groups_of(config, data, train)
    there = group_images(val, config.group, column)
    assert here is not None
    counts = f"{len(np.unique(here)):,} of training, {len(np.unique(there)):,} held out"
    if torn := torn_groups(here, there):
        few = f"{len(torn):,} are in both splits: {quoted(torn)}"
        return (f"groups   {counts}; {few}; --hold-out 0.1 holds out whole groups instead",)
    return (f"groups   {counts}, none in both",)


def _check_evaluated(config: TrainConfig) -> None:
    """Refuse settings that go by evaluations where there are none."""
    evaluates = config.eval_every is None or config.eval_every.amount > 0
    if (config.val_split or config.hold_out or config.folds) and evaluates:
        return
    for name, asked in {"keep best": config.keep == "best", "patience": config.patience}.items():
        if asked:
            raise InputError(
                f"{name} needs evaluations; give val_split or hold_out, and eval_every"
            )


def _open_val(config: TrainConfig, data: Data, *, labels: bool) -> ImageDataset | None:
    if not config.val_split:
        return None
    if config.val_data is None and isinstance(data, ImageDataset | Dataset):
        return None  # an object is one split: its own images would be trained on
    try:
        found = open_data(
            config.val_data or whole_data(data), split=config.val_split, labels=labels
        )
    except NoSplitError as error:
        if labels:
            hint = "give --val-data DATA to evaluate on, or --val-split '' for no evaluation"
            raise NoSplitError(f"{error}; {hint}") from None
        return None  # learning without labels needs no validation images
    if isinstance(found, ImageDataset):
        return found
    raise InputError(
        f"{found.name} is a stream, which can't be evaluated on; give --val-data, a dataset whose "
        f"{config.val_split} split can, or --val-split '' for no evaluation"
    )


def _check_stream(stream: ImageStream, config: TrainConfig) -> None:
    """Refuse settings that need to know a stream's images before they come."""
    if config.cache.limit:
        raise InputError(f"{stream.name} is a stream, which no cache keeps; leave cache.limit out")
    durations = {
        "length": config.length,
        "eval_every": config.eval_every or config.length,
        "save_every": config.save_every or config.length,
    }
    for name in ("warmup", "cooldown", "timescale"):
        durations[f"schedule.{name}"] = getattr(config.schedule, name)
    counted = [
        f"--{name.replace('_', '-')}" for name, each in durations.items() if each.unit == "epochs"
    ]
    if stream.length is None and counted:
        raise InputError(
            f"{stream.name} does not say how many images it has, so that nothing lasts epochs: "
            f"give {', '.join(counted)} as '1000 steps', '10 %' or '1_000_000 images'"
        )


def identify_data(data: ImageDataset | ImageStream) -> dict[str, Any]:
    """Say by what a resumed run knows its images again; a stream, by name and classes."""
    if isinstance(data, ImageDataset):
        return {"name": data.name, "images": len(data), "hash": data.fingerprint()}
    return {"name": data.name, "images": 0, "hash": repr(data.classes)}


def read_config(run: Path) -> TrainConfig:
    """Read the settings of a run from its folder."""
    return from_dict(TrainConfig, read_file(run / CONFIG))


def open_run_data(run: Path | TrainConfig, split: str | None = None) -> ImageDataset:
    """Open images of a run's data: by default those that it was validated on.

    Without a validation split, they are its training images. `train` and `val` are exactly what
    training used, with `hold_out` and `val_data`; other names are splits of the dataset itself.
    """
    config = read_config(run) if isinstance(run, Path) else run
    validated = bool(config.hold_out or config.folds or config.val_split)
    asked = spell(split or ("val" if validated else "train"))
    if asked in ("train", "val"):
        divided = _divide_training(config, config.data, labels=False)
        if divided is not None:
            return divided[asked == "val"]
    if asked == "train":
        return open_dataset(config.data, split="train", labels=False)
    used = config.val_split if asked == "val" and config.val_split else asked
    return open_dataset(config.val_data or whole_data(config.data), split=used, labels=False)
