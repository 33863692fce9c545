"""What a run learns from, batch after batch: by number from a dataset, in order from a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.data.batches import Batch, TrainBatches
from vitrail.data.class_balance import resolve_balance
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.loader import Loader
from vitrail.data.rng import keys
from vitrail.data.streaming import Cursor, RawBatch, StreamBatches
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import ALONE, Shard
from vitrail.training.parts import Transform
from vitrail.training.train_config import TrainConfig

D = TypeVar("D", ImageDataset, ImageStream)


class TrainIterator(ABC, Generic[D]):
    """A run's batches from a cursor on; a restart needs that cursor and nothing else."""

    def __init__(
        self,
        data: D,
        config: TrainConfig,
        preprocess: Preprocess,
        transform: Transform | None = None,
        *,
        together: bool = False,
    ) -> None:
        self._data = data
        self._config, self._preprocess, self._transform = config, preprocess, transform
        self._together = together
        self.cursor = Cursor()
        """Where the next batch begins, as far as this process reads."""

    def _transformed(self, make: Callable[[Any], Batch]) -> Callable[[Any], Batch]:
        if self._transform is None:
            return make
        return _Transformed(make, self._transform, self._config.seed)

    @abstractmethod
    def open(self, total: int, shard: Shard) -> Loader[Any, Batch]:
        """Make this process's part of all batches from the cursor on, up to step `total`."""

    @abstractmethod
    def advance(self) -> None:
        """Move on after the batch that was just learned from."""

    @abstractmethod
    def names(self, cursor: Cursor) -> list[str]:
        """Name the images of the global batch at a cursor, each as often as it is in it."""


class DatasetIterator(TrainIterator[ImageDataset]):
    """Batches of a dataset."""

    def open(self, total: int, shard: Shard) -> Loader[Any, Batch]:
        """Make batches by their numbers."""
        steps = range(self.cursor.step, total)
        make = self._transformed(self._batches(shard).__getitem__)
        return Loader(make, steps, self._config.loader)

    def advance(self) -> None:
        """Count a step."""
        self.cursor = Cursor(self.cursor.step + 1)

    def names(self, cursor: Cursor) -> list[str]:
        """Look the images up by their numbers."""
        indices = self._batches(ALONE)[cursor.step].indices.tolist()
        return [self._data.where(index) for index in indices]

    def _batches(self, shard: Shard) -> TrainBatches:
        config = self._config
        return TrainBatches(
            self._data,
            config.augment,
            self._preprocess,
            batch=config.batch,
            seed=config.seed,
            shard=shard,
            repeats=config.repeats,
            mixed=False,  # the task mixes on the device
            together=self._together,
            balanced=resolve_balance(config.balance, self._data) == "sampling",
        )


class StreamIterator(TrainIterator[ImageStream]):
    """Batches of a stream."""

    def open(self, total: int, shard: Shard) -> Loader[Any, Batch]:
        """Read the stream from the cursor on in a thread of the loader, which also decodes."""
        # Where each batch ends that was read but not learned from; a new one for each reader.
        self._ahead = ahead = deque[Cursor]()
        batches = self._batches(shard)
        portions = islice(batches.portions(self.cursor), total - self.cursor.step)

        def read() -> Iterator[RawBatch]:
            for portion in portions:
                ahead.append(portion.after)
                yield portion

        make = self._transformed(batches.make)
        return Loader(make, read(), self._config.loader, read_ahead=True)

    def advance(self) -> None:
        """Go on to where the next batch begins."""
        self.cursor = self._ahead.popleft()

    def names(self, cursor: Cursor) -> list[str]:
        """Read the batch once more."""
        items = next(self._batches(ALONE).portions(cursor)).items
        return [items.where(number) for number in range(len(items))]

    def _batches(self, shard: Shard) -> StreamBatches:
        config = self._config
        return StreamBatches(
            self._data,
            config.augment,
            self._preprocess,
            batch=config.batch,
            seed=config.seed,
            shard=shard,
            repeats=config.repeats,
            together=self._together,
        )


@dataclass(frozen=True)
class _Transformed:
    """Makes batches and applies a transform of your own to each image, before any mixing."""

    make: Callable[[Any], Batch]
    transform: Transform
    seed: int

    def __call__(self, task: int | RawBatch) -> Batch:
        batch = self.make(task)
        step = task if isinstance(task, int) else task.after.step - 1
        numbers = keys(self.seed, "transform", step, batch.keys.numpy())
        images = batch.images.numpy().copy()
        for row, number in enumerate(numbers.tolist()):
            images[row] = apply_transform(self.transform, images[row], abs(number))
        return replace(batch, images=torch.from_numpy(images))


def apply_transform(transform: Transform, image: np.ndarray, seed: int) -> np.ndarray:
    """Apply a transform of your own to one image; refuse what it must not return."""
    made: Any = transform(image, np.random.default_rng(seed))
    if isinstance(made, np.ndarray) and (made.shape, made.dtype) == (image.shape, np.uint8):
        return made
    got = type(made).__name__
    if isinstance(made, np.ndarray):
        got = f"{made.dtype} of {made.shape}"
    raise InputError(f"the transform must return uint8 of shape {image.shape}, got {got}")


def open_iterator(
    data: ImageDataset | ImageStream,
    config: TrainConfig,
    preprocess: Preprocess,
    transform: Transform | None = None,
    *,
    together: bool = False,
) -> TrainIterator[Any]:
    """Iterate over a dataset or a stream; `together` keeps an image's copies in one process."""
    if transform is not None:  # what it returns is checked before anything is written
        if preprocess.patches:
            raise InputError(
                "a transform of your own needs images of one size; set preprocess.patches to 0"
            )
        channels = len(preprocess.mean)
        apply_transform(transform, np.zeros((*preprocess.size, channels), np.uint8), 0)
    if isinstance(data, ImageDataset):
        return DatasetIterator(data, config, preprocess, transform, together=together)
    return StreamIterator(data, config, preprocess, transform, together=together)


def count_images(data: ImageDataset | ImageStream) -> int | None:
    """Count the images of an epoch; None where a stream does not say."""
    return len(data) if isinstance(data, ImageDataset) else data.length
