"""What a run is for: what its steps learn, how well it does, and what is kept of it.

Another objective is another class with these methods, and its row in `choose_objective`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vitrail.data.batches import Batch, UnreadableImage
from vitrail.data.dataset import ImageDataset
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.accuracy import measure_accuracy
from vitrail.evaluation.best_tracker import EvalResult
from vitrail.models import parse
from vitrail.models.model import Model
from vitrail.training.peft import plain_state
from vitrail.training.start import start_weights
from vitrail.training.tasks import Classify, Distillation, DistillationToken, Task
from vitrail.training.teacher import Teacher
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint, Provenance


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Held-out images, and how a model is measured on them."""

    batches: Iterable[Batch]
    preprocess: Preprocess
    device: torch.device
    micro: int
    """Images that go through the model at a time."""
    total: Callable[..., list[float]]
    """Adds numbers up over all processes."""
    note: Callable[[Iterable[UnreadableImage]], None]
    """Is told of images that could not be read."""


class Objective(Protocol):
    """What a session asks of a run's purpose."""

    def start(self) -> Checkpoint:
        """Give the weights, fresh or read, that training starts from."""
        ...

    def build(self, bundle: Checkpoint) -> Model:
        """Make the model that is trained of these weights."""
        ...

    def make_task(self, preprocess: Preprocess, device: torch.device) -> Task:
        """Say what the steps learn."""
        ...

    def measure(self, model: Model, exam: Exam) -> EvalResult:
        """Say how well the model does on held-out images."""
        ...

    def image(
        self, model: Model, source: ImageDataset, preprocess: Preprocess, device: torch.device
    ) -> np.ndarray | None:
        """Draw what the model makes of a few held-out images, if there is something to see."""
        ...

    def keep(
        self,
        model: Model,
        tensors: dict[str, Tensor],
        preprocess: Preprocess,
        provenance: Provenance | None,
    ) -> Checkpoint:
        """Say what the model folder gets of the trained weights."""
        ...

    def apart(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Say what of them is kept beside it, since only this objective needs it."""
        ...


class Classification:
    """Tell classes apart, from labels and perhaps from a teacher."""

    def __init__(self, config: TrainConfig, classes: Sequence[str]) -> None:
        self._config, self._classes = config, tuple(classes)

    def start(self) -> Checkpoint:
        """Give weights with a head for the classes."""
        return start_weights(self._config, len(self._classes))

    def build(self, bundle: Checkpoint) -> Model:
        """Make the classifier."""
        return bundle.build()

    def make_task(self, preprocess: Preprocess, device: torch.device) -> Task:
        """Compare logits with labels, and with a teacher's where there is one."""
        loss, distill, classes = self._config.loss, self._config.distill, self._classes
        if distill is None:
            return Classify(loss, len(classes), preprocess)
        teacher = Teacher(distill.teacher, classes=classes, preprocess=preprocess, device=device)
        # DeiT gives the teacher a token of its own (arXiv 2012.12877, section 4).
        kind = (
            DistillationToken
            if getattr(parse(self._config.model), "distilled", False)
            else Distillation
        )
        return kind(loss, len(classes), preprocess, distill, teach=teacher)

    def measure(self, model: Model, exam: Exam) -> EvalResult:
        """Count right answers."""
        found = measure_accuracy(
            model,
            exam.batches,
            exam.preprocess,
            device=exam.device,
            micro=exam.micro,
            total=exam.total,
            note=exam.note,
        )
        return EvalResult.of_accuracy(found)

    def image(
        self, model: Model, source: ImageDataset, preprocess: Preprocess, device: torch.device
    ) -> np.ndarray | None:
        """Draw nothing: answers are words."""
        return None

    def keep(
        self,
        model: Model,
        tensors: dict[str, Tensor],
        preprocess: Preprocess,
        provenance: Provenance | None,
    ) -> Checkpoint:
        """Keep an ordinary model, with the names of its classes."""
        return Checkpoint(
            spec=model.spec,
            tensors=plain_state(model.spec, tensors, self._config.tune),
            classes=self._classes,
            preprocess=preprocess,
            activation=self._config.loss.kind,
            provenance=provenance,
        )

    def apart(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep nothing else."""
        return {}
