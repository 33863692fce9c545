"""A run's evaluations on held-out images while it trains."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.config import InputError
from vitrail.data.batches import Batch, EvalBatches
from vitrail.data.dataset import ImageDataset, UnreadableImage
from vitrail.data.loader import Loader
from vitrail.data.unreadable import UnreadableImages
from vitrail.distributed import Processes
from vitrail.files import write_whole
from vitrail.models.model import Model
from vitrail.signals import Signals
from vitrail.training.best_tracker import EvalResult
from vitrail.training.checkpoints.sharding import unsharded
from vitrail.training.loop import StopRequested
from vitrail.training.task import Task
from vitrail.training.train_config import TrainConfig

log = logging.getLogger("vitrail")


class Validator:
    """Measures a model on a run's validation images, in all processes together."""

    def __init__(
        self, dataset: ImageDataset, task: Task, config: TrainConfig, processes: Processes
    ) -> None:
        self.dataset, self.task = dataset, task
        self._config, self._processes = config, processes
        self.unreadable = UnreadableImages(dataset.name, len(dataset), config.max_unreadable)

    def evaluate(self, model: Model, signals: Signals, *, micro_batch: int) -> EvalResult:
        """Evaluate on all images; a signal ends it with StopRequested."""
        batches = EvalBatches(
            self.dataset,
            self.task.preprocess,
            batch=self._config.batch,
            shard=self._processes.shard,
        )
        loader = Loader(batches.__getitem__, range(len(batches)), self._config.loader)
        with closing(self._until_stopped(loader, signals)) as made, unsharded(model):
            return self.task.evaluate(
                model, made, micro_batch=micro_batch, processes=self._processes
            )

    def draw(self, model: Model, path: Path) -> np.ndarray | None:
        """Write an image of what the model makes of some of them, where there is one to see."""
        with unsharded(model):
            drawn = self.task.draw(model, self.dataset) if self._processes.is_main else None
        if drawn is not None:
            Image.fromarray(drawn).save(png := io.BytesIO(), "png")
            try:
                write_whole(path, png.getvalue())
            except InputError as error:  # no run stops for an image
                log.warning("%s", error)
        return drawn

    def _until_stopped(
        self, batches: Iterable[Batch], signals: Signals
    ) -> Generator[Batch, None, None]:
        bad: list[UnreadableImage] = []
        for batch in batches:
            if self._processes.any(signals.number > 0):
                raise StopRequested
            bad += batch.bad
            yield batch
        # All processes learn of all images, so that they refuse too many together.
        self.unreadable.note(image for each in self._processes.gather(bad) for image in each)
