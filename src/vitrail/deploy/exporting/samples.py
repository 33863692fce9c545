"""Images that an exported or faster model is checked on: the user's, or generated shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import Content
from vitrail.data.datasets.open import Data, open_dataset
from vitrail.data.decoding.decode import ImageError
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.inputs import open_images
from vitrail.models.spec import Size
from vitrail.weights.loaded import AnyModel

GENERATED = "shapes:size=96,count=240"
"""What is used without the user's images: this package's own dataset."""


@dataclass(frozen=True)
class Samples:
    """Some images of a dataset, as they were read, and their labels."""

    name: str
    contents: tuple[Content, ...]
    labels: tuple[int, ...] | None
    """One class index per image; None for a multi-label dataset."""
    classes: tuple[str, ...]
    preprocess: Preprocess
    selected: Selected | None = None
    """Which images of the user's data they are taken from, and why those."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.contents)

    def first(self, count: int) -> Samples:
        """Give the first few of them."""
        labels = None if self.labels is None else self.labels[:count]
        return replace(self, contents=self.contents[:count], labels=labels)

    def inputs(self, size: Size | None = None) -> Tensor:
        """Preprocess them: uint8 (n, height, width, channels), optionally at another size."""
        preprocess = self.preprocess if size is None else replace(self.preprocess, size=size)
        return torch.from_numpy(
            np.stack([eval_image(content, preprocess) for content in self.contents])
        )


def take_samples(
    data: Data | None,
    preprocess: Preprocess,
    *,
    count: int,
    split: str = "val",
    model: AnyModel | None = None,
) -> Samples:
    """Take readable images, evenly spread over a dataset; generated shapes without `data`.

    Of `val`, those that a `model` was not trained on, whose accuracy they measure.
    """
    if model is None or data is None:
        opened, dataset = None, open_dataset(data or GENERATED, split=split)
    else:
        opened = open_images(data, None if split == "val" else split, (model,))
        dataset = opened.dataset
    preprocess = preprocess.read_as(dataset)
    contents: list[Content] = []
    labels: list[int] = []
    for index in _spread(len(dataset)):
        if len(contents) == count:
            break
        try:
            content = dataset.read(index)
            eval_image(content, preprocess)
        except (ImageError, OSError):
            continue
        contents.append(content)
        labels.append(int(dataset.labels[index]) if dataset.labels.ndim == 1 else -1)
    if not contents:
        raise InputError(f"{dataset.name} has no readable images")
    known = tuple(labels) if dataset.labels.ndim == 1 else None
    found = Samples(dataset.name, tuple(contents), known, dataset.classes, preprocess)
    return found if opened is None else replace(found, selected=opened.selected, notes=opened.notes)


def _spread(count: int) -> list[int]:
    """Order the numbers below a count so that the first few of them are spread evenly."""
    step = max(1, round(count * 0.6180339887))  # the golden ratio's fraction
    while np.gcd(step, max(count, 1)) > 1:
        step += 1
    return [index * step % count for index in range(count)]
