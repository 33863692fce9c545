"""What is looked at: a model by its text, and images prepared for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_dataset
from vitrail.data.transforms.preprocess import Preprocess, plain_preprocess
from vitrail.models import BiT, ViT
from vitrail.models.spec import Size, check_division
from vitrail.plotting.curves import METRICS
from vitrail.report.subjects import ReportImage, batches_of, read_subjects, take_subjects
from vitrail.text import expand
from vitrail.training.run_data import open_run_data
from vitrail.weights.load import LoadedModel, load

FEW = 16
"""Images that go through a model at once, and that are enough for norms."""
SHOWN = 4
"""Images of a data set that are shown one by one."""


@dataclass(frozen=True)
class ReportInputs:
    """A model and images prepared for it: those to show one by one, those to measure on."""

    loaded: LoadedModel
    preprocess: Preprocess
    shown: Sequence[ReportImage]
    measured: Sequence[ReportImage]
    labels: Sequence[str] | None = None
    """The data's classes, where the images are of a data set."""

    @property
    def model(self) -> ViT | BiT:
        """Give the model itself."""
        return self.loaded.model

    @property
    def name(self) -> str:
        """Name the model, without its options."""
        return self.model.spec.name.partition(",")[0]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Name the head's outputs, by their numbers if need be."""
        return self.loaded.classes or tuple(f"class {n}" for n in range(self.model.spec.classes))

    def label_of(self, subject: ReportImage) -> str | None:
        """Name an image's true class, where it is known."""
        known = self.labels is not None and subject.label is not None
        return self.labels[subject.label] if known else None  # type: ignore[index]

    def batches(self, subjects: Sequence[ReportImage], batch: int = FEW) -> list[Tensor]:
        """Make the model's input of images."""
        return batches_of(subjects, self.preprocess, batch=batch)

    @torch.no_grad()
    def run(self, call: Callable[[Tensor], Tensor], subjects: Sequence[ReportImage]) -> Tensor:
        """Call the model, or a part of it, on images, a few at a time."""
        return torch.cat([call(batch).float().cpu() for batch in self.batches(subjects)])


def open_view(
    model: str,
    images: Sequence[Path] = (),
    *,
    data: str | None = None,
    split: str | None = None,
    image: Size | None = None,
    count: int = 128,
) -> ReportInputs:
    """Load a model and prepare images for it: files, and up to `count` of a data set.

    A run that is given neither is looked at with its own validation images.
    """
    if count < 1:
        raise InputError(f"at least 1 image is measured, not {count}")
    source, folder = None, find_run(model)
    if data is not None:
        source = open_dataset(data, split=split or "val")
    elif not images and folder is not None:
        source = open_run_data(folder, split)
    elif split is not None:
        raise InputError(f"--split {split} is of --data, which is lacking")
    elif not images:
        hint = "name some files, or give --data, such as a folder of images or shapes"
        raise InputError(f"no image to look at; {hint}")
    return prepare(load(model), images, source, image=image, count=count)


def prepare(
    loaded: LoadedModel,
    images: Sequence[Path] = (),
    source: ImageDataset | None = None,
    *,
    image: Size | None = None,
    count: int,
) -> ReportInputs:
    """Prepare files and images of a data set for a model; of the set a few are shown, or none.

    With `image`, images have another size than the model was trained at.
    """
    loaded.model.float()  # weights may be kept in half precision, images are not
    spec = loaded.model.spec
    preprocess = loaded.preprocess or plain_preprocess(spec.image, spec.channels)
    if image is not None:
        if isinstance(loaded.model, ViT):
            check_division(image, loaded.model.spec.stride)
        preprocess = replace(preprocess, size=image)
    own = read_subjects(images, preprocess)
    if source is None:
        return ReportInputs(loaded, preprocess, own, own)
    measured = take_subjects(source, count, preprocess)
    some = own or measured[:: max(1, len(measured) // SHOWN)][:SHOWN]
    return ReportInputs(loaded, preprocess, some, measured, source.classes)


def find_run(model: str) -> Path | None:
    """Find the run's folder that a model's text leads to, or into."""
    folder = expand(model.removeprefix("run:"))
    for place in (folder, folder.parent):
        if (place / METRICS).is_file() and (place / "config.yaml").is_file():
            return place
    return None
