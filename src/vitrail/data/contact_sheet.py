"""A contact sheet of images as training or evaluation sees them."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.config import InputError
from vitrail.data.batches import EvalBatches, TrainBatches
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.open import Data, open_dataset
from vitrail.data.subsets import subset
from vitrail.data.transforms.augment import parse_augment
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.result import Result

_GAP = 2  # white pixels between images


@dataclass(frozen=True)
class ContactSheet(Result):
    """An image file with some images of a dataset."""

    file: str
    images: int

    def summary(self) -> Iterator[str]:
        """Show the file and its number of images."""
        yield f"{self.file}: {self.images} images"

    def _repr_html_(self) -> str:
        """Show the images in a notebook."""
        data = base64.b64encode(Path(self.file).read_bytes()).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{self.images} images of the dataset">'


def show_data(
    data: Data,
    out: Path = Path("images.png"),
    *,
    split: str = "train",
    augment: str | None = None,
    size: int = 96,
    count: int = 64,
    seed: int = 0,
) -> ContactSheet:
    """Draw a contact sheet of a dataset's images as training sees them.

    Without an augmentation level they are as evaluation sees them.
    """
    if size < 1 or count < 1:
        raise InputError(f"count and size must be at least 1, got {count} and {size}")
    dataset = open_dataset(data, split=split, labels=False)
    preprocess = Preprocess(
        size=(size, size), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear", fit="small"
    )
    chosen = subset(dataset, min(count, len(dataset)), seed)
    images = _images(chosen, preprocess, augment, seed)
    try:
        Image.fromarray(_tile(images)).save(out)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot write {out}: {getattr(error, 'strerror', None) or error}"
        ) from None
    return ContactSheet(str(out), len(images))


def _images(
    dataset: ImageDataset, preprocess: Preprocess, level: str | None, seed: int
) -> np.ndarray:
    if level is None:
        if dataset.labels.ndim == 1:
            dataset = select(dataset, np.argsort(dataset.labels, kind="stable"))
        return EvalBatches(dataset, preprocess, batch=len(dataset))[0].images.numpy()
    augment = parse_augment(level)
    batches = TrainBatches(dataset, augment, preprocess, batch=len(dataset), seed=seed)
    return batches[0].images.numpy()


def _tile(images: np.ndarray) -> np.ndarray:
    """Arrange images in a square, row by row."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + _GAP), columns * (width + _GAP), channels), 255, np.uint8)
    for place, image in enumerate(images):
        top, left = place // columns * (height + _GAP), place % columns * (width + _GAP)
        sheet[top : top + height, left : left + width] = image
    return sheet
