"""Batches made ahead: the same for every number of workers and start, and when a worker dies."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sets import HALF, images
from vitrail.config import InputError
from vitrail.data.batches import TrainBatches
from vitrail.data.loader import Loader, LoaderConfig, WorkerError
from vitrail.data.transforms.augment import AUGMENTS

SET = images(11)
BATCHES = TrainBatches(SET, AUGMENTS["strong2"], HALF, batch=6, seed=3)
WANTED = [BATCHES[step].images for step in range(12)]


def load(start: int, stop: int, workers: int, kind: Literal["threads", "processes"]) -> list:
    config = LoaderConfig(workers=workers, kind=kind)
    return [batch.images for batch in Loader(BATCHES.__getitem__, range(start, stop), config)]


@settings(max_examples=12)
@given(start=st.integers(0, 11), workers=st.sampled_from([0, 1, 2, 4]))
def test_any_number_of_threads_and_any_start(start: int, workers: int) -> None:
    found = load(start, 12, workers, "threads")
    assert all(map(torch.equal, found, WANTED[start:]))
    assert len(found) == 12 - start


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_processes(workers: int) -> None:
    assert all(map(torch.equal, load(4, 12, workers, "processes"), WANTED[4:]))


def test_endless_tasks_are_taken_only_a_little_ahead() -> None:
    taken: list[int] = []

    def tasks() -> itertools.count:
        return itertools.count()

    def make(step: int) -> int:
        taken.append(step)
        return step

    loader = Loader(make, tasks(), LoaderConfig(workers=2, prefetch=2))
    assert list(itertools.islice(loader, 5)) == [0, 1, 2, 3, 4]
    assert max(taken) <= 8


def test_an_error_of_making_is_raised_where_it_is_asked_for() -> None:
    def make(step: int) -> int:
        if step == 2:
            raise InputError("no")
        return step

    seen: list[int] = []
    with pytest.raises(InputError, match="no"):
        seen.extend(Loader(make, range(5), LoaderConfig(workers=2)))
    assert seen == [0, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_for_tasks_counts_as_waiting(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [0.0], threading.Event()
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def tasks() -> Iterator[int]:
        clock[0] += 3
        yield 0
        asked.wait(10)  # read no more until the first batch has been timed
        clock[0] += 4
        yield 1

    loader = Loader(str, tasks(), LoaderConfig(workers=workers), read_ahead=True)
    with closing(iter(loader)) as made:
        assert next(made) == "0"
        assert loader.waited == 3
        clock[0] += 100  # computing
        if workers == 0:
            asked.set()
        else:
            threading.Timer(0.1, asked.set).start()  # while the loop below waits
        assert next(made) == "1"
        assert loader.waited == 7


def test_tasks_are_read_while_the_caller_computes() -> None:
    read = threading.Semaphore(0)

    def tasks() -> Iterator[int]:
        for task in range(9):
            read.release()
            yield task

    config = LoaderConfig(workers=1, prefetch=2)
    with closing(iter(Loader(str, tasks(), config, read_ahead=True))) as made:
        assert next(made) == "0"
        for _ in range(3):  # task 0, and two more that nobody has asked for yet
            assert read.acquire(timeout=10)
        assert not read.acquire(timeout=0.05)  # but no more than that
        assert list(made) == list("12345678")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_an_error_of_reading_comes_after_the_batches_before_it(
    kind: Literal["threads", "processes"],
) -> None:
    def tasks() -> Iterator[int]:
        yield from range(3)
        raise InputError("the stream broke")

    seen: list[str] = []
    with pytest.raises(InputError, match="the stream broke"):
        seen.extend(Loader(str, tasks(), LoaderConfig(workers=2, kind=kind), read_ahead=True))
    assert seen == ["0", "1", "2"]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_ends_the_reading(taken: int) -> None:
    before = set(threading.enumerate())
    loader = Loader(str, itertools.count(), LoaderConfig(workers=2), read_ahead=True)
    with closing(iter(loader)) as made:
        assert [next(made) for _ in range(taken)] == [str(n) for n in range(taken)]
    assert not set(threading.enumerate()) - before


def test_closing_does_not_wait_for_a_read_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.loader._PATIENCE", 0.05)
    asked, arrived = threading.Event(), threading.Event()

    def tasks() -> Iterator[int]:
        yield 0
        asked.set()
        arrived.wait()
        yield 1

    others = set(threading.enumerate())  # of which some may end meanwhile
    with closing(iter(Loader(str, tasks(), LoaderConfig(workers=1), read_ahead=True))) as made:
        assert next(made) == "0"
        assert asked.wait(10)  # else the reader is closed before it hangs
    (reader,) = set(threading.enumerate()) - others
    arrived.set()
    reader.join(10)
    assert not reader.is_alive()


def die_once(task: tuple[int, str]) -> int:
    """Kill the own process at step 3, the first time."""
    step, flag = task
    if step == 3 and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return step


@pytest.mark.parametrize("read_ahead", [False, True])
def test_a_killed_worker_is_replaced(
    read_ahead: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [(step, str(tmp_path / "flag")) for step in range(8)]
    config = LoaderConfig(workers=2, kind="processes")
    assert list(Loader(die_once, tasks, config, read_ahead=read_ahead)) == list(range(8))
    assert "made again" in caplog.text


def name_self(step: int) -> tuple[int, int]:
    """Say which process makes a step."""
    return step, os.getpid()


def test_a_worker_killed_while_nobody_waits_is_replaced() -> None:
    loader = Loader(name_self, range(20), LoaderConfig(workers=1, kind="processes"))
    made = iter(loader)
    step, worker = next(made)
    wait([future for _, future in loader._pending])  # until all that is made ahead is made
    os.kill(worker, signal.SIGKILL)
    while not getattr(loader._pool, "_broken"):  # noqa: B009, pyright knows no such name
        time.sleep(0.01)
    rest = list(made)
    assert [step, *(step for step, _ in rest)] == list(range(20))
    assert rest[-1][1] != worker


def die_always(step: int) -> int:
    """Kill the own process at step 1."""
    if step == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return step


def test_a_batch_that_kills_every_worker_ends_the_run() -> None:
    with pytest.raises(WorkerError, match="signal 9"):
        list(Loader(die_always, range(3), LoaderConfig(workers=1, kind="processes")))


ORPHANS = """
import os, sys, time
from vitrail.data.loader import Loader, LoaderConfig
def make(step):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(0.05)
    return step
for _ in Loader(make, range(10**6), LoaderConfig(workers=2, kind="processes")):
    pass
"""


def test_workers_end_when_their_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = {int(parent.stdout.readline()) for _ in range(12)}
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while any(map(_alive, pids)):  # or the time limit of all tests ends this one
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_settings_that_make_no_loader_are_refused() -> None:
    with pytest.raises(InputError, match=r"loader\.workers must be in \[0, 1024\], got -1"):
        LoaderConfig(workers=-1)
    with pytest.raises(InputError, match=r"loader\.prefetch must be at least 1, got 0"):
        LoaderConfig(prefetch=0)
    with pytest.raises(InputError, match=r"loader\.kind is only used with workers"):
        LoaderConfig(workers=0, kind="processes")
    with pytest.raises(InputError, match=r"loader\.prefetch is only used with workers"):
        LoaderConfig(workers=0, prefetch=3)
