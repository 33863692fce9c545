"""A run's batches: a stream is read beside the steps, and waiting for it is counted."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.data.sets import HALF, Counted, images
from vitrail.data.dataset import StreamItem
from vitrail.data.loader import LoaderConfig
from vitrail.data.streaming import Cursor
from vitrail.distributed import ALONE
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import StreamIterator


@pytest.mark.parametrize("workers", [0, 2])
def test_waiting_for_a_stream_is_counted(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class Slow(Counted):
        def items(self, seed: int, epoch: int, start: int = 0) -> Iterator[StreamItem]:
            for item in super().items(seed, epoch, start):
                clock[0] += 1
                yield item

    loader = LoaderConfig(workers=workers)
    config = TrainConfig(data="", model="", out=Path(), batch=4, loader=loader)
    feed = StreamIterator(Slow(images(11)), config, HALF)
    made = feed.open(1, ALONE)
    with closing(iter(made)) as batches:
        assert next(batches).images.shape == (4, 16, 16, 3)
    feed.advance()
    assert feed.cursor == Cursor(1, 0, 4)
    assert made.waited == 4
