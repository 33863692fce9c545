"""Test sets that were made for ImageNet's models: which of the 1,000 classes each has.

The classes are read from the set itself (its folders are WordNet numbers, or numbers of classes;
ObjectNet brings a mapping), so no list of them is kept here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import Content, ImageDataset, select
from vitrail.data.datasets.folder import open_folder
from vitrail.data.datasets.open import open_dataset
from vitrail.data.decoding.decode import decode
from vitrail.evaluation.class_matching import match_classes
from vitrail.evaluation.scored import Matching
from vitrail.text import expand, quoted
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids


@dataclass(frozen=True)
class Subset:
    """A test set with classes of ImageNet's."""

    title: str
    paper: str
    classes: int
    """How many of ImageNet's classes it has; of ObjectNet's 313, those that are ImageNet's too."""
    restricted: bool
    """Whether its authors let the model choose among these classes only."""


SUBSETS = {
    "imagenet-a": Subset("ImageNet-A", "arXiv 1907.07174", 200, True),
    "imagenet-r": Subset("ImageNet-R", "arXiv 2006.16241", 200, True),
    "imagenet-v2": Subset("ImageNet-V2", "arXiv 1902.10811", 1000, False),
    "sketch": Subset("ImageNet-Sketch", "arXiv 1905.13549", 1000, False),
    "objectnet": Subset("ObjectNet", "NeurIPS 2019", 113, False),
}
"""Test sets by the name that --subset takes."""

_BORDER = 2  # pixels: ObjectNet's images have a red frame, which its authors' loader cuts off


def open_subset(
    name: str, data: str, split: str, names: Sequence[str] | None, outputs: int
) -> tuple[ImageDataset, Matching]:
    """Open such a set, and find its classes among the outputs of a model of ImageNet's."""
    subset = find_subset(name)
    if name == "objectnet":
        return _open_objectnet(expand(data), names, outputs)
    source = open_dataset(data, split=split)
    if len(source.classes) != subset.classes:
        found = f"{source.name} has {len(source.classes):,}"
        raise InputError(f"{subset.title} has {subset.classes:,} classes, {found}; is it whole?")
    matching = match_classes(source, names, outputs)
    among = "its classes only" if subset.restricted else "all classes"
    note = f"{subset.title} ({subset.paper}): the model chooses among {among}"
    notes = (*matching.notes, note)
    return source, replace(matching, notes=notes, restricted=subset.restricted)


def find_subset(name: str) -> Subset:
    """Look a test set up by its name."""
    if name not in SUBSETS:
        raise InputError(
            f"unknown --subset {name!r}; there are {', '.join(SUBSETS)}{suggest(name, SUBSETS)}"
        )
    return SUBSETS[name]


def _open_objectnet(
    root: Path, names: Sequence[str] | None, outputs: int
) -> tuple[ImageDataset, Matching]:
    """Open ObjectNet as it is published: `images` and `mappings`; keep ImageNet's classes of it.

    An image is right if the model's answer, of all that it can give, is one of those that the
    mapping has for its class.
    """
    known = (None, imagenet_classes(1000), imagenet_wnids(1000))
    if outputs != 1000 or (names if names is None else tuple(names)) not in known:
        raise InputError("ObjectNet is mapped to ImageNet's 1,000 classes, which the model has not")
    source = open_folder(root / "images", "all")
    titles = _read(root, "folder_to_objectnet_label.json")
    outputs_of = _read_objectnet(root)
    owner = np.full(outputs, -1, np.int64)
    for number, folder in enumerate(source.classes):
        owner[outputs_of.get(titles.get(folder, ""), [])] = number
    kept = np.flatnonzero(np.isin(source.labels, owner[owner >= 0]))
    if not len(kept):
        raise InputError(f"{source.name} has no image of a class that is ImageNet's too")
    shared = len(np.unique(owner[owner >= 0]))
    note = (
        f"{shared} of ObjectNet's {len(source.classes)} classes are ImageNet's; others are left out"
    )
    if names is None:
        note += "; the model has no class names, its outputs are taken as ImageNet's in their order"
    return Framed(select(source, kept)), Matching(owner, (note,))


def _read_objectnet(root: Path) -> dict[str, list[int]]:
    """Read for each class of ObjectNet that is ImageNet's too which of its 1,000 it is.

    The mapping gives labels, a list the number of each in the order of 2012, another its usual one.
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


class Framed(ImageDataset):
    """Images without their outermost pixels."""

    def __init__(self, source: ImageDataset) -> None:
        super().__init__(source.name, source.classes, source.labels, source.root)
        self.source = source

    def read(self, index: int) -> Content:
        """Decode an image and cut its frame off."""
        content = self.source.read(index)
        pixels = decode(content) if isinstance(content, bytes) else content
        inner = pixels[_BORDER:-_BORDER, _BORDER:-_BORDER]
        return np.ascontiguousarray(inner)

    def where(self, index: int) -> str:
        """Name the image as the source behind does."""
        return self.source.where(index)


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
