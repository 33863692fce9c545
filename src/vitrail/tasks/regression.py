"""Predicting numbers, such as an age or a weight, from images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.data.batches import Batch
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.transforms.apply import normalize
from vitrail.distributed import Processes, send
from vitrail.evaluation.accuracy import run_batches
from vitrail.evaluation.metrics.errors import mean_r2, score_targets
from vitrail.models.model import Model
from vitrail.training.best_tracker import EvalResult
from vitrail.training.task import DeviceBatch, Task
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint, Provenance

_HEADS = ("head.output", "distillation_head.output")


class Regression(Task):
    """Learn numbers, each with a mean of 0 and a std of 1 over the training images.

    What is saved predicts them in their own units: the head's last layer undoes the scaling.
    """

    takes_patches = True
    constants = ("mean", "std")

    def __init__(self, config: TrainConfig, dataset: ImageDataset | ImageStream) -> None:
        super().__init__(config, dataset)
        if not isinstance(dataset, ImageDataset) or not dataset.regression:
            raise InputError(
                f"{dataset.name} has no numbers to predict; name their columns, as in "
                "csv:FILE,targets=age+weight"
            )
        self.loss = config.loss.kind or "l2"
        numbers = dataset.labels.astype(np.float64)  # of dates and times float32 would lose digits
        self.mean = torch.from_numpy(numbers.mean(0))
        self.std = torch.from_numpy(numbers.std(0))
        if constant := [name for name, std in zip(self.classes, self.std, strict=True) if not std]:
            raise InputError(f"{dataset.name}: {', '.join(constant)} is the same for all images")

    def start(self, checkpoint: Checkpoint | None = None) -> Checkpoint:
        """Scale what is kept of a head that predicts numbers; of another head, keep nothing."""
        start = super().start(checkpoint)
        if self.config.weights is None:
            return start
        tensors, keeps = dict(start.tensors), start.activation == "none"
        for name in _HEADS:
            if (weight := tensors.get(f"{name}.weight")) is None:
                continue
            kept = weight.any(1) if keeps else torch.zeros(len(weight), dtype=torch.bool)
            bias = (tensors[f"{name}.bias"] - self.mean) / self.std
            scaled = (weight / self.std[:, None]).to(weight)
            tensors[f"{name}.weight"] = torch.where(kept[:, None], scaled, 0.0)
            tensors[f"{name}.bias"] = torch.where(kept, bias.to(weight), 0.0)
        return replace(start, tensors=tensors)

    def build(self, checkpoint: Checkpoint) -> Model:
        """Make the model; its head needs a bias, to predict the mean."""
        if "head.output.bias" not in checkpoint.tensors:
            raise InputError(f"regression needs a head with a bias, not {checkpoint.spec}")
        return super().build(checkpoint)

    def prepare(self, batch: Batch) -> DeviceBatch:
        """Normalize images on the device, and numbers before they lose digits."""
        inputs = normalize(batch.images, self.preprocess, device=self.device)
        scaled = ((batch.labels - self.mean) / self.std).float()
        targets, weights = (send(each, self.device) for each in (scaled, batch.weights))
        return DeviceBatch(inputs, targets, weights, batch.keys)

    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        """Compare with the scaled numbers, averaged over targets."""
        return self.distance(model(batch.inputs).float(), batch.targets)

    def distance(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each image's distance of scaled numbers (n, targets)."""
        if self.loss == "huber":
            return F.huber_loss(outputs, targets, reduction="none").mean(-1)
        difference = (outputs - targets).abs()
        return (difference if self.loss == "l1" else difference.square()).mean(-1)

    def evaluate(
        self, model: Model, batches: Iterable[Batch], *, micro_batch: int, processes: Processes
    ) -> EvalResult:
        """Measure errors in the targets' own units, averaged over them; less loss is better."""
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        skipped = 0
        mean, std = self.mean, self.std
        run = run_batches(model, batches, self.preprocess, device=self.device, micro=micro_batch)
        for batch, outputs in run:
            skipped += len(batch.bad)
            there = batch.weights > 0
            if there.any():
                numbers = outputs[there] * std + mean
                rows.append((batch.indices[there], numbers, batch.labels[there]))
        parts = processes.gather((rows, skipped))
        everywhere = [row for own, _ in parts for row in own]
        skipped = sum(count for _, count in parts)
        if not everywhere:
            raise InputError(f"nothing to evaluate: none of {skipped:,} images can be read")
        indices, outputs, labels = map(torch.cat, zip(*everywhere, strict=True))
        order = indices.argsort()
        outputs, labels = outputs[order], labels[order]
        scaled = ((each - mean) / std for each in (outputs, labels))
        loss = float(self.distance(*scaled).double().mean())
        found = score_targets(outputs.numpy(), labels.numpy(), self.classes)
        values = {name: _mean([getattr(each, name).value for each in found]) for name in _MEASURES}
        _, *ends = mean_r2(outputs.numpy(), labels.numpy())
        known = {name: value for name, value in values.items() if np.isfinite(value)}
        interval = (ends[0], ends[1]) if "r2" in known and np.isfinite(ends).all() else None
        return EvalResult(
            -loss,
            {"loss": loss, **known, **self.measure_own(rows, processes)},
            len(outputs),
            skipped,
            interval=interval,
        )

    def to_checkpoint(
        self,
        model: Model,
        tensors: dict[str, Tensor],
        provenance: Provenance | None,
        evaluated: EvalResult | None,
    ) -> Checkpoint:
        """Keep a model that predicts the numbers in their own units."""
        kept = super().to_checkpoint(model, tensors, provenance, evaluated)
        scaled = dict(kept.tensors)
        for name in _HEADS:
            if (weight := scaled.get(f"{name}.weight")) is not None:
                std, mean = self.std.to(weight.device), self.mean.to(weight.device)
                scaled[f"{name}.weight"] = (weight * std[:, None]).to(weight)
                scaled[f"{name}.bias"] = (scaled[f"{name}.bias"] * std + mean).to(weight)
        return replace(kept, tensors=scaled, activation="none")


_MEASURES = ("mae", "rmse", "r2")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
