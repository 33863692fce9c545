"""Telling classes apart, from labels alone or from a teacher's answers too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.data.batches import Batch
from vitrail.data.class_balance import class_weights, resolve_balance
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.mixing import mix_images, mix_targets, soft_targets
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import Processes, send
from vitrail.evaluation.accuracy import Accuracy, measure_accuracy
from vitrail.evaluation.metrics.intervals import wilson
from vitrail.evaluation.probes.head_start import start_head
from vitrail.models import parse
from vitrail.models.model import Model
from vitrail.tasks.teacher import Teacher
from vitrail.training.best_tracker import EvalResult
from vitrail.training.checkpoints.dtensor import gather
from vitrail.training.losses import ClassLoss, DistillConfig, label_loss, teacher_loss
from vitrail.training.task import DeviceBatch, Task
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint, Provenance


class Classification(Task):
    """Cross-entropy with softmax, or a binary one for each class."""

    mixes = True
    takes_patches = True
    constants = ("class_weights",)

    def __init__(self, config: TrainConfig, dataset: ImageDataset | ImageStream) -> None:
        super().__init__(config, dataset)
        kind = config.loss.kind or ("sigmoid" if self.multilabel else "softmax")
        assert kind in ("softmax", "sigmoid"), kind  # the settings refuse the others
        self.loss: ClassLoss = kind
        self.class_weights: Tensor | None = None
        if resolve_balance(config.balance, dataset) == "weights":
            assert isinstance(dataset, ImageDataset)
            self.class_weights = torch.from_numpy(class_weights(dataset.class_counts())).float()

    def setup(self, preprocess: Preprocess, device: torch.device) -> None:
        """Bring the weights of the classes to the device, too."""
        super().setup(preprocess, device)
        if self.class_weights is not None:
            self.class_weights = self.class_weights.to(device)

    def fit_head(self, model: Model, dataset: ImageDataset) -> str | None:
        """Fit a linear probe, unless the head has learned of these classes already."""
        head, asked = model.head.output, self.config.tune.head == "probe"
        if not asked or not isinstance(head, nn.Linear) or gather(head.weight).any():
            return None
        images = start_head(
            model,
            dataset,
            self.preprocess,
            loss=self.loss,
            device=self.device,
            loader=self.config.loader,
        )
        return f"head     a linear probe of the frozen features of {images:,} training images"

    def prepare(self, batch: Batch) -> DeviceBatch:
        """Normalize on the device, then mix images and labels with their neighbors'."""
        inputs = normalize(batch.images, self.preprocess, device=self.device)
        labels = send(batch.labels, self.device)
        targets = soft_targets(labels, len(self.classes), self.config.loss.smoothing)
        weights, keys = send(batch.weights, self.device), batch.keys
        if batch.mix is not None:
            inputs, targets = mix_images(inputs, batch.mix), mix_targets(targets, batch.mix)
            weights, keys = weights[1:] * weights[:-1], keys[1:]  # a mixture needs both
        return DeviceBatch(inputs, targets, weights, keys)

    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        """Compare logits with targets, summed over classes."""
        return self._label_loss(model(batch.inputs), batch)

    def _label_loss(self, logits: Tensor, batch: DeviceBatch) -> Tensor:
        reduction = self.config.loss.reduction
        weights = self.class_weights
        return label_loss(logits, batch.targets, self.loss, weights, reduction=reduction)

    def evaluate(
        self, model: Model, batches: Iterable[Batch], *, micro_batch: int, processes: Processes
    ) -> EvalResult:
        """Measure accuracy; with several labels per image, mAP, and choose their thresholds."""
        kept: list[tuple[Tensor, Tensor, Tensor]] = []  # numbers, logits and labels of images
        found = measure_accuracy(
            model,
            batches,
            self.preprocess,
            device=self.device,
            activation=self.loss,
            micro=micro_batch,
            total=processes.sum,
            gather=processes.gather,
            keep=(lambda *rows: kept.append(rows)) if self.metrics else None,
        )
        result = result_of(found)
        if self.loss == "softmax":
            result = result._replace(thresholds=None)
        values = {**result.values, **self.measure_own(kept, processes)}
        return result._replace(values=values, worst=worst_classes(self.classes, found.by_class))

    def to_checkpoint(
        self,
        model: Model,
        tensors: dict[str, Tensor],
        provenance: Provenance | None,
        evaluated: EvalResult | None,
    ) -> Checkpoint:
        """Keep an ordinary model, with what turns its logits into labels."""
        kept = super().to_checkpoint(model, tensors, provenance, evaluated)
        thresholds = evaluated.thresholds if evaluated else None
        return replace(kept, activation=self.loss, thresholds=thresholds)


def worst_classes(
    classes: Sequence[str], counts: Sequence[tuple[int, int]], most: int = 3
) -> tuple[tuple[str, int, int], ...]:
    """List the classes with the lowest accuracy, the larger of equals first; none that is perfect.

    `counts` are the images of each class, and how many are predicted correctly.
    """
    rows = [(name, *count) for name, count in zip(classes, counts, strict=False)]
    wrong = [row for row in rows if row[2] < row[1]]
    return tuple(sorted(wrong, key=lambda row: (row[2] / row[1], -row[1]))[:most])


def result_of(found: Accuracy) -> EvalResult:
    """Take top-1 accuracy for the score, or mean average precision for several labels."""
    if found.labels is None:
        values = {"top1": found.top1, "loss": found.loss}
        if found.top5 is not None:
            values = {"top1": found.top1, "top5": found.top5, "loss": found.loss}
        if found.macro is not None:
            values |= {"macro_accuracy": found.macro.accuracy, "macro_f1": found.macro.f1}
        estimate = wilson(round(found.top1 * found.images), found.images)
        interval = estimate.low, estimate.high
        return EvalResult(found.top1, values, found.images, found.skipped, interval=interval)
    precision, macro, micro = found.labels
    values = {"map": precision, "macro_f1": macro, "micro_f1": micro, "loss": found.loss}
    if math.isnan(precision):  # no image has a label: there is nothing but the loss
        values = {"loss": found.loss}
    score = values.get("map", -found.loss)
    return EvalResult(score, values, found.images, found.skipped, found.thresholds)


class Distillation(Classification):
    """Learn a teacher's answers besides the labels (arXiv 1503.02531, 2012.12877)."""

    takes_patches = False  # the teacher's normalization may be another

    def __init__(self, config: TrainConfig, dataset: ImageDataset | ImageStream) -> None:
        super().__init__(config, dataset)
        assert config.distill is not None
        self.distill: DistillConfig = config.distill
        # DeiT gives the teacher a token of its own (arXiv 2012.12877, section 4).
        self.has_token = bool(getattr(parse(config.model), "distilled", False))

    def setup(self, preprocess: Preprocess, device: torch.device) -> None:
        """Load the teacher, at the student's resolution."""
        super().setup(preprocess, device)
        self.teach = Teacher(
            self.distill.teacher,
            classes=self.classes,
            preprocess=preprocess,
            device=device,
            loss=self.loss,
        )

    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        """Weigh the loss of the labels with the distance from the teacher's answers.

        A model with a distillation token learns the teacher's answers by that token's head.
        """
        if self.has_token:
            logits, student = model(batch.inputs, each=True).float().unbind(1)
        else:
            logits = student = model(batch.inputs).float()
        with torch.no_grad():
            taught = self.teach(batch.inputs).float()
        labels = self._label_loss(logits, batch)
        alpha = self.distill.alpha
        return (1 - alpha) * labels + alpha * teacher_loss(student, taught, self.distill, self.loss)
