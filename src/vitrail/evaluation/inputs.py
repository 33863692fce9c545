"""The model and the images of an evaluation, whichever way they are given.

Here is the rule by which every command chooses the images that it measures or chooses by
(docs/data.md): none that a given model was trained on, as far as anybody recorded that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from vitrail.config import InputError, from_dict, read_file
from vitrail.data.dataset import ImageDataset, Selection, select
from vitrail.data.datasets.look import refuse_unreadable
from vitrail.data.datasets.open import (
    Data,
    is_divided,
    open_dataset,
    say_notes,
    subset_of,
    whole_data,
)
from vitrail.data.split import HELD_OUT, NoSplitError, plain_name, spell, split_dataset
from vitrail.data.trained_on import (
    HELD,
    TRAINED,
    UNSEEN,
    TrainedOn,
    TrainingImages,
    load_images,
    record_images,
)
from vitrail.data.transforms.preprocess import Preprocess, default_preprocess
from vitrail.evaluation.evaluation_result import Selected
from vitrail.text import expand, show
from vitrail.training.checkpoints.run_folder import (
    CONFIG,
    RESULT,
    TRAINED_ON,
    find_run,
    read_result,
)
from vitrail.training.run_data import open_as_before, same_data
from vitrail.training.train_config import TrainConfig
from vitrail.weights.loaded import AnyModel, LoadedModel
from vitrail.weights.model_folder import load_trained_on
from vitrail.weights.sources.local_sources import find_model_folder


class TrainedOnError(InputError):
    """A model was trained on all images that it was to be measured on."""


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


@dataclass(frozen=True)
class OpenedImages:
    """The images that a command measures or chooses by."""

    dataset: ImageDataset
    selected: Selected
    notes: tuple[str, ...] = ()
    """What a person should know before believing a number, one line each."""
    rest: ImageDataset | None = None
    """The others, which a classifier on frozen features may learn from."""
    whole: bool = False
    """Whether these are all images of data without splits."""


def look_over(*datasets: ImageDataset | None) -> None:
    """Refuse images most of which can't be read, and say what is odd, before work is done."""
    for dataset in datasets:
        if dataset is not None:
            refuse_unreadable(dataset)
            say_notes(dataset)


def open_images(
    data: Data,
    split: str | None,
    models: Sequence[AnyModel] = (),
    *,
    labels: bool = True,
    learns: bool = False,
    default: str = "val",
) -> OpenedImages:
    """Open the images that models are measured on, by the rule of docs/data.md.

    `labels=False` also takes images without labels, and all of them by default where nothing was
    held out. Where something `learns` from the other images, some are left to it. `default` is the
    split of data that brings some along. InputError if most of them can't be read.
    """
    opened = _open_images(data, split, models, labels=labels, learns=learns, default=default)
    look_over(opened.dataset, opened.rest if learns else None)
    return opened


def _open_images(
    data: Data,
    split: str | None,
    models: Sequence[AnyModel],
    *,
    labels: bool,
    learns: bool,
    default: str,
) -> OpenedImages:
    if not isinstance(data, str | os.PathLike) or is_divided(data):
        return _open_split(data, split, models, labels=labels, default=default)
    whole = open_dataset(whole_data(data), split="all", labels=labels)
    asked, title = "val" if split is None else spell(split), plain_name(whole)
    if asked not in ("val", "train", "all"):
        try:
            found = open_dataset(data, split=asked, labels=labels)
        except NoSplitError as error:
            hint = "leave --split out to evaluate on held-out images"
            raise NoSplitError(f"{error}; {hint}") from None
        return OpenedImages(found, Selected(len(found), len(whole), f"of {found.name}"))
    part, known = subset_of(data), _Known.of(models, data, whole)
    trained = known.statuses == TRAINED
    if asked == "all":
        why = f"of {title}{known.say_trained()}{known.say_chose()}"
        chosen = np.ones(len(whole), bool)
    elif not trained.any() and (split is not None or learns):
        found = open_dataset(data, split=asked, labels=labels)
        other = open_dataset(data, split="train", labels=labels) if asked == "val" else None
        why = f"of {title} ({asked}){known.say_unknown()}"
        return OpenedImages(found, Selected(len(found), len(whole), why), known.notes, other)
    elif asked == "train":
        chosen, why = trained, f"of {title}, all of which were trained on"
    else:
        chosen, why = ~trained, known.why(title)
        if not chosen.any():
            raise TrainedOnError(known.refuse(title))
    name = f"{title} ({'unseen' if asked == 'val' and trained.any() else asked})"
    found = whole if chosen.all() else select(whole, np.flatnonzero(chosen), name)
    others = np.flatnonzero(~chosen)
    if learns and 2 * len(found) > len(whole):  # most is unseen: what `val` is of it
        found = split_dataset(found, HELD_OUT, seed=0)[1]
        assert isinstance(found, Selection)
        others = np.setdiff1d(np.arange(len(whole)), found.indices)
        why = f"of {title}, a tenth of those that were not trained on"
    if part is not None and not learns:
        found = part.of(found)
    other = select(whole, others, f"{title} (the others)") if len(others) else None
    if other is not None and part is not None and learns:
        other = part.of(other)
    selected = Selected(len(found), len(whole), why)
    return OpenedImages(found, selected, known.notes, other, whole=bool(chosen.all()))


def _open_split(
    data: Data, split: str | None, models: Sequence[AnyModel], *, labels: bool, default: str
) -> OpenedImages:
    """Open a split that the dataset brings along, and say where a model was trained on some."""
    try:
        dataset = open_dataset(data, split=split or default, labels=labels)
    except NoSplitError as error:
        if split is None or split == "val":
            raise
        raise NoSplitError(f"{error}; leave --split out to evaluate on held-out images") from None
    text = isinstance(data, str | os.PathLike)
    if text and split is None and not labels and not is_labeled(dataset):
        dataset = open_dataset(data, split="all", labels=False)
    known = _Known.of(models, data, dataset)
    why = f"of {dataset.name}{known.say_trained()}{known.say_chose()}"
    return OpenedImages(dataset, Selected(len(dataset), len(dataset), why), known.notes)


def open_unseen(dataset: ImageDataset, data: Data, models: Sequence[AnyModel]) -> OpenedImages:
    """Take those of a split's images that no model was trained on."""
    known = _Known.of(models, data, dataset)
    unseen = np.flatnonzero(known.statuses != TRAINED)
    if not len(unseen):
        raise TrainedOnError(known.refuse(dataset.name))
    look_over(dataset)
    name = dataset.name if len(unseen) == len(dataset) else f"{dataset.name} (unseen)"
    selected = Selected(len(unseen), len(dataset), known.why(dataset.name))
    return OpenedImages(select(dataset, unseen, name), selected, known.notes)


def open_test_images(data: Data, split: str | None, model: AnyModel, *, held: bool) -> OpenedImages:
    """Take the images of a test set that a model was not trained on; `held`: also held-out ones."""
    divided = split is not None or is_divided(data)
    dataset = open_dataset(data, split=(split or "val") if divided else "all")
    known = _Known.of((model,), data, dataset)
    trained, chose = known.statuses == TRAINED, known.statuses == HELD
    left = np.flatnonzero(~trained if held else ~(trained | chose))
    if not len(left):
        what = "trained on" if held else "trained on or chosen by"
        raise TrainedOnError(f"all {len(dataset):,} images of {dataset.name} were {what}")
    why = known.why(dataset.name)
    if not held and chose.any():
        why = f"of {dataset.name} that were neither trained on nor chosen by"
    found = dataset if len(left) == len(dataset) else select(dataset, left)
    return OpenedImages(found, Selected(len(left), len(dataset), why), known.notes)


def note_trained(dataset: ImageDataset, data: Data, model: AnyModel) -> str | None:
    """Note how many of a dataset's images a model was trained on; None where it was on none."""
    count = int((_Known.of((model,), data, dataset).statuses == TRAINED).sum())
    if not count:
        return None
    return (
        f"{name_model(model)} was trained on {count:,} of {len(dataset):,} images of {dataset.name}"
    )


@dataclass(frozen=True)
class _Known:
    """What the records of some models say of a dataset's images."""

    statuses: np.ndarray
    """(images) UNSEEN, HELD or TRAINED: of all models together, the worst."""
    models: tuple[str, ...]
    unrecorded: tuple[str, ...]
    """Models of which nobody recorded what they were trained on."""
    notes: tuple[str, ...]
    chose: np.ndarray
    """(images) whether a model's weights or thresholds were chosen by it."""

    @classmethod
    def of(cls, models: Sequence[AnyModel], data: Data, dataset: ImageDataset) -> _Known:
        """Look up a dataset's images in the records of models."""
        statuses, notes, unrecorded = np.zeros(len(dataset), np.uint8), list[str](), list[str]()
        chose = np.zeros(len(dataset), bool)
        for model in models:
            record, said = read_record(model, data)
            notes += said
            if record is None:
                unrecorded.append(name_model(model))
                continue
            unrecorded += record.unrecorded
            for each in record.trainings:
                found, changed = each.statuses(dataset)
                statuses = np.maximum(statuses, found)
                chose |= (found == HELD) & bool(each.chosen_on)
                if changed and (found != UNSEEN).any():
                    notes.append(
                        f"{changed:,} images have names that {name_model(model)} knows, but other "
                        "contents: they are taken for new ones"
                    )
                share = each.false_positives()
                if share and (found == TRAINED).any():
                    notes.append(
                        f"the record of {each.images:,} images is shortened to a filter: up to "
                        f"{share:.0%} of images that were not trained on count as trained on, too"
                    )
        names = tuple(map(name_model, models))
        unknown = tuple(dict.fromkeys(unrecorded))
        return cls(statuses, names, unknown, tuple(dict.fromkeys(notes)), chose)

    def why(self, name: str) -> str:
        """Say why the images are measured that were not trained on."""
        held, new = (int((self.statuses == each).sum()) for each in (HELD, UNSEEN))
        if new == len(self.statuses):
            return f"of {name}{self.say_unknown() or ', none of which was trained on'}"
        if not held:
            return f"of {name} that were not trained on"
        if not new:
            return f"that training held out of {name}{self.say_chose(held)}"
        said = f"of {name}: {held:,} that training held out and {new:,} that it never had"
        return f"{said}{self.say_chose(held + new)}"

    def say_chose(self, measured: int | None = None) -> str:
        """Say how many of the measured images, by default all, chose a model, where some did."""
        chose = self.chose if measured is None else self.chose & (self.statuses != TRAINED)
        if not (count := int(chose.sum())):
            return ""
        which = "which" if count == (measured or len(chose)) else f"{count:,} of which"
        said = "also chose a model's weights or thresholds: numbers are a little too good"
        return f", {which} {said}"

    def say_trained(self) -> str:
        """Say how many images were trained on, where some were."""
        count = int((self.statuses == TRAINED).sum())
        if not count:
            return self.say_unknown()
        return f", {count:,} of which were trained on: numbers are too good"

    def say_unknown(self) -> str:
        """Say of which models nobody knows it."""
        if not self.unrecorded:
            return ""
        return f"; what {', '.join(self.unrecorded)} was trained on is not recorded"

    def refuse(self, name: str) -> str:
        """Say that no image is left to measure on."""
        whose = self.models[0] if len(self.models) == 1 else f"one of {', '.join(self.models)}"
        return (
            f"all {len(self.statuses):,} images of {name} were trained on by {whose}: give other "
            "images, or --split all to measure on these (numbers are then too good)"
        )


def read_record(model: AnyModel, data: Data) -> tuple[TrainedOn | None, tuple[str, ...]]:
    """Read what a model was trained on, and what should be said about that.

    Of a run that left no record, it is made from its settings, if `data` is what it was trained on.
    """
    if not isinstance(model, str | os.PathLike):
        return (model.trained_on if isinstance(model, LoadedModel) else None), ()
    folder, run = find_model_folder(os.fspath(model)), find_run(model)
    record = None if folder is None else load_trained_on(folder)
    if run is None:
        return record, ()
    if record is not None:
        own = load_images(run / TRAINED_ON)
        if own is None or not record.trainings:
            return record, ()
        return replace(record, trainings=(own, *record.trainings[1:])), ()
    config = read_run_config(run)
    if config is None or not same_data(config.data, data):
        return None, ()
    try:
        made: TrainingImages = record_images(*open_as_before(config))
    except InputError:  # the data may have moved
        return None, ()
    said = "its settings and the images that are there now tell it"
    note = f"what {show(run)} was trained on is not recorded: {said}"
    with suppress(InputError):
        made = replace(made, chosen_on=read_result(run / RESULT).get("chosen_on") or "")
    return TrainedOn(trainings=(made,)), (note,)


def read_run_config(model: AnyModel) -> TrainConfig | None:
    """Read the settings of a run that is named by its folder; None for any other model."""
    if not isinstance(model, str | os.PathLike):
        return None
    path = expand(os.fspath(model).removeprefix("run:")) / CONFIG
    try:
        return from_dict(TrainConfig, read_file(path)) if path.is_file() else None
    except (InputError, OSError):  # another project's config.yaml
        return None
