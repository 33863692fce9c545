"""Batches of a stream, whose images have no index: read in lanes, resumed by shard and offset.

A global batch is cut into lanes, as many as the batch can be divided into and there are shards for.
In each epoch the shards are shuffled and dealt to the lanes; a lane reads its own one after the
other, shuffles block after block of images, and goes on to the next epoch. So a process reads only
the lanes that its part of the batch is made of (with mixup or CutMix also the lane before them),
the batches are the same for any number of processes, and a lane resumes at the shard and offset
where its block begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import lcm
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.data.batches import Batch, assemble, check_batch, number_copies, places_of, sort_copies
from vitrail.data.dataset import Content, ImageDataset, ImageStream, StreamItem
from vitrail.data.rng import CounterRNG, shuffled
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.mixing import Mix, draw_mix
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import ALONE, Shard

_LANES = 32  # at most: shards that are read side by side


class LaneCursor(NamedTuple):
    """Where a lane goes on."""

    epoch: int = 0
    turn: int = 0
    """Which of its shards of the epoch its block begins in."""
    offset: int = 0
    """Where in that shard."""
    block: int = 0
    """The number of the block, over all epochs."""
    taken: int = 0
    """Images of the block that earlier batches have used."""


@dataclass(frozen=True)
class Cursor:
    """Where the next batch starts; for a dataset, only its step counts."""

    step: int = 0
    lanes: Mapping[int, LaneCursor] = field(default_factory=dict)
    """Where each lane of a stream goes on; a lane that is not here starts from the beginning."""

    def save(self) -> list[Any]:
        """Return it as plain data."""
        return [self.step, [[lane, *at] for lane, at in sorted(self.lanes.items())]]

    @classmethod
    def load(cls, saved: list[Any]) -> Cursor:
        """Read what was saved."""
        step, *rest = saved
        lanes = rest[0] if rest and isinstance(rest[0], list) else []
        return cls(step, {lane: LaneCursor(*at) for lane, *at in lanes})


def join_cursors(cursors: list[Cursor]) -> Cursor:
    """Join what each process knows of the lanes."""
    lanes = {lane: at for each in cursors for lane, at in each.lanes.items()}
    return Cursor(cursors[0].step, lanes)


class RawBatch(NamedTuple):
    """A process's share of one global batch, read but not decoded."""

    items: ImageDataset
    positions: np.ndarray
    """The number of each image in the endless sequence of all."""
    copies: np.ndarray
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
        content = self._items[index].content
        if isinstance(content, OSError):
            raise content
        return content

    def where(self, index: int) -> str:
        """Name the image as the stream did."""
        return self._items[index].where


class _Image(NamedTuple):
    """An image of a lane, and where the lane goes on before and after it."""

    item: StreamItem
    before: LaneCursor
    after: LaneCursor


class _Row(NamedTuple):
    """A row of a batch: a copy of an image, and where its lane goes on."""

    item: StreamItem
    after: LaneCursor


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
        self.stream, self.augment = stream, augment
        self.preprocess = preprocess.read_as(stream)
        self.batch, self.seed, self.shard, self.repeats = batch, seed, shard, repeats
        self.lanes = count_lanes(batch, stream.shards)
        self._rows = batch // self.lanes  # of a batch, per lane
        self._parts = lcm(self.lanes, shard.count) if together else self.lanes

    def portions(self, start: Cursor) -> Iterator[RawBatch]:
        """Read this process's share of each batch from a cursor on, without end."""
        mixes = self.augment.mixup > 0 or self.augment.cutmix > 0
        ours = set((places_of(self.batch, self.shard, partner=mixes) // self._rows).tolist())
        if start.step and not ours <= start.lanes.keys():
            raise InputError(
                f"the place in {self.stream.name} at step {start.step:,} is not known: it was "
                f"saved by an older version or with other shards; start a new run"
            )
        lanes = {lane: self._repeat(lane, start) for lane in sorted(ours)}
        for step in count(start.step):
            rows = {lane: list(islice(row, self._rows)) for lane, row in lanes.items()}
            mix = draw_mix(self.augment, self.preprocess.size, self.seed, step)
            within = step * self._rows + np.arange(self._rows)
            copies = np.tile(within % self.repeats, self.lanes)
            places = places_of(self.batch, self.shard, partner=mix is not None)
            chosen = sort_copies(copies, self._parts)[places]
            owners, turns = np.divmod(chosen, self._rows)
            pairs = zip(owners.tolist(), turns.tolist(), strict=True)
            yield RawBatch(
                items=_Read(self.stream, [rows[lane][turn].item for lane, turn in pairs]),
                positions=within[turns] // self.repeats * self.lanes + owners,
                copies=copies[chosen],
                mix=mix,
                after=Cursor(step + 1, {lane: row[-1].after for lane, row in rows.items()}),
            )

    def make(self, portion: RawBatch) -> Batch:
        """Decode and augment a share."""
        rng = CounterRNG(self.seed, "image", portion.copies, portion.positions)
        numbers = np.arange(len(portion.items))
        made = assemble(portion.items, numbers, self.preprocess, self.augment, rng, portion.mix)
        copies = number_copies(np.zeros_like(portion.copies), portion.copies, self.repeats)
        return replace(made, indices=torch.from_numpy(portion.positions), copies=copies)

    def _repeat(self, lane: int, start: Cursor) -> Iterator[_Row]:
        """Repeat each image of a lane; the first may have been started by an earlier batch."""
        copy = start.step * self._rows % self.repeats
        for image in self._shuffle(lane, start.lanes.get(lane, LaneCursor())):
            while copy < self.repeats:
                copy += 1
                yield _Row(image.item, image.after if copy == self.repeats else image.before)
            copy = 0

    def _shuffle(self, lane: int, start: LaneCursor) -> Iterator[_Image]:
        """Shuffle a lane's images block by block; for each that leaves, one of the next is read."""
        size = max(1, self.stream.buffer // self.lanes)
        images = self._read(lane, start)
        block = [*islice(images, size)]
        before = start
        for number in count(start.block):
            order = shuffled(size, self.seed, "buffer", number * self.lanes + lane)
            begin, ahead = block[0][0], []
            for turn, place in enumerate(order.tolist(), 1):
                ahead.append(next(images))
                after = begin._replace(block=number, taken=turn)
                if turn == size:
                    after = ahead[0][0]._replace(block=number + 1)
                item = block[place][1]
                block[place] = ahead[0]  # so that what has left is not held
                if number > start.block or turn > start.taken:
                    yield _Image(item, before, after)
                before = after
            block = ahead

    def _read(self, lane: int, start: LaneCursor) -> Iterator[tuple[LaneCursor, StreamItem]]:
        """Read a lane's images epoch after epoch, each with where it begins."""
        first, offset, empty = start.turn, start.offset, 0
        for epoch in count(start.epoch):
            shards = shuffled(self.stream.shards, self.seed, "order", epoch)[lane :: self.lanes]
            for turn, shard in enumerate(shards[first:].tolist(), first):
                empty += 1
                for after, item in self.stream.read_shard(shard, offset):
                    yield LaneCursor(epoch, turn, offset), item
                    offset, empty = after, 0
                offset = 0
                if empty > self.stream.shards:
                    raise InputError(f"{self.stream.name} has no images to train on")
            first = 0


def count_lanes(batch: int, shards: int) -> int:
    """Count the lanes: the largest divisor of the batch that there are shards for, at most 32."""
    return max(n for n in range(1, min(batch, shards, _LANES) + 1) if batch % n == 0)
