"""One process or many: who this is, and how all of them agree.

torchrun starts the processes and says so in the environment; without it there is one. Gloo joins
processes on CPUs, NCCL on GPUs.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore

from vitrail.config import InputError, flatten
from vitrail.signals import Stopped

T = TypeVar("T")
Tensors = TypeVar("Tensors", bound=Iterable[Tensor])
_PORT, _NOTICED = "vitrail/port", "noticed/"
_meetings = itertools.count()
_left: list[Any] = []

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others before it gives up; they may be saving."""
NOTICE = timedelta(seconds=5)
"""How much later than this one the others may notice that one hangs."""


class LostError(RuntimeError):
    """Another process has ended or hangs, so this one can't continue."""


@dataclass(frozen=True)
class _Outcome:
    """What came of the work that the first process did for all."""

    value: Any = None
    error: InputError | None = None


@dataclass(frozen=True)
class Shard:
    """Which of how many processes this is."""

    rank: int = 0
    count: int = 1

    def slice_of(self, start: int, stop: int) -> tuple[int, int]:
        """Cut this process's part out of a row of positions; all parts together are the row."""
        length = stop - start
        first, last = (length * r // self.count for r in (self.rank, self.rank + 1))
        return start + first, start + last


ALONE = Shard()


@dataclass(frozen=True)
class Processes:
    """This process among all."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Tell whether this is the one that writes and shows."""
        return self.rank == 0

    @property
    def shard(self) -> Shard:
        """Say which part of each batch this process makes."""
        return Shard(self.rank, self.count)

    def sum(self, *values: Tensor | float) -> list[float]:
        """Add numbers up over all processes, in float64."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def sum_on_device(self, tensors: Sequence[Tensor], *numbers: float) -> Tensor:
        """Add scalars and numbers up over all processes, without waiting for the device."""
        place = self._meeting if self.count > 1 else self.device
        dtype = torch.float32 if place.type == "mps" else torch.float64
        scalars = torch.stack([tensor.detach().to(dtype) for tensor in tensors]).to(place)
        given = send(torch.tensor(numbers, dtype=dtype), place)
        summed = torch.cat([scalars, given])
        if self.count > 1:
            dist.all_reduce(summed)
        return summed

    def least(self, value: float) -> float:
        """Give the least of all processes' numbers."""
        return self._reduce((value,), dist.ReduceOp.MIN)[0]

    def any(self, flag: bool) -> bool:
        """Tell whether the flag is up in any process; all get the same answer."""
        return self.sum(float(flag))[0] > 0

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            dist.barrier()

    def broadcast(self, value: T) -> T:
        """Give everyone the first process's value, which must be plain data."""
        if self.count == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, device=self._meeting)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Give everyone the values of all processes, which must be plain data."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def on_main(self, work: Callable[[], T], assist: Callable[[Any], None] | None = None) -> T:
        """Let the first process do something for all, who get its result or its InputError.

        Whatever it tells the others in the meantime, they `assist` with. If that fails it fails in
        the first one too.
        """
        if self.is_main:
            try:
                outcome = _Outcome(work())
            except InputError as error:
                outcome = _Outcome(error=error)
            self.broadcast(outcome)
        else:
            while not isinstance(outcome := self.broadcast(None), _Outcome):
                assert assist is not None
                with suppress(RuntimeError):
                    assist(outcome)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Refuse to continue if processes differ in their settings or data.

        Facts are plain data by name, nested or not.
        """
        seen = self.gather(flatten(facts))
        for rank, other in enumerate(seen):
            names = [name for name in seen[0] | other if other.get(name) != seen[0].get(name)]
            if names:
                theirs, ours = (
                    ", ".join(f"{name} {facts.get(name)}" for name in names[:3])
                    for facts in (other, seen[0])
                )
                raise InputError(
                    f"process {rank} has {theirs}, process 0 has {ours}; start all with the same "
                    "command and data"
                )

    def _reduce(
        self, values: tuple[Tensor | float, ...], how: dist.ReduceOp.RedOpType
    ) -> list[float]:
        numbers = torch.tensor([float(value) for value in values], dtype=torch.float64)
        if self.count > 1:
            numbers = numbers.to(self._meeting)
            dist.all_reduce(numbers, how)
        return numbers.tolist()

    @property
    def _meeting(self) -> torch.device:
        """Say where numbers lie that all processes exchange."""
        return self.device if self.device.type == "cuda" else torch.device("cpu")


@contextmanager
def process_group(device: str | None = None) -> Iterator[Processes]:
    """Meet the other processes, and part from them at the end, once or again and again.

    Where one fails, none waits for it: the others get a LostError.
    """
    count, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    chosen = choose_device(device)
    if count == 1:
        # What names no GPU, as memory in use, means the chosen one.
        with torch.cuda.device(chosen) if chosen.type == "cuda" else nullcontext():
            yield Processes(0, 1, chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    store = PrefixStore(f"vitrail/{next(_meetings)}", _open_store(rank))
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    stopped: Stopped | None = None
    try:
        try:
            yield Processes(rank, count, chosen)
        except Stopped as agreed:
            stopped = agreed
        dist.barrier()  # the first leaves last, for the others use its store
    except BaseException as error:
        # The end of this process parts it from the others. To destroy the group may hang: NCCL
        # waits for them, and gloo for its threads, in whose exchange they may not take part. So
        # not even Python's exit may do it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
        if (lost := _describe_loss(error, store, rank, count)) is None:
            raise
        raise LostError(lost) from error
    # Whoever lets go of a group last ends its threads. DDP would do so holding Python's lock, for
    # which they may wait. So a group lives until the next one ends, when they have long had it.
    _left[:] = [dist.group.WORLD]
    dist.destroy_process_group()
    if stopped is not None:
        raise stopped


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device that was asked for, or the best there is: CUDA, MPS, CPU.

    Plain `cuda` is the GPU of this process's LOCAL_RANK, as torchrun numbers them.
    """
    if device is None:
        mps = torch.backends.mps.is_available()
        device = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"unknown device {device!r}; expected cpu, cuda, cuda:1 or mps") from None
    count = torch.cuda.device_count()
    there = {"cuda": (chosen.index or 0) < count, "mps": torch.backends.mps.is_available()}
    if not there.get(chosen.type, True):
        raise InputError(f"torch finds no {device} on this machine; try --device cpu")
    if chosen.type != "cuda" or chosen.index is not None:
        return chosen
    local = int(os.environ.get("LOCAL_RANK", 0))
    if local >= count:
        raise InputError(f"there is no GPU for process {local}; use --nproc-per-node {count}")
    return torch.device("cuda", local)


def send(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    """Copy a tensor to a device without waiting: a GPU takes it from pinned memory by itself."""
    place = tensor.device if device is None else torch.device(device)
    if place.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(place, non_blocking=True)


class CopyStream:
    """Brings tensors to a GPU beside what it computes, on a stream of its own; elsewhere at once.

    The host launches a step while the device computes the one before, and there the copy goes on
    meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, prepare: Callable[[], Tensors]) -> Tensors:
        """Call what copies; the device's next work waits for it, the host does not."""
        if self._stream is None:
            return prepare()
        with torch.cuda.stream(self._stream):
            copied = prepare()
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_stream(self._stream)
        for tensor in copied:
            if tensor.is_cuda:  # its memory is not given away before that work is done
                tensor.record_stream(current)
        return copied


@cache
def _open_store(rank: int) -> Store:
    """Open what the processes find each other with, in the first of them, for as long as it lives.

    torchrun's own store outlives a restart, and what is left in it from before makes gloo hang
    (pytorch issue 135712). So it only tells the new one's port: that from before is closed.
    """
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as missing:
        raise InputError(f"several processes, but no {missing}; start them with torchrun") from None
    first = rank == 0
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return TCPStore(host, port, None, first, PATIENCE, wait_for_workers=False)
    shared = TCPStore(host, port, timeout=PATIENCE)
    if first:
        store = TCPStore(host, 0, None, first, PATIENCE, wait_for_workers=False)
        shared.set(_PORT, str(store.port))
        return store
    end = time.monotonic() + PATIENCE.total_seconds()
    while not _is_open(host, port := int(shared.get(_PORT))):
        if time.monotonic() > end:
            raise InputError(f"process 0 can't be reached at {host}:{port}; is there a firewall?")
        time.sleep(0.1)
    return TCPStore(host, port, timeout=PATIENCE)


def _is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _describe_loss(error: BaseException, store: Store, rank: int, count: int) -> str | None:
    """Say which process is missing if that is why this one failed; else None."""
    text = str(error)
    hangs = "Timed out waiting" in text
    if not isinstance(error, RuntimeError) or not (
        hangs or isinstance(error, dist.DistError) or "Connection" in text or "pair closure" in text
    ):
        return None
    if not hangs:
        return f"process {rank} lost another one, which has ended; its own error says why"
    silent = ", ".join(map(str, _find_silent(store, rank, count))) or "none"
    return f"process {rank} waited {PATIENCE} for others in vain; those that hang: {silent}"


def _find_silent(store: Store, rank: int, count: int) -> list[int]:
    """Find the processes that do not notice within seconds, as this one did, that some hang."""
    silent = {*range(count)} - {rank}
    answered = threading.Event()

    def ask() -> None:
        with suppress(RuntimeError):
            store.set(f"{_NOTICED}{rank}", "")
            while silent:
                silent.difference_update(
                    [other for other in silent if store.check([f"{_NOTICED}{other}"])]
                )
                answered.set()
                time.sleep(0.1)

    asking = threading.Thread(target=ask, daemon=True)  # for the store knows no time-out
    asking.start()
    asking.join(NOTICE.total_seconds())
    return sorted(silent) if answered.is_set() else [0]  # whose store it is
