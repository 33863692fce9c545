"""What a run learns from, batch after batch: by number from a set, in a row from a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from vitrail.data.batches import Batch, TrainBatches
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.loader import Loader
from vitrail.data.streaming import Cursor, RawBatch, StreamBatches
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import ALONE, Shard
from vitrail.training.train_config import TrainConfig


class TrainIterator(ABC):
    """A run's batches from some place on; a restart needs that place and nothing else."""

    def __init__(self, config: TrainConfig, preprocess: Preprocess) -> None:
        self._config, self._preprocess = config, preprocess
        self.place = Cursor()
        """Where the next batch begins; of a set, only its step counts."""

    @abstractmethod
    def open(self, total: int, shard: Shard) -> Loader[Any, Batch]:
        """Make this process's part of all batches from the place on, up to step `total`."""

    @abstractmethod
    def advance(self) -> None:
        """Go on to the place after the batch that was just learnt from."""

    @abstractmethod
    def names(self) -> list[str]:
        """Name the images of the global batch at the place, each as often as it is in it."""


class DatasetIterator(TrainIterator):
    """Batches of a set."""

    def __init__(self, source: ImageDataset, config: TrainConfig, preprocess: Preprocess) -> None:
        super().__init__(config, preprocess)
        self._source = source

    def open(self, total: int, shard: Shard) -> Loader[Any, Batch]:
        """Make batches by their numbers."""
        steps = range(self.place.step, total)
        return Loader(self._batches(shard).__getitem__, steps, self._config.loader)

    def advance(self) -> None:
        """Count a step."""
        self.place = Cursor(self.place.step + 1)

    def names(self) -> list[str]:
        """Look the images up by their numbers."""
        indices = self._batches(ALONE)[self.place.step].indices.tolist()
        return [self._source.where(index) for index in indices]

    def _batches(self, shard: Shard) -> TrainBatches:
        config = self._config
        return TrainBatches(
            self._source,
            config.augment,
            self._preprocess,
            batch=config.batch,
            seed=config.seed,
            shard=shard,
            repeats=config.repeats,
            mixed=False,  # the task mixes on the device
        )


class StreamIterator(TrainIterator):
    """Batches of a stream."""

    def __init__(self, stream: ImageStream, config: TrainConfig, preprocess: Preprocess) -> None:
        super().__init__(config, preprocess)
        self._stream = stream
        self._ahead: deque[Cursor] = deque()  # where each batch ends that was read but not learnt

    def open(self, total: int, shard: Shard) -> Loader[Any, Batch]:
        """Read the stream from the place on, and leave the decoding to the loader."""
        self._ahead.clear()
        batches = self._batches(shard)
        return Loader(batches.make, self._read(batches, total), self._config.loader)

    def _read(self, batches: StreamBatches, total: int) -> Iterator[RawBatch]:
        for portion in islice(batches.portions(self.place), total - self.place.step):
            self._ahead.append(portion.after)
            yield portion

    def advance(self) -> None:
        """Go on to where the next batch begins."""
        self.place = self._ahead.popleft()

    def names(self) -> list[str]:
        """Read the batch once more."""
        items = next(self._batches(ALONE).portions(self.place)).items
        return [items.where(number) for number in range(len(items))]

    def _batches(self, shard: Shard) -> StreamBatches:
        config = self._config
        return StreamBatches(
            self._stream,
            config.augment,
            self._preprocess,
            batch=config.batch,
            seed=config.seed,
            shard=shard,
            repeats=config.repeats,
        )


def open_feed(
    data: ImageDataset | ImageStream, config: TrainConfig, preprocess: Preprocess
) -> TrainIterator:
    """Feed a run from a set or a stream."""
    kind = DatasetIterator if isinstance(data, ImageDataset) else StreamIterator
    return kind(data, config, preprocess)  # pyright: ignore[reportArgumentType]
