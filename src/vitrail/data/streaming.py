"""Batches of a stream, whose images have no index.

Every process reads the same sequence of encoded images and decodes its own share of each batch. A
cursor of three integers says where to resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.data.batches import Batch, assemble, check_batch, number_copies, places_of, sort_copies
from vitrail.data.dataset import (
    Content,
    ImageDataset,
    ImageStream,
    StreamItem,
    UnreadableImage,
)
from vitrail.data.rng import CounterRNG
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.mixing import Mix, draw_mix
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import ALONE, Shard


@dataclass(frozen=True)
class Cursor:
    """Where in a stream the next batch starts."""

    step: int = 0
    epoch: int = 0
    taken: int = 0
    """Images of the epoch that earlier batches have used."""


class RawBatch(NamedTuple):
    """A process's share of one global batch, read but not decoded."""

    items: ImageDataset
    epochs: np.ndarray
    positions: np.ndarray
    copies: np.ndarray
    first: int
    """The epoch of the global batch's first image."""
    mix: Mix | None
    after: Cursor
    """Where the next batch starts."""


class _Read(ImageDataset):
    """A few images of a stream as a dataset."""

    def __init__(self, stream: ImageStream, items: list[StreamItem]) -> None:
        kind = np.uint8 if stream.multilabel else np.int64
        labels = np.array([item.label for item in items], kind)
        super().__init__(stream.name, stream.classes, labels)
        self._items = items

    def read(self, index: int) -> Content:
        """Return what was read."""
        return self._items[index].content

    def where(self, index: int) -> str:
        """Name the image as the stream did."""
        return self._items[index].where

    def unreadable(self, index: int, reason: str, kind: str) -> UnreadableImage:
        """Describe an image that could not be used, the same way in each epoch."""
        item = self._items[index]
        return UnreadableImage(item.where, reason, kind, item.identity)


class StreamBatches:
    """Training batches of a stream, one after the other, for one process of several."""

    def __init__(
        self,
        stream: ImageStream,
        augment: Augment,
        preprocess: Preprocess,
        *,
        batch: int,
        seed: int,
        shard: Shard = ALONE,
        repeats: int = 1,
        together: bool = False,
    ) -> None:
        check_batch(batch, shard)
        self.stream, self.augment, self.preprocess = stream, augment, preprocess
        self.batch, self.seed, self.shard, self.repeats = batch, seed, shard, repeats
        self._parts = shard.count if together else 1

    def portions(self, start: Cursor) -> Iterator[RawBatch]:
        """Read this process's share of each batch from a cursor on, without end."""
        row = self._repeat(self._row(start.epoch, start.taken), start.step * self.batch)
        step = start.step
        while True:
            whole = list(islice(row, self.batch))
            mix = draw_mix(self.augment, self.preprocess.size, self.seed, step)
            places = places_of(self.batch, self.shard, partner=mix is not None)
            order = sort_copies(np.array([copy for copy, *_ in whole]), self._parts)
            mine = [whole[place] for place in order[places]]
            step += 1
            copy, epoch, position, _ = whole[-1]
            yield RawBatch(
                items=_Read(self.stream, [item for *_, item in mine]),
                epochs=np.array([epoch for _, epoch, _, _ in mine]),
                positions=np.array([position for _, _, position, _ in mine]),
                copies=np.array([copy for copy, *_ in mine]),
                first=whole[0][1],
                mix=mix,
                after=Cursor(step, epoch, position + (copy + 1 == self.repeats)),
            )

    def make(self, portion: RawBatch) -> Batch:
        """Decode and augment a share."""
        times = portion.epochs * self.repeats + portion.copies
        rng = CounterRNG(self.seed, "image", times, portion.positions)
        numbers = np.arange(len(portion.items))
        made = assemble(portion.items, numbers, self.preprocess, self.augment, rng, portion.mix)
        copies = number_copies(portion.epochs - portion.first, portion.copies, self.repeats)
        return replace(made, indices=torch.from_numpy(portion.positions), copies=copies)

    def _repeat(
        self, row: Iterator[tuple[int, int, StreamItem]], place: int
    ) -> Iterator[tuple[int, int, int, StreamItem]]:
        """Repeat each image; the first may have been started by an earlier batch."""
        copy = place % self.repeats
        for epoch, position, item in row:
            while copy < self.repeats:
                yield copy, epoch, position, item
                copy += 1
            copy = 0

    def _row(self, epoch: int, start: int) -> Iterator[tuple[int, int, StreamItem]]:
        """Yield the images of an epoch from a position on, then those of the next, and so on."""
        while True:
            position = start
            for item in self.stream.items(self.seed, epoch, start):
                yield epoch, position, item
                position += 1
            if position == 0:
                raise InputError(f"{self.stream.name} has no images to train on")
            epoch, start = epoch + 1, 0
