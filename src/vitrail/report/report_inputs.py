"""What a report is made of: a model, and images prepared for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data
from vitrail.data.image_inputs import ImageLike
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import choose_device
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.inputs import is_labeled, open_images, preprocess_of
from vitrail.models import BiT, ViT
from vitrail.models.spec import Size, check_division
from vitrail.report.report_images import ReportImage, read_images, sample_images
from vitrail.training.checkpoints.run_folder import find_run
from vitrail.training.run_data import open_run_data
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel

BATCH = 16
"""Images that go through a model at once, and that are enough for norms."""
SHOWN = 4
"""Images of a dataset that are shown one by one."""


@dataclass(frozen=True)
class ReportInputs:
    """A model and images prepared for it: those to show one by one, those to measure on."""

    loaded: LoadedModel
    preprocess: Preprocess
    shown: Sequence[ReportImage]
    measured: Sequence[ReportImage]
    dataset: ImageDataset | None = None
    """Where the measured images are from, unless they are files."""
    selected: Selected | None = None
    """Which images of DATA those of the dataset are, and why those."""
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> ViT | BiT:
        """The model itself."""
        return self.loaded.model

    @property
    def name(self) -> str:
        """The model's name, without its options."""
        return self.model.spec.name.partition(",")[0]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the head's outputs; numbers where the weights have no names."""
        return self.loaded.classes or tuple(f"class {n}" for n in range(self.model.spec.classes))

    def labels_of(self, image: ReportImage) -> list[str] | None:
        """Names of an image's true classes, where they are known."""
        if self.dataset is None or image.labels is None or not is_labeled(self.dataset):
            return None
        return [self.dataset.classes[label] for label in image.labels]

    def probabilities(self, logits: Tensor) -> np.ndarray:
        """Turn logits (…, classes) into the probabilities that predictions have.

        The numbers of a regression stay what they are.
        """
        if self.loaded.activation == "none":
            return logits.numpy()
        if self.loaded.activation == "sigmoid":
            return logits.sigmoid().numpy()
        return (logits / self.loaded.temperature).softmax(-1).numpy()

    def batches(self, images: Sequence[ReportImage]) -> list[Tensor]:
        """Make the model's input, a few images at a time."""
        inputs = [torch.from_numpy(image.input) for image in images]
        groups = [inputs[start : start + BATCH] for start in range(0, len(inputs), BATCH)]
        device = next(self.model.parameters()).device
        return [normalize(torch.stack(group), self.preprocess, device=device) for group in groups]

    @torch.no_grad()
    def run(self, call: Callable[[Tensor], Tensor], images: Sequence[ReportImage]) -> Tensor:
        """Call the model, or a part of it, on images, a few at a time."""
        return torch.cat([call(batch).float().cpu() for batch in self.batches(images)])


def open_inputs(
    model: AnyModel,
    images: Sequence[ImageLike] = (),
    *,
    data: Data | None = None,
    split: str | None = None,
    image: Size | None = None,
    count: int = 128,
    device: str | None = None,
    beside: AnyModel | None = None,
) -> ReportInputs:
    """Load a model and prepare images for it: given ones, and up to `count` of a dataset.

    A run that is given neither is inspected with its own validation images. None of a dataset was
    trained on by the model, nor by the one that is inspected `beside`.
    """
    if count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    dataset, opened, run = None, None, find_run(model)
    if data is not None:
        models = [model] if beside is None else [model, beside]
        opened = open_images(data, split, models, labels=False)
        dataset = opened.dataset
    elif not images and run is not None:
        dataset = open_run_data(run, split)
    elif split is not None:
        raise InputError("--split requires --data")
    elif not images:
        raise InputError("no images to inspect; give image files, or --data with a dataset")
    found = prepare_inputs(
        as_loaded(model), images, dataset, image=image, count=count, device=device
    )
    if opened is None:
        return found
    return replace(found, selected=opened.selected, notes=opened.notes)


def prepare_inputs(
    loaded: LoadedModel,
    images: Sequence[ImageLike] = (),
    dataset: ImageDataset | None = None,
    *,
    image: Size | None = None,
    count: int,
    device: str | None = None,
) -> ReportInputs:
    """Prepare given images and those of a dataset; without given ones, a few of these are shown.

    With `image`, they have another size than the model was trained at.
    """
    # Weights may be stored in half precision; images are not.
    loaded.model.to(choose_device(device), torch.float32)
    preprocess = preprocess_of(loaded)
    if image is not None:
        if isinstance(loaded.model, ViT):
            check_division(image, loaded.model.spec.stride)
        preprocess = replace(preprocess, size=image)
    if dataset is not None:
        preprocess = preprocess.read_as(dataset)
    given = read_images(images, preprocess)
    if dataset is None:
        return ReportInputs(loaded, preprocess, given, given)
    measured = sample_images(dataset, count, preprocess)
    shown = given or measured[:: max(1, len(measured) // SHOWN)][:SHOWN]
    return ReportInputs(loaded, preprocess, shown, measured, dataset)
