"""Match a dataset's classes with a model's: by name, and never silently by position alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.config import InputError, read_file, suggest
from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.dataset_predictions import ClassMatching
from vitrail.text import printable, quoted
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids

ClassMap = Mapping[str, Sequence[str]]
"""For a class of the data, which one or more of the model's classes it is: names or numbers."""

_WNID = re.compile(r"n\d{8}")
_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


def match_classes(
    dataset: ImageDataset, names: Sequence[str] | None, outputs: int, given: ClassMap | None = None
) -> ClassMatching:
    """Find each class of a dataset among a model's outputs, whose class names are `names`.

    By name; by WordNet ID, if the data has those and the model ImageNet's classes; by number, if
    the data's classes are numbers. Only a model without names has its outputs taken in order, with
    a note.
    """
    if not len(dataset):
        raise InputError(f"{dataset.name} has no images to evaluate on")
    if not given:
        if names is not None and tuple(names) == dataset.classes:
            return ClassMatching(np.arange(outputs))
        if names is None and len(dataset.classes) == outputs and not _are_numbers(dataset.classes):
            note = f"the model has no class names: those of {dataset.name} are taken in order"
            return ClassMatching(np.arange(outputs), (note,))
    wanted: dict[str, Sequence[str]] = {name: [name] for name in dataset.classes}
    wanted |= _check_map(given or {}, dataset)
    place, note = _find_places(wanted, names, outputs, mapped=bool(given))
    _check_found(dataset, wanted, place, names, outputs)
    owner = _own(dataset, wanted, place, names, outputs)
    known = int((owner >= 0).sum())
    if note is None and known < outputs:
        note = f"{known:,} of the model's {outputs:,} classes are in {dataset.name}"
    return ClassMatching(owner, (note,) if note else ())


def read_map(path: Path) -> dict[str, list[str]]:
    """Read a YAML, TOML or JSON file that maps the data's classes to the model's."""
    found: dict[str, list[str]] = {}
    for name, targets in read_file(path).items():
        several = targets if isinstance(targets, list) else [targets]
        if not several or not all(isinstance(target, str | int) for target in several):
            raise InputError(
                f"{path}: {printable(str(name))}: expected a class of the model or a list of them"
            )
        found[str(name)] = [str(target) for target in several]
    return found


def _check_map(given: ClassMap, dataset: ImageDataset) -> ClassMap:
    if unknown_names := [name for name in given if name not in dataset.classes]:
        near = suggest(unknown_names[0], dataset.classes)
        raise InputError(f"--map has {quoted(unknown_names)}, not a class of {dataset.name}{near}")
    if dataset.multilabel and (many := [name for name in given if len(given[name]) > 1]):
        raise InputError(
            f"--map gives {quoted(many)} several classes; expected one each, because images of "
            f"{dataset.name} have several labels"
        )
    return given


def _find_places(
    wanted: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
    outputs: int,
    *,
    mapped: bool,
) -> tuple[dict[str, int], str | None]:
    """Find the output that each wanted name stands for, if any; note how they were matched."""
    targets = list(dict.fromkeys(target for each in wanted.values() for target in each))
    place: dict[str, int] = {}
    note = None
    if names is not None:
        counts = Counter(names)
        if twice := [name for name in targets if counts[name] > 1]:
            raise InputError(
                f"the model has several classes named {quoted(twice)}; say with --map which number "
                "is meant, counted from 0"
            )
        place = {name: number for number, name in enumerate(names)}
        if tuple(names) == imagenet_classes(outputs) and any(map(_WNID.fullmatch, targets)):
            wnids = imagenet_wnids(outputs) or ()
            place = {wnid: number for number, wnid in enumerate(wnids)} | place
            note = f"classes are matched by WordNet ID with ImageNet's {outputs:,}"
    unknown = [name for name in targets if name not in place]
    # Numbers that happen to fit some outputs of a model with names are not taken for them.
    all_numbers = _are_numbers(targets) and (names is None or len(unknown) == outputs)
    if unknown and (all_numbers or (mapped and _are_numbers(unknown))):
        place |= {name: int(name) for name in unknown if int(name) < outputs}
        if not mapped:
            note = "the data's classes are numbers: they are read as the model's outputs, from 0"
    return place, note


def _are_numbers(names: Iterable[str]) -> bool:
    return all(map(_NUMBER.fullmatch, names))


def _check_found(
    dataset: ImageDataset,
    wanted: Mapping[str, Sequence[str]],
    place: Mapping[str, int],
    names: Sequence[str] | None,
    outputs: int,
) -> None:
    missing = [name for name, each in wanted.items() if any(one not in place for one in each)]
    if not missing:
        return
    few = f"{len(missing):,} of {len(wanted):,} classes of {dataset.name}: {quoted(missing)}"
    own = f"its own {outputs:,} are {quoted(names, 2)}" if names else "its outputs have no names"
    how = "map them with --map FILE.yaml, one line 'DATA CLASS: MODEL CLASS' each"
    raise InputError(f"the model does not know {few}; {own}; {how}")


def _own(
    dataset: ImageDataset,
    wanted: Mapping[str, Sequence[str]],
    place: Mapping[str, int],
    names: Sequence[str] | None,
    outputs: int,
) -> np.ndarray:
    """Assign each output to the class of the data that it stands for; two can't share one."""
    owner = np.full(outputs, -1, np.int64)
    for number, name in enumerate(dataset.classes):
        for output in (place[target] for target in wanted[name]):
            if owner[output] >= 0:
                both = quoted([dataset.classes[owner[output]], name])
                one = f"'{printable(names[output])}'" if names else f"output {output}"
                raise InputError(f"{both} of {dataset.name} would both be the model's {one}")
            owner[output] = number
    return owner
