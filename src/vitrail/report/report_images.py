"""The images of a report: as people see them, and as the model does."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.config import InputError
from vitrail.data.dataset import Content, ImageDataset
from vitrail.data.decoding.decode import ImageError, decode
from vitrail.data.image_inputs import ImageLike, read_content
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.plotting.tiles import to_colors
from vitrail.text import neighbors, show

SIDE = 320
"""The longest side of a shown image, in pixels."""


@dataclass(frozen=True)
class ReportImage:
    """An upright image, and the model's input that was made of it."""

    name: str
    pixels: np.ndarray
    """uint8 (height, width, 3), with no side longer than SIDE."""
    input: np.ndarray
    """uint8 (height, width, channels), as evaluation prepares it."""
    labels: tuple[int, ...] | None = None
    """The numbers of its classes, where a dataset says them."""

    @property
    def short_name(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]


def prepare_image(
    content: Content, preprocess: Preprocess, name: str, labels: tuple[int, ...] | None = None
) -> ReportImage:
    """Prepare an image; ImageError where it can't be used."""
    pixels = (
        decode(content, channels=preprocess.channels, reading=preprocess.reading)
        if isinstance(content, bytes)
        else content
    )
    return ReportImage(
        name=name,
        pixels=shrink(to_colors(pixels), SIDE),
        input=eval_image(pixels, preprocess),
        labels=labels,
    )


def read_images(images: Iterable[ImageLike], preprocess: Preprocess) -> list[ReportImage]:
    """Read images; the first that can't be used is refused by its name."""
    found: list[ReportImage] = []
    for number, image in enumerate(images):
        path = Path(image) if isinstance(image, str | Path) else None
        where = f"image {number}" if path is None else show(path)
        if path is not None and os.path.isdir(path):
            raise InputError(f"{where} is a folder; give images, or --data {where}")
        try:
            content = read_content(image, preprocess)
            name = where if path is None else path.name
            found.append(prepare_image(content, preprocess, name))
        except ImageError as error:
            near = "" if path is None or os.path.exists(path) else neighbors(path)
            raise InputError(f"{where}: {error}{near}") from None
    return found


def sample_images(dataset: ImageDataset, count: int, preprocess: Preprocess) -> list[ReportImage]:
    """Take up to `count` readable images of a dataset, evenly spaced."""
    found = take_images(dataset, even_indices(len(dataset), count), preprocess)
    if not found:
        raise InputError(f"{dataset.name} has no readable image; run vitrail data check on it")
    return found


def take_images(
    dataset: ImageDataset, indices: Iterable[int], preprocess: Preprocess
) -> list[ReportImage]:
    """Take images of a dataset by number, without those that can't be read."""
    found: list[ReportImage] = []
    for index in map(int, indices):
        label = dataset.labels[index]
        labels = None
        if not dataset.regression:
            labels = tuple(np.flatnonzero(label).tolist()) if dataset.multilabel else (int(label),)
        name = dataset.where(index)
        try:
            found.append(prepare_image(dataset.read(index), preprocess, name, labels))
        except (ImageError, OSError):  # what is wrong with it is for `vitrail data check` to say
            continue
    return found


def even_indices(length: int, count: int) -> np.ndarray:
    """Choose up to `count` of `length` positions, from the first to the last."""
    return np.linspace(0, length - 1, min(count, length)).round().astype(int)


def shrink(pixels: np.ndarray, side: int) -> np.ndarray:
    """Shrink an image so that its longer side has at most `side` pixels."""
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return pixels
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
