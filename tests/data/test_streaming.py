"""Batches of streams: one order for any number of processes and any start, each shard read once."""

import itertools
import json
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sets import HALF, Counted, Listed, images
from tests.shelf import refusal
from vitrail.data.batches import assemble
from vitrail.data.rng import CounterRNG, shuffled
from vitrail.data.streaming import Cursor, RawBatch, StreamBatches, count_lanes
from vitrail.data.transforms.augment import AUGMENTS, Augment
from vitrail.distributed import Shard

SET = images(23)
PLAIN = Augment(crop="whole", flip=0)


def first(batches: StreamBatches, count: int, start: Cursor | None = None) -> list[RawBatch]:
    return list(itertools.islice(batches.portions(start or Cursor()), count))


def lane_order(
    lane: int, lanes: int, shards: int, buffer: int, seed: int, epochs: int
) -> list[int]:
    """Order a lane's images by the rules alone: shards dealt, then shuffled block by block."""
    row = []
    for epoch in range(epochs):
        for shard in shuffled(shards, seed, "order", epoch).tolist()[lane::lanes]:
            row += range(shard, len(SET), shards)
    size, found = max(1, buffer // lanes), []
    for block in range(len(row) // size):
        order = shuffled(size, seed, "buffer", block * lanes + lane).tolist()
        found += [row[block * size + place] for place in order]
    return found


@settings(max_examples=15)
@given(
    batch=st.sampled_from([1, 2, 4, 6]),
    shards=st.integers(1, 7),
    buffer=st.integers(1, 20),
    repeats=st.integers(1, 3),
)
def test_the_batches_are_those_of_a_dataset_in_that_order(
    batch: int, shards: int, buffer: int, repeats: int
) -> None:
    """Also where an image's copies belong to two batches."""
    stream, level, steps = Counted(SET, shards, buffer), AUGMENTS["light1"], 8
    batches = StreamBatches(stream, level, HALF, batch=batch, seed=3, repeats=repeats)
    lanes, rows = batches.lanes, batch // batches.lanes
    orders = [lane_order(lane, lanes, shards, buffer, 3, 60) for lane in range(lanes)]
    for step, portion in enumerate(first(batches, steps)):
        turns = [step * rows + row for row in range(rows)]
        turns.sort(key=lambda turn: turn % repeats)
        places = [(lane, *divmod(turn, repeats)) for lane in range(lanes) for turn in turns]
        indices = np.array([orders[lane][image] for lane, image, _ in places])
        positions = np.array([image * lanes + lane for lane, image, _ in places])
        copies = np.array([copy for *_, copy in places])
        rng = CounterRNG(3, "image", copies, positions)
        expected = assemble(SET, indices, HALF, level, rng)
        made = batches.make(portion)
        assert torch.equal(made.images, expected.images)
        assert torch.equal(made.labels, expected.labels)
        assert made.indices.tolist() == positions.tolist()


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize(("shards", "level"), [(1, "light2"), (5, "light2"), (9, "none")])
def test_a_stream_goes_on_from_every_step(shards: int, level: str, repeats: int) -> None:
    stream = Counted(SET, shards, buffer=12)
    batches = StreamBatches(stream, AUGMENTS[level], HALF, batch=6, seed=3, repeats=repeats)
    portions = first(batches, 12)
    made = [batches.make(portion) for portion in portions]
    for step, portion in enumerate(portions[:-1]):
        start = Cursor.load(json.loads(json.dumps(portion.after.save())))
        assert start == portion.after
        stream.read.clear()
        again = batches.make(first(batches, 1, start)[0])
        assert torch.equal(again.images, made[step + 1].images)
        assert torch.equal(again.keys, made[step + 1].keys)
        # Not the epoch so far: what is shuffled, and as much of it again as was used.
        assert len(stream.read) <= 2 * 12 + 6 + batches.lanes


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("level", [PLAIN, AUGMENTS["light2"]])
def test_any_number_of_processes_makes_the_same_batches(
    count: int, together: bool, level: Augment
) -> None:
    def batches(shard: Shard) -> StreamBatches:
        stream = Counted(SET, 7, buffer=12)
        return StreamBatches(stream, level, HALF, batch=6, seed=3, shard=shard, together=together)

    alone, partner = batches(Shard()), int(level.mixup > 0)
    whole = [alone.make(portion) for portion in first(alone, 9)]
    parts = [batches(Shard(rank, count)) for rank in range(count)]
    for step, shares in enumerate(zip(*(first(part, 9) for part in parts), strict=True)):
        made = [part.make(share) for part, share in zip(parts, shares, strict=True)]
        joined = torch.cat([batch.images[partner:] for batch in made])
        assert torch.equal(joined, whole[step].images[partner:])
        keys = torch.cat([batch.keys[partner:] for batch in made])
        assert torch.equal(keys, whole[step].keys[partner:])


def test_each_process_reads_its_own_shards() -> None:
    """In each epoch every shard is read by one process only, and all are read."""
    streams = [Counted(SET, 8, buffer=4) for _ in range(2)]
    for rank, stream in enumerate(streams):
        made = StreamBatches(stream, PLAIN, HALF, batch=4, seed=3, shard=Shard(rank, 2))
        assert made.lanes == 4
        first(made, 3)  # of lanes of 5 or 6 images
    read = [{shard for shard, _ in stream.read} for stream in streams]
    assert not read[0] & read[1]
    assert len(read[0]) == len(read[1]) == 4


def test_an_epoch_has_each_image_once() -> None:
    batches = StreamBatches(Counted(SET, 1, buffer=5), PLAIN, HALF, batch=1, seed=3)
    seen = [portion.items.where(0) for portion in first(batches, 40)]
    # Blocks of 5: the fifth has the last 3 of the epoch and the first 2 of the next.
    assert len(set(seen[:20])) == 20
    assert set(seen[:25]) == {SET.where(index) for index in range(len(SET))}


def test_lanes() -> None:
    table = {(1, 9): 1, (256, 1): 1, (256, 147): 32, (256, 20): 16, (12, 5): 4, (7, 7): 7}
    for (batch, shards), lanes in table.items():
        assert count_lanes(batch, shards) == lanes
        assert batch % lanes == 0
        assert ceil(batch / lanes) == batch // lanes


def test_what_cannot_go_on_is_refused() -> None:
    empty = StreamBatches(Counted(Listed([]), 3), PLAIN, HALF, batch=2, seed=0)
    assert refusal(first, empty, 1) == "counted has no images to train on"
    batches = StreamBatches(Counted(SET, 3), PLAIN, HALF, batch=2, seed=0)
    assert "at step 4 is not known" in refusal(first, batches, 1, Cursor.load([4, 0, 8]))
