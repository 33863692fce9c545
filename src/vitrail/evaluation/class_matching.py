"""A data set's classes found among a model's: by name, never by their place alone in silence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.config import InputError, read_file, suggest
from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.scored import Matching
from vitrail.text import printable, quoted
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids

ClassMap = Mapping[str, Sequence[str]]
"""For a class of the data, the one or more of the model's that it is: names, or numbers."""

_WNID = re.compile(r"n\d{8}")
_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


def match_classes(
    source: ImageDataset, names: Sequence[str] | None, outputs: int, given: ClassMap | None = None
) -> Matching:
    """Find each class of a data set among a model's outputs, of which `names` are the classes.

    By name; by WordNet number, where the data has those and the model ImageNet's classes; by
    number, where the data's classes are numbers. Only a model without names has its outputs taken
    in order, and says so.
    """
    if not len(source):
        raise InputError(f"{source.name} holds no image to measure on")
    if not given:
        if names is not None and tuple(names) == source.classes:
            return Matching(np.arange(outputs))
        if names is None and len(source.classes) == outputs and not _are_numbers(source.classes):
            note = f"the model has no class names: those of {source.name} are taken in order"
            return Matching(np.arange(outputs), (note,))
    wanted: dict[str, Sequence[str]] = {name: [name] for name in source.classes}
    wanted |= _check_map(given or {}, source)
    place, note = _find_places(wanted, names, outputs, mapped=bool(given))
    _check_found(source, wanted, place, names, outputs)
    owner = _own(source, wanted, place, names, outputs)
    known = int((owner >= 0).sum())
    if note is None and known < outputs:
        note = f"{known:,} of the model's {outputs:,} classes are in {source.name}"
    return Matching(owner, (note,) if note else ())


def read_map(path: Path) -> dict[str, list[str]]:
    """Read which classes of a model those of the data are: YAML, TOML or JSON, name by name."""
    found: dict[str, list[str]] = {}
    for name, targets in read_file(path).items():
        several = targets if isinstance(targets, list) else [targets]
        if not several or not all(isinstance(target, str | int) for target in several):
            raise InputError(
                f"{path}: {printable(str(name))}: expected a class of the model or a list of them"
            )
        found[str(name)] = [str(target) for target in several]
    return found


def _check_map(given: ClassMap, source: ImageDataset) -> ClassMap:
    if strangers := [name for name in given if name not in source.classes]:
        near = suggest(strangers[0], source.classes)
        raise InputError(f"the map has {quoted(strangers)}, no class of {source.name}{near}")
    if source.multilabel and (many := [name for name in given if len(given[name]) > 1]):
        raise InputError(f"the map gives {quoted(many)} several classes; with several labels a "
                         "image it may have one")  # fmt: skip
    return given


def _find_places(
    wanted: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
    outputs: int,
    *,
    mapped: bool,
) -> tuple[dict[str, int], str | None]:
    """Say which output each wanted name stands for, as far as one does; note what it went by."""
    targets = list(dict.fromkeys(target for each in wanted.values() for target in each))
    place: dict[str, int] = {}
    note = None
    if names is not None:
        counts = Counter(names)
        if twice := [name for name in targets if counts[name] > 1]:
            raise InputError(
                f"the model has several classes {quoted(twice)}; say with --map which number is "
                "meant, counted from 0"
            )
        place = {name: number for number, name in enumerate(names)}
        if tuple(names) == imagenet_classes(outputs) and any(map(_WNID.fullmatch, targets)):
            wnids = imagenet_wnids(outputs) or ()
            place = {wnid: number for number, wnid in enumerate(wnids)} | place
            note = f"classes are matched by WordNet number with ImageNet's {outputs:,}"
    unknown = [name for name in targets if name not in place]
    # Numbers that happen to fit some outputs of a model with names are not taken for them.
    all_numbers = _are_numbers(targets) and (names is None or len(unknown) == outputs)
    if unknown and (all_numbers or (mapped and _are_numbers(unknown))):
        place |= {name: int(name) for name in unknown if int(name) < outputs}
        if not mapped:
            note = "the data's classes are numbers: they count the model's outputs, from 0"
    return place, note


def _are_numbers(names: Iterable[str]) -> bool:
    return all(map(_NUMBER.fullmatch, names))


def _check_found(
    source: ImageDataset,
    wanted: Mapping[str, Sequence[str]],
    place: Mapping[str, int],
    names: Sequence[str] | None,
    outputs: int,
) -> None:
    lacking = [name for name, each in wanted.items() if any(one not in place for one in each)]
    if not lacking:
        return
    few = f"{len(lacking):,} of {len(wanted):,} classes of {source.name}: {quoted(lacking)}"
    own = f"its own {outputs:,} are {quoted(names, 2)}" if names else "its outputs have no names"
    how = "say which is which with --map FILE.yaml, a line of DATA CLASS: MODEL CLASS each"
    raise InputError(f"the model does not know {few}; {own}; {how}")


def _own(
    source: ImageDataset,
    wanted: Mapping[str, Sequence[str]],
    place: Mapping[str, int],
    names: Sequence[str] | None,
    outputs: int,
) -> np.ndarray:
    """Give each output to the class of the data that it stands for; two can't share one."""
    owner = np.full(outputs, -1, np.int64)
    for number, name in enumerate(source.classes):
        for output in (place[target] for target in wanted[name]):
            if owner[output] >= 0:
                both = quoted([source.classes[owner[output]], name])
                one = f"'{printable(names[output])}'" if names else f"output {output}"
                raise InputError(f"{both} of {source.name} would both be the model's {one}")
            owner[output] = number
    return owner
