"""The data of a run, opened the same way for training, evaluation and its report."""

from __future__ import annotations

import os
from contextlib import suppress
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
from vitrail.data.decoding.reading import split_reading
from vitrail.data.grouped_split import hold_out_groups, torn_groups
from vitrail.data.name_hashes import name_hashes
from vitrail.data.split import (
    HELD_OUT,
    NoSplitError,
    assign_folds,
    hash_folds,
    plain_name,
    spell,
    split_dataset,
)
from vitrail.data.subsets import split_subset
from vitrail.data.trained_on import HELD, TRAINED, TrainingImages, load_images
from vitrail.text import expand, quoted
from vitrail.training.checkpoints.run_folder import CONFIG, TRAINED_ON
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


def divide_for_choosing(
    config: TrainConfig, data: Data | None, train: ImageDataset, *, thresholds: bool = True
) -> tuple[ImageDataset, ImageDataset] | None:
    """Divide a fold's training images where its run chooses by evaluations: the rest, and a tenth.

    So no fold chooses on the images that it is scored by. None where nothing is chosen.
    """
    chooses = config.keep == "best" or config.patience > 0
    thresholds = thresholds and config.task == "classification" and config.loss.kind != "softmax"
    if not config.folds or not (chooses or (thresholds and train.multilabel)):
        return None
    groups = groups_of(config, config.data if data is None else data, train)
    if groups is None:
        rest, held = split_dataset(train, HELD_OUT, seed=0)
    else:
        marked = hold_out_groups(train.labels, groups, HELD_OUT)
        rest, held = (select(train, np.flatnonzero(each)) for each in (~marked, marked))
    held.name = f"{plain_name(train)} (a tenth of what fold {max(config.fold, 1)} trains on)"
    return rest, held


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
        if labels:
            _check_held_out(config, *divided)
        return divided
    train_set = open_data(data, split=_train_split(config, data), labels=labels)
    if isinstance(train_set, ImageStream):
        _check_stream(train_set, config)
    val_set = _open_val(config, data, labels=labels)
    if labels and config.val_data is None and val_set is not None:
        _check_held_out(config, train_set, val_set)
    return train_set, val_set


def check_can_hold_out(config: TrainConfig, data: Data, train: ImageDataset | ImageStream) -> None:
    """Refuse data of one image a class where some are to be held out; quick for any other."""
    if not isinstance(train, ImageDataset) or train.labels.ndim != 1 or not len(train):
        return
    if train.class_counts().max() == 1 and config.task == "classification":
        open_datasets(config, data)


def _check_held_out(
    config: TrainConfig, train: ImageDataset | ImageStream, val: ImageDataset
) -> None:
    """Refuse classes of one image each, of which none can be held out."""
    if len(val) or not isinstance(train, ImageDataset) or not len(train):
        return
    if train.labels.ndim == 1 and train.class_counts().max() > 1:  # as a split without images is
        return
    raise _single_images(config, train)


def _single_images(config: TrainConfig, dataset: ImageDataset) -> InputError:
    """Say that nothing can be held out where each class has one image, and what can be done."""
    classes = np.count_nonzero(dataset.class_counts())
    what = f"each of {classes:,} classes has one image" if classes > 1 else "there is one image"
    changed = {"hold-out": config.hold_out, "folds": config.folds}
    without = [f"--{name} 0" for name, asked in changed.items() if asked]
    without += ["--keep last"] * (config.keep == "best")
    without += ["--patience 0"] * (config.patience > 0)
    flags = " ".join((*without, "--val-split ''"))
    return InputError(
        f"{dataset.name}: {what}, so none can be held out; expected two or more images a class "
        f"(ten are better): add images, or train on all of them without measuring: {flags}"
    )


def _train_split(config: TrainConfig, data: Data) -> str:
    """Name the split to train on: all of a dataset without splits, where none of it is measured."""
    measured = [config.fewshot.data]
    if config.val_split:
        measured.append(config.val_data or config.data)
    if any(each and same_data(each, data) for each in measured) or is_divided(data):
        return "train"
    return "all"


def _val_split(config: TrainConfig, data: Data) -> str:
    """Name the split to evaluate on: all of `val_data` without splits, unless it is `data`."""
    other = config.val_data
    if other is None or config.val_split != "val" or same_data(other, data) or is_divided(other):
        return config.val_split
    return "all"


def same_data(one: str, other: Data) -> bool:
    """Tell whether two are the same data, however they are written."""
    if not isinstance(other, str | os.PathLike):
        return False
    here, there = (split_subset(split_reading(os.fspath(each))[0])[0] for each in (other, one))
    if here == there:
        return True
    return _place(here) == _place(there) is not None


def _place(text: str) -> Path | None:
    path = expand(text.removeprefix("folder:"))
    return path.resolve() if path.exists() else None


def _divide_training(
    config: TrainConfig, data: Data, *, labels: bool, as_before: bool = False
) -> tuple[ImageDataset, ImageDataset] | None:
    """Divide the training images where settings ask for it: what is left, and what is held out.

    A dataset without splits is divided whole, so that no image is in neither; `as_before` divides
    it as runs did that left no record.
    """
    if not (config.hold_out or config.folds or config.group is not None):
        return None
    whole = not is_divided(data)
    if as_before or config.hold_out_of == "train":
        whole = whole and (config.group is not None or config.folds > 0)
    if not (config.hold_out or config.folds or whole):
        return None
    found = open_data(data, split="all" if whole else "train", labels=labels)
    if isinstance(found, ImageStream):
        raise InputError(f"{found.name} is a stream, of which no part can be held out")
    groups = groups_of(config, data, found)
    if groups is not None and whole and config.hold_out and config.hold_out_of == "train":
        rest = np.flatnonzero(~hold_out_groups(found.labels, groups, HELD_OUT))
        found, groups = select(found, rest), groups[rest]
    if config.folds:
        folds = _assign_folds(config, found, groups, as_before=as_before)
        if labels and not as_before:
            _check_folds(config, found, folds)
        fold = max(config.fold, 1)  # a run of all folds is estimated by its first
        held_out = folds == fold - 1
        name = f"{plain_name(found)} (fold {fold} of {config.folds})"
    elif groups is None:
        return split_dataset(found, config.hold_out, seed=0)
    else:
        held_out = hold_out_groups(found.labels, groups, config.hold_out or HELD_OUT)
        name = f"{plain_name(found)} (held out)"
    return select(found, np.flatnonzero(~held_out)), select(found, np.flatnonzero(held_out), name)


def _assign_folds(
    config: TrainConfig, dataset: ImageDataset, groups: np.ndarray | None, *, as_before: bool
) -> np.ndarray:
    """Assign a fold to each image, from 0, by its name alone where there are no groups."""
    plain = dataset.labels.ndim == 1
    labels = dataset.labels if plain else np.zeros(len(dataset), np.int64)
    classes = dataset.classes if plain else ("",)
    if groups is not None or as_before:
        return assign_folds(labels, len(classes), config.folds, groups=groups)
    return hash_folds(labels, classes, config.folds, name_hashes(dataset)(0, len(dataset)))


def _check_folds(config: TrainConfig, dataset: ImageDataset, folds: np.ndarray) -> None:
    """Refuse folds of which one leaves a class without images to train on."""
    if dataset.labels.ndim != 1 or len(dataset.classes) < 2:
        return
    counts = np.zeros((len(dataset.classes), config.folds), np.int64)
    np.add.at(counts, (dataset.labels, folds), 1)
    if counts.sum(1).max() == 1:
        raise _single_images(config, dataset)
    left = counts.sum(1, keepdims=True) - counts
    for number, fold in np.argwhere((left == 0) & (counts > 0)).tolist():
        there = f"{counts[number, fold]:,} images" if counts[number, fold] > 1 else "1 image"
        raise InputError(
            f"--folds {config.folds}: class {quoted([dataset.classes[number]])} of {dataset.name} "
            f"has {there}, all in fold {fold + 1}, which has none of it to train on; add images, "
            "or remove the class"
        )


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
            config.val_data or whole_data(data), split=_val_split(config, data), labels=labels
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
    training used, with `hold_out` and `val_data`, also where the folder has changed since; other
    names are splits of the dataset itself.
    """
    config = read_config(run) if isinstance(run, Path) else run
    validated = bool(config.hold_out or config.folds or config.val_split)
    asked, record = spell(split or ("val" if validated else "train")), None
    if asked in ("train", "val"):
        folder = config.out if isinstance(run, TrainConfig) else run
        record = load_images(folder / TRAINED_ON)
        if (found := _open_recorded(config, record, asked)) is not None:
            return found
        if (divided := _divide_training(config, config.data, labels=False)) is not None:
            return divided[asked == "val"]
    if asked == "train":  # runs that left no record trained on `train`
        used = "train" if record is None else _train_split(config, config.data)
        return open_dataset(config.data, split=used, labels=False)
    used = asked
    if asked == "val" and config.val_split:
        used = config.val_split if record is None else _val_split(config, config.data)
    return open_dataset(config.val_data or whole_data(config.data), split=used, labels=False)


def _open_recorded(
    config: TrainConfig, record: TrainingImages | None, asked: str
) -> ImageDataset | None:
    """Open what a run's record says was trained on, or held out, of data that the run divided."""
    divides, other = config.hold_out or config.folds, asked == "val" and config.val_data
    if record is None or record.kind == "unknown" or other:
        return None
    if not is_divided(config.data):
        whole = open_dataset(whole_data(config.data), split="all", labels=False)
    elif divides:
        whole = open_dataset(whole_data(config.data), split="train", labels=False)
    else:
        return None
    status, what = (TRAINED, "train") if asked == "train" else (HELD, "held out")
    if asked == "val" and config.folds:
        what = f"fold {max(config.fold, 1)} of {config.folds}"
    chosen = np.flatnonzero(record.statuses(whole)[0] == status)
    return select(whole, chosen, f"{plain_name(whole)} ({what})") if len(chosen) else None


def open_as_before(config: TrainConfig) -> tuple[ImageDataset | ImageStream, list[ImageDataset]]:
    """Open what runs that left no record trained on and held out, if the images are the same."""
    divided = _divide_training(config, config.data, labels=False, as_before=True)
    if divided is not None:
        return divided[0], [divided[1]]
    train, held = open_data(config.data, split="train", labels=False), list[ImageDataset]()
    if config.val_split:
        with suppress(InputError):  # it may be a stream's
            val = config.val_data or whole_data(config.data)
            held = [open_dataset(val, split=config.val_split, labels=False)]
    return train, held
