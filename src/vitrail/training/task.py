"""What a run learns: a task turns batches into losses, and says what is measured and kept.

The cases are in `vitrail.tasks`; docs/own-parts.md shows one of your own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.data.batches import Batch
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.rng import keys
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import Processes, send
from vitrail.models.model import Model
from vitrail.training.best_tracker import EvalResult
from vitrail.training.peft import plain_state
from vitrail.training.start import start_weights
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint, Provenance

Metric = Callable[[Tensor, Tensor], float]
"""A number from a model's outputs (N, …) and the labels (N, …) of all validation images."""


class DeviceBatch(NamedTuple):
    """A batch where the model is, ready to be cut into micro-batches."""

    inputs: Tensor
    """(n, channels, height, width)."""
    targets: Tensor
    """(n, …), what the task compares with."""
    weights: Tensor
    """(n) 1, or 0 for an image that could not be read."""
    keys: Tensor
    """(n) a number for each image's own noise, the same in whatever process it is made."""

    def part(self, start: int, stop: int) -> DeviceBatch:
        """Cut out a micro-batch."""
        return DeviceBatch(*(values[start:stop] for values in self))


class Task(ABC):
    """What a run learns. A subclass needs `losses`; everything else has a default.

    A run makes it from its settings and training images, builds the model, calls `setup` once, and
    then `prepare` and `losses` for each step.
    """

    needs_labels: ClassVar[bool] = True
    """Whether it learns from labels; otherwise any images will do, and the model has no head unless
    its name gives it outputs (`ViT-S/16,classes=128`), which begin at zero."""
    needs_whole_batch: ClassVar[bool] = False
    """Whether an image's loss depends on the others of its batch, as contrastive losses do: then a
    process's batch goes through the model at once, never in micro-batches."""

    takes_patches: ClassVar[bool] = False
    """Whether it can learn from images of different sizes, within a patch budget."""
    mixes: ClassVar[bool] = False
    """Whether `prepare` applies a batch's mixup or CutMix."""

    constants: ClassVar[tuple[str, ...]] = ()
    """Attributes whose tensors never change, so that no checkpoint needs them."""

    preprocess: Preprocess
    device: torch.device

    def __init__(self, config: TrainConfig, dataset: ImageDataset | ImageStream) -> None:
        self.config, self._data = config, dataset
        if config.augment.mixes and not self.mixes:
            name = type(self).__name__
            raise InputError(f"{name} can't learn from mixed images; leave mixup and cutmix 0")
        if self.needs_whole_batch and config.batch % config.repeats:
            raise InputError(
                f"batch must be a multiple of repeats, {config.repeats}, got {config.batch}"
            )
        self.classes = dataset.classes if self.needs_labels else ()
        self.multilabel = self.needs_labels and dataset.multilabel
        self.metrics: Mapping[str, Metric] = {}
        """Metrics of your own, computed at each evaluation."""

    def start(self, checkpoint: Checkpoint | None = None) -> Checkpoint:
        """Return the weights that training starts from: `checkpoint`, or those of the settings."""
        return start_weights(self.config, self.classes, checkpoint)

    def build(self, checkpoint: Checkpoint) -> Model:
        """Make the model that is trained."""
        return checkpoint.build()

    def setup(self, preprocess: Preprocess, device: torch.device) -> None:
        """Learn how images are normalized, and where the model is."""
        if preprocess.patches and (self.config.augment.mixes or not self.takes_patches):
            why = type(self).__name__ if not self.takes_patches else "mixup and cutmix"
            raise InputError(
                f"{why} can't use images of different sizes (a budget of {preprocess.patches} "
                "patches); set preprocess.patches to 0"
            )
        self.preprocess, self.device = preprocess.read_as(self._data, learn=True), device

    def fit_head(self, model: Model, dataset: ImageDataset) -> str | None:
        """Fit the head before the first step, where the settings ask for it; say what it is."""
        return None

    def prepare(self, batch: Batch) -> DeviceBatch:
        """Bring a batch to the device, normalized there, with its labels as targets."""
        inputs = normalize(batch.images, self.preprocess, device=self.device)
        labels = send(batch.labels, self.device)
        return DeviceBatch(inputs, labels, send(batch.weights, self.device), batch.keys)

    @abstractmethod
    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        """Return the loss of each image (n)."""

    def after_step(self, model: Model) -> None:  # noqa: B027
        """Go on after an optimizer step, once for each in every process.

        `losses` may be called more than once for a step, and for evaluations.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors, numbers and text, nested or not.

        It is saved with each checkpoint, from the first process.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from what `state_dict` returned, after `setup`."""

    def image_metrics(self, model: nn.Module, batch: DeviceBatch) -> dict[str, Tensor]:
        """Return what `evaluate` averages over images: (n) for each name, `loss` among them."""
        return {"loss": self.losses(model, batch)}

    def outputs(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        """Return what metrics of your own get, a row for each image."""
        return model(batch.inputs)

    @torch.inference_mode()
    def evaluate(
        self, model: Model, batches: Iterable[Batch], *, micro_batch: int, processes: Processes
    ) -> EvalResult:
        """Measure a model on held-out images, each once over all processes; less loss is better.

        An image's noise, such as which patches are hidden, is the same at each evaluation.
        """
        sums: dict[str, Tensor] = {}
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        images = skipped = 0.0
        model.eval()
        for batch in batches:
            skipped += len(batch.bad)
            drawn = keys(0, "noise", 0, batch.indices.numpy())
            whole = self.prepare(batch)._replace(keys=torch.from_numpy(drawn))
            for start in range(0, len(batch.labels), micro_batch):
                part = whole.part(start, start + micro_batch)
                weights = part.weights.double()
                for name, values in self.image_metrics(model, part).items():
                    sums[name] = sums.get(name, 0) + values.double() @ weights
                images += float(weights.sum())
                if self.metrics:
                    read = weights.cpu() > 0
                    outputs = self.outputs(model, part).float().cpu()
                    rows = (batch.indices, batch.labels)
                    numbers, labels = (each[start : start + micro_batch][read] for each in rows)
                    kept.append((numbers, outputs[read], labels))
        names = sorted({name for each in processes.gather([*sums]) for name in each})
        own = [sums.get(name, 0.0) for name in names]
        *totals, images, skipped = processes.sum(*own, images, skipped)
        if images == 0:
            raise InputError(f"nothing to evaluate: none of {skipped:,.0f} images can be read")
        values = {name: total / images for name, total in zip(names, totals, strict=True)}
        values |= self.measure_own(kept, processes)
        return EvalResult(-values["loss"], values, int(images), int(skipped))

    def measure_own(
        self, kept: list[tuple[Tensor, Tensor, Tensor]], processes: Processes
    ) -> dict[str, float]:
        """Compute `metrics` from indices, outputs and labels, in the order of the dataset."""
        if not self.metrics:
            return {}
        everywhere = [rows for part in processes.gather(kept) for rows in part]
        indices, outputs, labels = map(torch.cat, zip(*everywhere, strict=True))
        order = indices.argsort()
        found: dict[str, float] = {}
        for name, metric in self.metrics.items():
            value: Any = metric(outputs[order], labels[order])
            try:
                found[name] = float(value)
            except (TypeError, ValueError, RuntimeError):
                kind = type(value).__name__
                raise InputError(f"the metric {name} must return a number, got {kind}") from None
        return found

    def draw(self, model: Model, dataset: ImageDataset) -> np.ndarray | None:
        """Draw what the model makes of a few held-out images (height, width, 3), uint8, or None."""
        return None

    def to_checkpoint(
        self,
        model: Model,
        tensors: dict[str, Tensor],
        provenance: Provenance | None,
        evaluated: EvalResult | None,
    ) -> Checkpoint:
        """Return what the model folder gets, of the trained tensors and their last evaluation."""
        return Checkpoint(
            spec=model.spec,
            tensors=plain_state(model.spec, tensors, self.config.tune),
            classes=self.classes or None,
            preprocess=self.preprocess,
            provenance=provenance,
        )

    def extra_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what is kept beside the model folder, since only this task needs it."""
        return {}


TaskFactory = Callable[[TrainConfig, Any], Task]
"""A Task class, or a function that makes one from a run's settings and training images."""
