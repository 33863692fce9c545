"""Few-shot accuracy of a model that is still being trained, on data of its own."""

from __future__ import annotations

import torch

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_dataset, whole_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.split import NoSplitError
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.probes.fewshot import check_shots, fit_shots
from vitrail.training.train_config import FewShotConfig
from vitrail.weights.checkpoint import Checkpoint


class FewShotMonitor:
    """Measures what `vitrail fewshot` would measure of the model folder at this moment."""

    def __init__(self, config: FewShotConfig, loader: LoaderConfig, device: torch.device) -> None:
        """Open the images; refuse those that the shots can't be sampled from."""
        self._config, self._loader, self._device = config, loader, device
        self._train = open_dataset(config.data, split="train")
        self._test = _open_test(config.data)
        if len(self._train.classes) < 2:
            raise InputError(f"fewshot.data: {self._train.name} has one class; expected several")
        check_shots(self._train, config.shots, config.seeds)

    def measure(self, checkpoint: Checkpoint) -> dict[str, float]:
        """Give the mean accuracy over samples of the shots, by the name of its metric."""
        model, preprocess = checkpoint.build(), checkpoint.preprocess
        assert preprocess is not None
        train, test = (
            extract(model, images, preprocess, device=self._device, loader=self._loader)
            for images in (self._train, self._test)
        )
        found = fit_shots(train, test, shots=self._config.shots, seeds=self._config.seeds)
        return {f"fewshot/{each.shots}": float(each.accuracy[0].mean()) for each in found}


def _open_test(data: str) -> ImageDataset:
    whole = whole_data(data)
    try:
        return open_dataset(whole, split="test")
    except NoSplitError:
        return open_dataset(whole, split="val")
