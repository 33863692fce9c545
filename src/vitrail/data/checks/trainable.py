"""Check before a run that a model can be trained on a dataset."""

from __future__ import annotations

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.datasets.unreadable_list import FilteredDataset
from vitrail.text import quoted


def check_trainable(
    train: ImageDataset | ImageStream, val: ImageDataset | None = None, *, labels: bool = True
) -> tuple[str, ...]:
    """Check that a classifier can be trained on a dataset; return notes on what is only odd.

    A task without `labels` takes any images.
    """
    if isinstance(train, ImageDataset) and len(train) == 0:
        raise InputError(f"{train.name} has no images to train on")
    if not labels:
        return ()
    if train.regression:
        if val is not None and not val.regression:
            raise InputError(f"{val.name} has no numbers to predict; name them: targets=COLUMN")
    elif len(train.classes) < 2 and not train.multilabel:
        only = f"{train.name} has only the class {quoted(train.classes)}"
        raise InputError(f"{only}; a classifier needs two or more")
    found: list[str] = []
    lacking = _classes_without_images(train) if isinstance(train, ImageDataset) else []
    if lacking and isinstance(train, ImageDataset):
        if not train.multilabel:
            raise InputError(_no_image(train, lacking[0], val))
        found.append(f"{train.name} has no image of {quoted(lacking)}")
    if val is not None:
        _check_same_classes(train, val)
        if unseen := [name for name in _classes_without_images(val) if name not in lacking]:
            found.append(f"{val.name} has no image of {quoted(unseen)}")
    return tuple(found)


def _classes_without_images(dataset: ImageDataset) -> list[str]:
    return [dataset.classes[number] for number in np.flatnonzero(dataset.class_counts() == 0)]


def _no_image(train: ImageDataset, name: str, val: ImageDataset | None) -> str:
    number, said = train.classes.index(name), f"class {quoted([name])} of {train.name}"
    if isinstance(train, FilteredDataset) and (skipped := train.dataset.class_counts()[number]):
        return f"{said} has no readable image ({skipped} skipped)"
    if val is not None and val.classes == train.classes and (held := val.class_counts()[number]):
        there = f"but {val.name} has {held:,}"
        return f"{said} has no image, {there}; add some, remove the class, or hold out other groups"
    return f"{said} has no image; add some, or remove the class"


def _check_same_classes(train: ImageDataset | ImageStream, val: ImageDataset) -> None:
    if len(val) == 0:
        raise InputError(f"{val.name} has no images")
    known = set(train.classes)
    if strangers := [name for name in val.classes if name not in known]:
        raise InputError(f"class {quoted(strangers)} of {val.name} is not in {train.name}")
    if val.classes != train.classes:
        differ = f"{val.name} numbers its classes differently from {train.name}"
        raise InputError(f"{differ}; put a classes.txt with all of them beside both")
