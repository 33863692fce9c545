"""Batches of a stream, whose pictures can't be reached by number.

Every process reads the same row of encoded pictures and decodes its own share of each batch. Where
it stands is two integers, from which a restart goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from vitrail.config import InputError
from vitrail.data.augment import Augment
from vitrail.data.batches import ALONE, Batch, Shard, assemble, check_batch, places_of
from vitrail.data.draws import Draws
from vitrail.data.mixing import Mix, draw_mix
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Content, Source, Stream, Streamed


@dataclass(frozen=True)
class Place:
    """Where in a stream the next batch begins."""

    step: int = 0
    epoch: int = 0
    taken: int = 0
    """Pictures of the epoch that earlier batches took."""


class Portion(NamedTuple):
    """A process's share of one global batch, read but not decoded."""

    items: Source
    epochs: np.ndarray
    positions: np.ndarray
    mix: Mix | None
    after: Place
    """Where the next batch begins."""


class _Read(Source):
    """A few pictures of a stream, by their number among them."""

    def __init__(self, stream: Stream, items: list[Streamed]) -> None:
        kind = np.uint8 if stream.multilabel else np.int64
        labels = np.array([item.label for item in items], kind)
        super().__init__(stream.name, stream.classes, labels)
        self._items = items

    def read(self, index: int) -> Content:
        """Hand out what was read."""
        return self._items[index].content

    def where(self, index: int) -> str:
        """Name the picture as the stream did."""
        return self._items[index].where


class StreamBatches:
    """Training batches of a stream, one after the other, for one process of several."""

    def __init__(
        self,
        stream: Stream,
        augment: Augment,
        preprocess: Preprocess,
        *,
        batch: int,
        seed: int,
        shard: Shard = ALONE,
    ) -> None:
        check_batch(batch, shard)
        self.stream, self.augment, self.preprocess = stream, augment, preprocess
        self.batch, self.seed, self.shard = batch, seed, shard

    def portions(self, start: Place) -> Iterator[Portion]:
        """Read this process's share of each batch from a place on, without end."""
        row = self._row(start.epoch, start.taken)
        step = start.step
        while True:
            whole = list(islice(row, self.batch))
            mix = draw_mix(self.augment, self.preprocess.size, self.seed, step)
            mine = [whole[p] for p in places_of(self.batch, self.shard, partner=mix is not None)]
            step += 1
            epoch, position, _ = whole[-1]
            yield Portion(
                items=_Read(self.stream, [item for _, _, item in mine]),
                epochs=np.array([epoch for epoch, _, _ in mine]),
                positions=np.array([position for _, position, _ in mine]),
                mix=mix,
                after=Place(step, epoch, position + 1),
            )

    def make(self, portion: Portion) -> Batch:
        """Decode and augment a share."""
        draws = Draws(self.seed, "picture", portion.epochs, portion.positions)
        numbers = np.arange(len(portion.items))
        return assemble(portion.items, numbers, self.preprocess, self.augment, draws, portion.mix)

    def _row(self, epoch: int, start: int) -> Iterator[tuple[int, int, Streamed]]:
        """Give the pictures of an epoch from a position on, then those of the next, and so on."""
        while True:
            position = start
            for item in self.stream.items(self.seed, epoch, start):
                yield epoch, position, item
                position += 1
            if position == 0:
                raise InputError(f"{self.stream.name} has no pictures to train on")
            epoch, start = epoch + 1, 0
