"""A run's batches: a stream is read beside the steps, and waiting for it is counted."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.data.sets import HALF, Counted, images
from vitrail.data.dataset import StreamItem
from vitrail.data.loader import LoaderConfig
from vitrail.data.streaming import Cursor, LaneCursor
from vitrail.distributed import ALONE
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import StreamIterator


@pytest.mark.parametrize("workers", [0, 2])
def test_waiting_for_a_stream_is_counted(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class Slow(Counted):
        def read_shard(self, shard: int, offset: int = 0) -> Iterator[tuple[int, StreamItem]]:
            for item in super().read_shard(shard, offset):
                clock[0] += 1
                yield item

    loader = LoaderConfig(workers=workers)
    config = TrainConfig(data="", model="", out=Path(), batch=4, loader=loader)
    feed = StreamIterator(Slow(images(11), buffer=2), config, HALF)
    made = feed.open(1, ALONE)
    with closing(iter(made)) as batches:
        assert next(batches).images.shape == (4, 16, 16, 3)
    feed.advance()
    assert feed.cursor == Cursor(1, {0: LaneCursor(0, 0, 40, block=2)})
    assert made.waited == 6  # the batch, and what its images were shuffled with
