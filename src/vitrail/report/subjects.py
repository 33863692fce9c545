"""The images that a model is looked at with: as people see them, and as the model does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import Content, ImageDataset
from vitrail.data.datasets.folder import read_file
from vitrail.data.decoding.decode import ImageError, decode
from vitrail.data.transforms.apply import eval_image, normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.plotting.tiles import to_colors
from vitrail.text import neighbors, printable, show

SIDE = 320
"""The longest side, in pixels, of an image that is shown."""


@dataclass(frozen=True)
class ReportImage:
    """An image, upright and whole, and what the model gets of it."""

    name: str
    shown: np.ndarray
    """uint8 (height, width, 3), with no side longer than SIDE."""
    input: np.ndarray
    """uint8 (height, width, channels), as evaluation makes it."""
    label: int | None = None
    """The number of its class, where a data set says it."""

    @property
    def short(self) -> str:
        """Give the last part of its name."""
        return self.name.rpartition("/")[2]


def make_subject(
    content: Content, preprocess: Preprocess, name: str, label: int | None = None
) -> ReportImage:
    """Prepare an image; ImageError where it can't be used."""
    pixels = (
        decode(content, channels=preprocess.channels) if isinstance(content, bytes) else content
    )
    return ReportImage(
        name=name,
        shown=shrink(to_colors(pixels), SIDE),
        input=eval_image(pixels, preprocess),
        label=label,
    )


def read_subjects(paths: Iterable[Path], preprocess: Preprocess) -> list[ReportImage]:
    """Read images from files; the first that can't be used is refused by its name."""
    found: list[ReportImage] = []
    for path in paths:
        if path.is_dir():
            raise InputError(f"{show(path)} is a folder; give images, or --data {show(path)}")
        try:
            content = read_file(os.fsencode(path))
            found.append(make_subject(content, preprocess, path.name))
        except ImageError as error:
            raise InputError(f"{show(path)}: {error}") from None
        except OSError as error:
            near = neighbors(path) if isinstance(error, FileNotFoundError) else ""
            raise InputError(f"cannot read {show(path)}: {error.strerror}{near}") from None
    return found


def take_subjects(source: ImageDataset, count: int, preprocess: Preprocess) -> list[ReportImage]:
    """Take up to so many readable images of a data set, evenly from its first to its last."""
    found: list[ReportImage] = []
    for index in np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int):
        label = int(source.labels[index]) if not source.multilabel else None
        name = printable(source.where(int(index)))
        try:
            found.append(make_subject(source.read(int(index)), preprocess, name, label))
        except (ImageError, OSError):  # what is wrong with it is for `vitrail data check` to say
            continue
    if not found:
        raise InputError(f"{source.name} has no readable image; see vitrail data check")
    return found


def batches_of(
    subjects: Sequence[ReportImage], preprocess: Preprocess, *, batch: int = 16
) -> list[Tensor]:
    """Make what a model takes of all images, a few at a time."""
    inputs = [torch.from_numpy(subject.input) for subject in subjects]
    parts = [inputs[start : start + batch] for start in range(0, len(inputs), batch)]
    return [normalize(torch.stack(part), preprocess) for part in parts]


def shrink(pixels: np.ndarray, side: int) -> np.ndarray:
    """Make an image smaller whose longer side has more pixels than that."""
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return pixels
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
