"""Learning without labels: a model predicts the patches that it was not shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.batches import Batch, EvalBatches
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.rng import keys
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import send
from vitrail.models import parse
from vitrail.models.model import Model
from vitrail.models.pretraining.masked import MaskedAutoencoder, MaskedImageModel, MaskedViT
from vitrail.models.pretraining.masking import Masking, gather_patches, sample_masking
from vitrail.models.pretraining.mim import MIMConfig, encoder_spec
from vitrail.models.pretraining.patch_targets import (
    image_patches,
    make_targets,
    patchify,
    prediction_loss,
    unpatchify,
)
from vitrail.models.vit import ViT
from vitrail.training.best_tracker import EvalResult
from vitrail.training.start import start_weights
from vitrail.training.task import DeviceBatch, Task
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint, Provenance
from vitrail.weights.formats.mae_decoder import Decoder, DecoderFacts

log = logging.getLogger("vitrail")

_ENCODER = "encoder."
_SHOWN = 6  # images of the validation split


def encoder_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the encoder alone, from those of a model in pre-training."""
    return {
        name.removeprefix(_ENCODER): tensor
        for name, tensor in tensors.items()
        if name.startswith(_ENCODER)
    }


def prediction_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of what predicts, from those of a model in pre-training."""
    return {name: each for name, each in tensors.items() if not name.startswith(_ENCODER)}


class MaskedImageModeling(Task):
    """Predict the chosen patches of each image; its key of the step says which ones."""

    needs_labels = False

    def __init__(self, config: TrainConfig, dataset: ImageDataset | ImageStream) -> None:
        super().__init__(config, dataset)
        self.mim: MIMConfig = config.mim
        self.spec = encoder_spec(parse(config.model))
        first = torch.zeros(1, dtype=torch.long)
        sample_masking(first, self.spec.grid, self.mim.mask)  # refuses what can't be masked

    def setup(self, preprocess: Preprocess, device: torch.device) -> None:
        """Bring what normalizes pixels to the device, too."""
        super().setup(preprocess, device)
        self.mean, self.std = torch.tensor([preprocess.mean, preprocess.std], device=device)

    def start(self, checkpoint: Checkpoint | None = None) -> Checkpoint:
        """Return weights of an encoder, which has no head."""
        return start_weights(replace(self.config, model=str(self.spec)), (), checkpoint)

    def build(self, checkpoint: Checkpoint) -> Model:
        """Put what predicts beside the encoder."""
        encoder = checkpoint.build()
        assert isinstance(encoder, ViT)
        if encoder.pooling is not None:  # no prediction goes through it
            encoder.pooling.requires_grad_(False)
        if self.config.task == "mae":
            return self._put_decoder(encoder, checkpoint.decoder)
        return MaskedViT(encoder, self.mim.target)

    def _put_decoder(self, encoder: ViT, decoder: Decoder | None) -> MaskedAutoencoder:
        """Take the decoder that came with the weights, where it is as the settings say."""
        wanted = self._decoder_facts()
        if decoder is not None and decoder.facts == wanted:
            return decoder.build(encoder).train()
        if decoder is not None:
            made, target = decoder.facts.config, decoder.facts.target
            of = f"{target} of the {decoder.facts.pixels} image"
            log.info("decoder  fresh: that of the weights is %s, for %s", made, of)
        return MaskedAutoencoder(encoder, self.mim.target, self.mim.decoder)

    def prepare(self, batch: Batch) -> DeviceBatch:
        """Normalize on the device; what is compared with is the image itself, as it was."""
        assert batch.mix is None, "a mixture of images has no patches to predict"
        inputs = normalize(batch.images, self.preprocess, device=self.device)
        images, weights = (send(each, self.device) for each in (batch.images, batch.weights))
        return DeviceBatch(inputs, images, weights, batch.keys)

    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        """Compare predictions with the patches that the model did not see."""
        predictions, masking = self._predict(model, batch)
        return self._distance(predictions, self._true_patches(batch, masking))

    def image_metrics(self, model: nn.Module, batch: DeviceBatch) -> dict[str, Tensor]:
        """Return each image's loss and, for colors, the fraction that is correct."""
        predictions, masking = self._predict(model, batch)
        patches = self._true_patches(batch, masking)
        found = {"loss": self._distance(predictions, patches)}
        if self.mim.target in ("color", "colors"):
            classes = make_targets(patches, self.spec.stride, self.mim.target)
            said = predictions.unflatten(-1, (classes.shape[-1], -1)).argmax(-1)
            found["correct"] = (said == classes).flatten(1).double().mean(1)
        return found

    def outputs(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        """Return the encoder's features of whole images."""
        assert isinstance(model, MaskedImageModel)
        return model.encoder(batch.inputs)

    @torch.inference_mode()
    def draw(self, model: Model, dataset: ImageDataset) -> np.ndarray | None:
        """Draw one row per image: as it is, as the model sees it, as it predicts it."""
        batch = EvalBatches(dataset, self.preprocess, batch=_SHOWN)[0]
        drawn = torch.from_numpy(keys(0, "noise", 0, batch.indices.numpy()))
        model.eval()
        columns = self._show(model, self.prepare(batch)._replace(keys=drawn))
        rows = torch.cat([each.flatten(0, 1) for each in columns], dim=1)
        if rows.shape[2] != 3:
            rows = rows[..., :1].expand(-1, -1, 3)
        return (255 * rows).round().to(torch.uint8).cpu().numpy()

    def to_checkpoint(
        self,
        model: Model,
        tensors: dict[str, Tensor],
        provenance: Provenance | None,
        evaluated: EvalResult | None,
    ) -> Checkpoint:
        """Keep the encoder as a model of its own."""
        assert isinstance(model, MaskedImageModel)
        return Checkpoint(
            spec=model.spec,
            tensors=encoder_state(tensors),
            preprocess=self.preprocess,
            provenance=provenance,
            decoder=self._decoder(tensors) if self.config.task == "mae" else None,
        )

    def extra_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep what predicts; MAE's decoder goes with the model."""
        return {} if self.config.task == "mae" else prediction_state(tensors)

    def _decoder(self, tensors: dict[str, Tensor]) -> Decoder:
        return Decoder(facts=self._decoder_facts(), tensors=prediction_state(tensors))

    def _decoder_facts(self) -> DecoderFacts:
        mim = self.mim
        return DecoderFacts(config=mim.decoder, target=mim.target, pixels=mim.pixels)

    def _predict(self, model: nn.Module, batch: DeviceBatch) -> tuple[Tensor, Masking]:
        height, width = batch.inputs.shape[2:]
        grid = height // self.spec.stride[0], width // self.spec.stride[1]
        masking = sample_masking(batch.keys.to(batch.inputs.device), grid, self.mim.mask)
        return model(batch.inputs, masking), masking

    def _true_patches(self, batch: DeviceBatch, masking: Masking) -> Tensor:
        patches = patchify(batch.targets, self.spec.stride)
        return self._scale(gather_patches(patches, masking.chosen).float() / 255)

    def _scale(self, colors: Tensor) -> Tensor:
        """Put colors (…, channels) from 0 to 1 on the scale of the targets."""
        return colors if self.mim.pixels == "raw" else (colors - self.mean) / self.std

    def _unscale(self, values: Tensor) -> Tensor:
        """Put values on the scale of the targets back to colors from 0 to 1."""
        return (values if self.mim.pixels == "raw" else values * self.std + self.mean).clamp(0, 1)

    def _distance(self, predictions: Tensor, patches: Tensor) -> Tensor:
        target, absolute = self.mim.target, self.mim.distance == "absolute"
        targets = make_targets(patches, self.spec.stride, target)
        return prediction_loss(predictions, targets, target, absolute=absolute)

    def _show(self, model: nn.Module, batch: DeviceBatch) -> list[Tensor]:
        """Return images (n, height, width, channels) from 0 to 1: true, masked, predicted."""
        predictions, masking = self._predict(model, batch)
        stride = self.spec.stride
        patches = patchify(batch.targets.float() / 255, stride)
        true = gather_patches(patches, masking.chosen)
        places = masking.chosen[..., None, None].expand_as(true)
        masked = patches.scatter(1, places, 0.5)
        scaled = image_patches(predictions, self._scale(true), stride, self.mim.target)
        predicted = self._unscale(scaled)
        filled = patches.scatter(1, places, predicted.to(patches))
        grid = batch.targets.shape[1] // stride[0], batch.targets.shape[2] // stride[1]
        return [unpatchify(each, grid, stride) for each in (patches, masked, filled)]
