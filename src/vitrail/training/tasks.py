"""What is learnt: a task makes a batch into inputs and targets, and a model's output into losses.

A new objective is a new class here; the loop knows none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.data.batches import Batch
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.mixing import mix_images, mix_targets, soft_targets
from vitrail.data.transforms.preprocess import Preprocess


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
        """Cut a micro-batch out."""
        return DeviceBatch(*(values[start:stop] for values in self))


class Task(Protocol):
    """What the loop asks of an objective."""

    def prepare(self, batch: Batch, device: torch.device) -> DeviceBatch:
        """Bring a batch to the device and make its targets."""
        ...

    def losses(self, model: nn.Module, example: DeviceBatch) -> Tensor:
        """Give the loss of each image (n)."""
        ...


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """How far a prediction is from its label."""

    kind: Literal["softmax", "sigmoid"] = "softmax"
    """`softmax` for one label an image, `sigmoid` for several or none (the paper, on JFT)."""
    smoothing: float = 0.0
    """Part of each label that is spread over all classes."""

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise InputError(f"smoothing is a part from 0 to below 1, not {self.smoothing}")


class Classify:
    """Tell classes apart: cross-entropy with softmax, or a binary one for each class."""

    def __init__(self, loss: LossConfig, classes: int, preprocess: Preprocess) -> None:
        self._loss, self._classes, self._preprocess = loss, classes, preprocess

    def prepare(self, batch: Batch, device: torch.device) -> DeviceBatch:
        """Normalize on the device, then mix images and labels with their neighbors'."""
        inputs = normalize(batch.images, self._preprocess, device=device)
        labels = batch.labels.to(device, non_blocking=True)
        targets = soft_targets(labels, self._classes, self._loss.smoothing)
        weights, keys = batch.weights.to(device), batch.keys
        if batch.mix is not None:
            inputs, targets = mix_images(inputs, batch.mix), mix_targets(targets, batch.mix)
            weights, keys = weights[1:] * weights[:-1], keys[1:]  # a mixture needs both
        return DeviceBatch(inputs, targets, weights, keys)

    def losses(self, model: nn.Module, example: DeviceBatch) -> Tensor:
        """Compare logits with targets, summed over classes."""
        return compare(model(example.inputs), example.targets, self._loss.kind)


def compare(logits: Tensor, targets: Tensor, kind: Literal["softmax", "sigmoid"]) -> Tensor:
    """Give each row's cross-entropy with soft targets, in float32."""
    logits = logits.float()
    if kind == "softmax":
        return -(targets * F.log_softmax(logits, dim=-1)).sum(-1)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """A teacher, whose answers are learnt besides the labels."""

    teacher: str
    """Its source of weights; it sees the same pixels, with its own mean and std."""
    alpha: float = 0.5
    """Part of the loss that is the distance from the teacher's answers."""
    temperature: float = 3.0  # DeiT's (arXiv 2012.12877, section 4)
    """What logits are divided by before they are compared; the higher, the softer."""
    hard: bool = False
    """Learn the teacher's most likely class, whatever the temperature (DeiT's hard form)."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise InputError(f"alpha is a part from 0 to 1, not {self.alpha}")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature is above 0, not {self.temperature}")


class Distillation(Classify):
    """Learn a teacher's answers besides the labels (arXiv 1503.02531, 2012.12877)."""

    def __init__(
        self,
        loss: LossConfig,
        classes: int,
        preprocess: Preprocess,
        config: DistillConfig,
        *,
        teach: Callable[[Tensor], Tensor],
    ) -> None:
        """Learn from `teach`, which gives the teacher's logits of the model's inputs."""
        super().__init__(loss, classes, preprocess)
        self._config, self._teach = config, teach

    def losses(self, model: nn.Module, example: DeviceBatch) -> Tensor:
        """Weigh the loss of the labels with the distance from the teacher's answers."""
        logits = model(example.inputs).float()
        return self._weigh(logits, logits, example)

    def _weigh(self, logits: Tensor, pupil: Tensor, example: DeviceBatch) -> Tensor:
        """Hold `logits` against the labels, and `pupil` against the teacher's."""
        with torch.no_grad():
            taught = self._teach(example.inputs).float()
        labels, alpha = compare(logits, example.targets, self._loss.kind), self._config.alpha
        return (1 - alpha) * labels + alpha * self._distance(pupil, taught)

    def _distance(self, logits: Tensor, taught: Tensor) -> Tensor:
        if self._config.hard:
            return F.cross_entropy(logits, taught.argmax(-1), reduction="none")
        heat = self._config.temperature
        theirs, own = (F.log_softmax(each / heat, -1) for each in (taught, logits))
        # The square keeps the gradient's size at any temperature.
        return (theirs.exp() * (theirs - own)).sum(-1) * heat**2


class DistillationToken(Distillation):
    """Learn labels by the class token, the teacher's answers by the distillation token (DeiT)."""

    def losses(self, model: nn.Module, example: DeviceBatch) -> Tensor:
        """Weigh the loss of one head with that of the other."""
        logits, pupil = model(example.inputs, each=True).float().unbind(1)
        return self._weigh(logits, pupil, example)
