"""Test sets for ImageNet models: which of the 1,000 classes each has.

The classes are read from the dataset itself (its folders are WordNet IDs or class numbers;
ObjectNet brings a mapping), so no list of them is kept here.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import Content, ImageDataset, select
from vitrail.data.datasets.folder import open_folder
from vitrail.data.datasets.open import Data, open_dataset
from vitrail.data.datasets.public.official import read_real
from vitrail.data.decoding.decode import decode
from vitrail.evaluation.class_matching import match_classes
from vitrail.evaluation.dataset_predictions import ClassMatching
from vitrail.text import expand, quoted
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids
from vitrail.weights.text.prompts import spell_classes


@dataclass(frozen=True)
class Subset:
    """A test set whose classes are ImageNet's."""

    title: str
    paper: str
    classes: int
    """How many of ImageNet's classes it has (113 of ObjectNet's 313 are ImageNet's too)."""
    restricted: bool
    """Whether its authors restrict predictions to these classes."""


SUBSETS = {
    "imagenet-a": Subset("ImageNet-A", "arXiv 1907.07174", 200, True),
    "imagenet-r": Subset("ImageNet-R", "arXiv 2006.16241", 200, True),
    "imagenet-v2": Subset("ImageNet-V2", "arXiv 1902.10811", 1000, False),
    "sketch": Subset("ImageNet-Sketch", "arXiv 1905.13549", 1000, False),
    "objectnet": Subset("ObjectNet", "NeurIPS 2019", 113, False),
}
"""Test sets, by the name that --subset takes."""

_BORDER = 2  # pixels: ObjectNet's images have a red border, which its authors' loader crops


def open_subset(
    name: str, data: Data, split: str, names: Sequence[str] | None, outputs: int
) -> tuple[ImageDataset, ClassMatching]:
    """Open a test set, and find its classes among the outputs of an ImageNet model."""
    subset = find_subset(name)
    if name == "objectnet":
        if not isinstance(data, str | os.PathLike):
            raise InputError("give ObjectNet by its folder, which has images/ and mappings/")
        return _open_objectnet(expand(os.fspath(data)), names, outputs)
    dataset = open_dataset(data, split=split)
    if len(dataset.classes) != subset.classes:
        found = f"{dataset.name} has {len(dataset.classes):,}"
        raise InputError(f"{subset.title} has {subset.classes:,} classes, {found}; is it complete?")
    matching = match_classes(dataset, names, outputs)
    among = "its own classes" if subset.restricted else "all classes"
    note = f"{subset.title} ({subset.paper}): the model predicts among {among}"
    notes = (*matching.notes, note)
    return dataset, replace(matching, notes=notes, restricted=subset.restricted)


def find_subset(name: str) -> Subset:
    """Look up a test set by its name."""
    if name not in SUBSETS:
        raise InputError(
            f"unknown --subset {name!r}; choose from {', '.join(SUBSETS)}{suggest(name, SUBSETS)}"
        )
    return SUBSETS[name]


def read_reassessed(path: Path, dataset: ImageDataset) -> tuple[frozenset[int], ...]:
    """Read the reassessed labels ("ReaL", arXiv 2006.07159) as classes of a dataset.

    Their numbers are in ImageNet's order, so each class of the dataset must be one of ImageNet's,
    by WordNet ID or by name.
    """
    labels = read_real(path, dataset)
    places = {number: place for place, number in enumerate(_number_imagenet(dataset))}
    return tuple(frozenset(places[number] for number in each) for each in labels)


def _number_imagenet(dataset: ImageDataset) -> list[int]:
    """Return the number in ImageNet of each class of a dataset; each is found once."""
    wnids, names = imagenet_wnids(1000) or (), imagenet_classes(1000) or ()
    others: dict[str, set[int]] = {}  # the further lemmas of a class
    for number, name in enumerate(names):
        for lemma in name.casefold().split(", "):
            others.setdefault(lemma, set()).add(number)
    known = {lemma: min(at) for lemma, at in others.items() if len(at) == 1}
    for called in (names, spell_classes(wnids), wnids):
        several = Counter(map(str.casefold, called))
        known |= {n.casefold(): at for at, n in enumerate(called) if several[n.casefold()] == 1}
    first = [name.partition(",")[0] for name in names]  # a Cardigan is a dog, a cardigan none
    exact = {n: at for at, n in enumerate(first) if first.count(n) == 1}
    spelled = [name.replace("_", " ") for name in dataset.classes]
    numbers = [exact.get(name, known.get(name.casefold(), -1)) for name in spelled]
    if wrong := [name for name, n in zip(dataset.classes, numbers, strict=True) if n < 0]:
        raise InputError(
            f"--real needs ImageNet's classes by WordNet ID or name; {len(wrong):,} of "
            f"{len(numbers):,} classes of {dataset.name} are none or several of them: "
            f"{quoted(wrong)}; name the folders by WordNet ID (n01440764)"
        )
    if len(set(numbers)) < len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        both = [name for name, n in zip(dataset.classes, numbers, strict=True) if n == twice]
        raise InputError(f"{quoted(both)} of {dataset.name} are both ImageNet's {wnids[twice]}")
    return numbers


def _open_objectnet(
    root: Path, names: Sequence[str] | None, outputs: int
) -> tuple[ImageDataset, ClassMatching]:
    """Open ObjectNet as published (`images`, `mappings`); keep the classes that ImageNet has too.

    A prediction, among all classes, is correct if it is one of those that the mapping has for the
    image's class.
    """
    known = (None, imagenet_classes(1000), imagenet_wnids(1000))
    if outputs != 1000 or (names if names is None else tuple(names)) not in known:
        raise InputError("ObjectNet is mapped to ImageNet's 1,000 classes; the model has others")
    dataset = open_folder(root / "images", "all")
    titles = _read(root, "folder_to_objectnet_label.json")
    outputs_of = _read_objectnet(root)
    owner = np.full(outputs, -1, np.int64)
    for number, folder in enumerate(dataset.classes):
        owner[outputs_of.get(titles.get(folder, ""), [])] = number
    kept = np.flatnonzero(np.isin(dataset.labels, owner[owner >= 0]))
    if not len(kept):
        raise InputError(f"{dataset.name} has no image of a class that is ImageNet's too")
    shared = len(np.unique(owner[owner >= 0]))
    note = (
        f"{shared} of ObjectNet's {len(dataset.classes)} classes are ImageNet's; others are ignored"
    )
    if names is None:
        note += "; the model has no class names: its outputs are read in ImageNet's order"
    return BorderlessDataset(select(dataset, kept)), ClassMatching(owner, (note,))


def _read_objectnet(root: Path) -> dict[str, list[int]]:
    """Read which of ImageNet's 1,000 classes each class of ObjectNet is, of those that are.

    The mapping has labels; one list gives their numbers in the order of 2012, another their usual
    ones.
    """
    usual = _read(root, "pytorch_to_imagenet_2012_id.json")
    try:
        numbers = {int(late): int(number) for number, late in usual.items()}
    except (TypeError, ValueError):
        numbers = {}
    if sorted(numbers.values()) != list(range(1000)):
        raise InputError(f"{root / 'mappings'}: pytorch_to_imagenet_2012_id.json lacks classes")
    labels = _read_lines(root, "imagenet_to_label_2012_v2")
    place = {label.strip(): numbers[line] for line, label in enumerate(labels) if line in numbers}
    found = {
        title: [place.get(label.strip(), -1) for label in str(text).split(";")]
        for title, text in _read(root, "objectnet_to_imagenet_1k.json").items()
    }
    if lost := [title for title, each in found.items() if -1 in each]:
        raise InputError(f"{root / 'mappings'}: {quoted(lost)} has a label that no list explains")
    return found


class BorderlessDataset(ImageDataset):
    """Images without their outermost pixels."""

    def __init__(self, dataset: ImageDataset) -> None:
        super().__init__(dataset.name, dataset.classes, dataset.labels, dataset.root)
        self.dataset = dataset

    def read(self, index: int) -> Content:
        """Decode an image and crop its border."""
        content = self.dataset.read(index)
        pixels = decode(content) if isinstance(content, bytes) else content
        inner = pixels[_BORDER:-_BORDER, _BORDER:-_BORDER]
        return np.ascontiguousarray(inner)

    def where(self, index: int) -> str:
        """Name the image as the dataset behind does."""
        return self.dataset.where(index)


def _read(root: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((root / "mappings" / name).read_bytes())
    except OSError as error:
        raise _incomplete(root, name, error) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{root / 'mappings' / name}: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{root / 'mappings' / name}: expected an object of names")
    return found


def _read_lines(root: Path, name: str) -> list[str]:
    try:
        return (root / "mappings" / name).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _incomplete(root, name, error) from None


def _incomplete(root: Path, name: str, error: OSError) -> InputError:
    layout = "expected ObjectNet as published, with images/ and mappings/"
    return InputError(f"{root / 'mappings' / name}: {error.strerror}; {layout}")
