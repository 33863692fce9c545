"""Learning without labels: a model predicts the patches that it was not shown."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.data.batches import Batch
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models.pretraining.masked import MIMConfig
from vitrail.models.pretraining.masking import Masking, gather_patches, sample_masking
from vitrail.models.pretraining.patch_targets import (
    image_patches,
    make_targets,
    patchify,
    prediction_loss,
    unpatchify,
)
from vitrail.models.spec import ViTSpec
from vitrail.training.tasks import DeviceBatch


class Predict:
    """Predict the chosen patches of each image; which ones, its key of the step says."""

    def __init__(self, config: MIMConfig, spec: ViTSpec, preprocess: Preprocess) -> None:
        self._config, self._spec, self._preprocess = config, spec, preprocess
        sample_masking(torch.zeros(1, dtype=torch.long), spec.grid, config.mask)  # or refuse now

    def prepare(self, batch: Batch, device: torch.device) -> DeviceBatch:
        """Normalize on the device; the target is the image itself, as it was."""
        assert batch.mix is None, "a mixture of images has no patches to predict"
        inputs = normalize(batch.images, self._preprocess, device=device)
        return DeviceBatch(inputs, batch.images.to(device), batch.weights.to(device), batch.keys)

    def losses(self, model: nn.Module, example: DeviceBatch) -> Tensor:
        """Compare predictions with the patches, those only that the model did not see."""
        predictions, masking = self._predict(model, example)
        return self._distance(predictions, self._true_patches(example, masking))

    def judge(self, model: nn.Module, example: DeviceBatch) -> tuple[Tensor, Tensor | None]:
        """Give each image's loss, and the part of its colors that is right, if colors are."""
        predictions, masking = self._predict(model, example)
        patches = self._true_patches(example, masking)
        losses = self._distance(predictions, patches)
        if self._config.target not in ("color", "colors"):
            return losses, None
        classes = make_targets(patches, self._spec.stride, self._config.target)
        said = predictions.unflatten(-1, (classes.shape[-1], -1)).argmax(-1)
        return losses, (said == classes).flatten(1).double().mean(1)

    def show(self, model: nn.Module, example: DeviceBatch) -> Shown:
        """Give images as they are, as the model sees them, and as it predicts them."""
        predictions, masking = self._predict(model, example)
        spec, target = self._spec, self._config.target
        patches = patchify(example.targets.float() / 255, spec.stride)
        true = gather_patches(patches, masking.chosen)
        places = masking.chosen[..., None, None].expand_as(true)
        hidden = patches.scatter(1, places, 0.5)
        guessed = image_patches(predictions, true, spec.stride, target)
        filled = patches.scatter(1, places, guessed.to(patches))
        grid = (
            example.targets.shape[1] // spec.stride[0],
            example.targets.shape[2] // spec.stride[1],
        )
        return Shown(*(unpatchify(each, grid, spec.stride) for each in (patches, hidden, filled)))

    def _predict(self, model: nn.Module, example: DeviceBatch) -> tuple[Tensor, Masking]:
        height, width = example.inputs.shape[2:]
        grid = height // self._spec.stride[0], width // self._spec.stride[1]
        keys = example.keys.to(example.inputs.device)
        masking = sample_masking(keys, grid, self._config.mask)
        return model(example.inputs, masking), masking

    def _true_patches(self, example: DeviceBatch, masking: Masking) -> Tensor:
        patches = patchify(example.targets, self._spec.stride)
        return gather_patches(patches, masking.chosen).float() / 255

    def _distance(self, predictions: Tensor, patches: Tensor) -> Tensor:
        config = self._config
        targets = make_targets(patches, self._spec.stride, config.target)
        return prediction_loss(
            predictions, targets, config.target, absolute=config.distance == "absolute"
        )


class Shown(NamedTuple):
    """Images (batch, height, width, channels) from 0 to 1."""

    original: Tensor
    corrupted: Tensor
    """With gray where patches were chosen."""
    predicted: Tensor
    """With predictions where patches were chosen."""
