"""Images that an exported or faster model is checked on: the user's own, or drawn ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import Content
from vitrail.data.datasets.open import open_dataset
from vitrail.data.decoding.decode import ImageError
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models.spec import Size

DRAWN = "shapes:size=96,count=240"
"""What stands in where the user gives no images: this package's own."""


@dataclass(frozen=True)
class Samples:
    """Some images of a data set, as they were read, and their labels."""

    name: str
    contents: tuple[Content, ...]
    labels: tuple[int, ...] | None
    """A class's number for each; None where an image may have several."""
    classes: tuple[str, ...]
    preprocess: Preprocess

    def __len__(self) -> int:
        return len(self.contents)

    def prepare(self, size: Size | None = None) -> Tensor:
        """Make the model's inputs: uint8 (n, height, width, channels), of another size if asked."""
        preprocess = self.preprocess if size is None else replace(self.preprocess, size=size)
        return torch.from_numpy(
            np.stack([eval_image(content, preprocess) for content in self.contents])
        )


def take_samples(
    data: str | None, preprocess: Preprocess, *, count: int, split: str = "val"
) -> Samples:
    """Take readable images, evenly spread over a data set; drawn ones where none is given."""
    source = open_dataset(data or DRAWN, split=split)
    contents: list[Content] = []
    labels: list[int] = []
    for index in _spread(len(source)):
        if len(contents) == count:
            break
        try:
            content = source.read(index)
            eval_image(content, preprocess)
        except (ImageError, OSError):
            continue
        contents.append(content)
        labels.append(-1 if source.multilabel else int(source.labels[index]))
    if not contents:
        raise InputError(f"{source.name} has no readable image to measure on")
    known = None if source.multilabel else tuple(labels)
    return Samples(source.name, tuple(contents), known, source.classes, preprocess)


def _spread(count: int) -> list[int]:
    """Give all numbers below a count, so that any first few are spread evenly over them."""
    step = max(1, round(count * 0.6180339887))  # the golden ratio's fraction
    while np.gcd(step, max(count, 1)) > 1:
        step += 1
    return [place * step % count for place in range(count)]
