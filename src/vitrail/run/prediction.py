"""The objective of a run without labels, and which objective a run has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.batches import Batch, EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.rng import keys
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.best_tracker import EvalResult
from vitrail.models import parse
from vitrail.models.model import Model
from vitrail.models.pretraining.masked import (
    MaskedAutoencoder,
    MaskedImageModel,
    MaskedViT,
    encoder_spec,
)
from vitrail.models.vit import ViT
from vitrail.run.objective import Classification, Exam, Objective
from vitrail.training.pretext import Predict
from vitrail.training.start import start_weights
from vitrail.training.tasks import DeviceBatch
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint, Provenance

_ENCODER = "encoder."
_SHOWN = 6  # images of the validation split


def choose_objective(config: TrainConfig, classes: Sequence[str]) -> Objective:
    """Say what a run is for."""
    return (
        Classification(config, classes) if config.task == "classification" else Prediction(config)
    )


def encoder_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the weights of the encoder alone, of those of a model in pre-training."""
    return {
        name.removeprefix(_ENCODER): tensor
        for name, tensor in tensors.items()
        if name.startswith(_ENCODER)
    }


class Prediction:
    """Predict patches that the model is not shown, and keep its encoder."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._spec = encoder_spec(parse(config.model))

    def start(self) -> Checkpoint:
        """Give weights of an encoder, which has no head."""
        return start_weights(replace(self._config, model=str(self._spec)), 0)

    def build(self, bundle: Checkpoint) -> Model:
        """Put what predicts beside the encoder."""
        encoder, mim = bundle.build(), self._config.mim
        assert isinstance(encoder, ViT)
        if encoder.pooling is not None:  # no prediction goes through it
            encoder.pooling.requires_grad_(False)
        if self._config.task == "mae":
            return MaskedAutoencoder(encoder, mim.target, mim.decoder)
        return MaskedViT(encoder, mim.target)

    def make_task(self, preprocess: Preprocess, device: torch.device) -> Predict:
        """Compare predictions with the images themselves."""
        return Predict(self._config.mim, self._spec, preprocess)

    @torch.inference_mode()
    def measure(self, model: Model, exam: Exam) -> EvalResult:
        """Predict the same patches of held-out images every time."""
        task = self.make_task(exam.preprocess, exam.device)
        colors = self._config.mim.target in ("color", "colors")
        sums, skipped = torch.zeros(3, dtype=torch.float64), 0  # loss, right, images
        model.eval()
        for batch in exam.batches:
            exam.note(batch.bad)
            skipped += len(batch.bad)
            example = self._example(task, batch, exam.device)
            for start in range(0, len(batch.labels), exam.micro):
                part = example.part(start, start + exam.micro)
                losses, right = task.judge(model, part)
                ones = torch.ones_like(losses)
                each = torch.stack([losses, ones if right is None else right.to(losses), ones])
                sums += (each.double() @ part.weights.double()).cpu()
        loss, right, images, bad = exam.total(*sums.tolist(), float(skipped))
        if images == 0:
            raise InputError(f"there is nothing to measure: {bad:,.0f} images, none readable")
        values = {"loss": loss / images}
        if colors:
            values["right"] = right / images
        return EvalResult(-values["loss"], values, int(images), int(bad))

    @torch.inference_mode()
    def image(
        self, model: Model, source: ImageDataset, preprocess: Preprocess, device: torch.device
    ) -> np.ndarray | None:
        """Draw a row an image: as it is, as the model sees it, as it predicts it."""
        task = self.make_task(preprocess, device)
        batch = EvalBatches(source, preprocess, batch=_SHOWN)[0]
        model.eval()
        shown = task.show(model, self._example(task, batch, device))
        rows = torch.cat([each.flatten(0, 1) for each in shown], dim=1)  # beside each other
        if rows.shape[2] != 3:
            rows = rows[..., :1].expand(-1, -1, 3)
        return (255 * rows).round().to(torch.uint8).cpu().numpy()

    def keep(
        self,
        model: Model,
        tensors: dict[str, Tensor],
        preprocess: Preprocess,
        provenance: Provenance | None,
    ) -> Checkpoint:
        """Keep the encoder as a model of its own."""
        assert isinstance(model, MaskedImageModel)
        spec, encoder = model.spec, encoder_state(tensors)
        return Checkpoint(spec=spec, tensors=encoder, preprocess=preprocess, provenance=provenance)

    def apart(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep what predicts."""
        return {n: tensor for n, tensor in tensors.items() if not n.startswith(_ENCODER)}

    def _example(self, task: Predict, batch: Batch, device: torch.device) -> DeviceBatch:
        """Give each image a key of its own, which is the same whenever it is measured."""
        drawn = keys(0, "noise", 0, batch.indices.numpy())
        return task.prepare(batch, device)._replace(keys=torch.from_numpy(drawn))
