"""A model asked about every image of a set: opened, matched, run, by one process or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import notes as notes_of
from vitrail.data.datasets.open import open_dataset
from vitrail.data.datasets.public.official import read_real
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.preprocess import Preprocess, default_preprocess
from vitrail.distributed import ALONE, Shard
from vitrail.evaluation.class_matching import ClassMap, match_classes
from vitrail.evaluation.imagenet_subsets import open_subset
from vitrail.evaluation.scored import Matching, Predictions, collect
from vitrail.models.model import Model
from vitrail.models.spec import Size
from vitrail.weights.load import LoadedModel, load

BATCH = 64
"""Images that go through the model at a time; another number changes the last digits."""


@dataclass(frozen=True, kw_only=True)
class Exam:
    """A model and a set, ready to be run."""

    model: Model[Any]
    preprocess: Preprocess
    source: ImageDataset
    matching: Matching
    real: Sequence[frozenset[int]] | None
    """The reassessed labels of ImageNet, for each image."""
    notes: tuple[str, ...]
    """What a person should know before believing the numbers, each in one line."""

    def batches(self, batch: int = BATCH, shard: Shard = ALONE) -> EvalBatches:
        """Give the set's images by number, for one process of several."""
        return EvalBatches(self.source, self.preprocess, batch=batch, shard=shard)


def prepare(
    model: str,
    data: str,
    *,
    split: str | None = None,
    image: Size | None = None,
    subset: str | None = None,
    classes: ClassMap | None = None,
    real: Path | None = None,
) -> Exam:
    """Load a model, open a set, and find the set's classes among the model's.

    The split is `val` unless given, of a subset all. With `image` the model is fitted to another
    resolution than it was trained at.
    """
    loaded = load(model, image=image)
    check_head(model, loaded)
    return match(loaded, data, split=split, subset=subset, classes=classes, real=real)


def check_head(source: str, loaded: LoadedModel) -> None:
    """Refuse a model that has no head to classify with, or one that was never trained."""
    features = "measure its features: vitrail fewshot, probe or knn"
    train = "or train a head: vitrail finetune"
    output = loaded.model.head.output
    if output is None:
        raise InputError(f"{source} has no head, so no classes; {features}, {train}")
    if not any(parameter.any() for parameter in output.parameters()):
        raise InputError(f"the head of {source} is all zeros, as published; {features}, {train}")


def match(
    loaded: LoadedModel,
    data: str,
    *,
    split: str | None = None,
    subset: str | None = None,
    classes: ClassMap | None = None,
    real: Path | None = None,
) -> Exam:
    """Open a set for a loaded model, and find the set's classes among the model's."""
    outputs = loaded.model.spec.classes
    if subset is not None:
        if classes:
            raise InputError("give --subset or --map, not both: a subset brings its own classes")
        source, matching = open_subset(subset, data, split or "all", loaded.classes, outputs)
    else:
        source = open_dataset(data, split=split or "val")
        matching = match_classes(source, loaded.classes, outputs, classes)
    spec = loaded.model.spec
    preprocess = loaded.preprocess or default_preprocess(spec.image, spec.channels)
    notes = [*notes_of(source), *matching.notes]
    if loaded.preprocess is None:
        notes.append("the weights do not say how images are prepared: the paper's way is taken")
    return Exam(
        model=loaded.model,
        preprocess=preprocess,
        source=source,
        matching=matching,
        real=read_real(real, source) if real is not None else None,
        notes=tuple(notes),
    )


def ask(
    exam: Exam,
    *,
    device: torch.device,
    batch: int = BATCH,
    shard: Shard = ALONE,
    loader: LoaderConfig | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> list[Predictions]:
    """Ask the model about this process's part of every batch; `report` is told how many are done.

    The parts of all batches and processes are put together with `join_answers`.
    """
    batches = exam.batches(batch, shard)
    made = Loader(batches.__getitem__, range(len(batches)), loader or LoaderConfig())
    return collect(
        exam.model.to(device), made, exam.preprocess, exam.matching, device=device, report=report
    )
