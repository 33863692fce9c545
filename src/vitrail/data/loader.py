"""Batches made ahead of time, by threads or by worker processes.

A worker that is killed is replaced and its batches are made again: they are pure functions.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch

from vitrail.config import InputError, PositiveInt, Range, validate
from vitrail.machine import available_cores

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("vitrail")

_ATTEMPTS = 3  # times that workers may die in a row
_PATIENCE = 5.0  # seconds that closing waits for a task that is being read


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How batches are loaded."""

    workers: Annotated[int, Range("[0, 1024]")] | None = None
    """Batches made at a time; 0 makes each one when it is asked for. Default: one per core, at
    most 8."""
    kind: Literal["threads", "processes"] = "threads"
    """Threads share memory and start at once; processes are for augmentation in much Python."""
    prefetch: PositiveInt = 2
    """Batches made ahead, per worker."""

    def __post_init__(self) -> None:
        validate(self, "loader")
        for name in ("kind", "prefetch"):
            if self.workers == 0 and getattr(self, name) != getattr(LoaderConfig, name):
                raise InputError(f"loader.{name} is only used with workers; got loader.workers=0")

    @property
    def worker_count(self) -> int:
        """Workers that there are on this machine."""
        return min(available_cores(), 8) if self.workers is None else self.workers


class WorkerError(RuntimeError):
    """Worker processes died again and again on the same batch."""


class Loader(Generic[T, R]):
    """An iterator over make(task) for each task, in order, made ahead.

    For worker processes `make` is sent once, so that tasks stay small. With `read_ahead` a thread
    of its own iterates over the tasks, for tasks that take time to read, such as a stream's.
    """

    def __init__(
        self,
        make: Callable[[T], R],
        tasks: Iterable[T],
        config: LoaderConfig,
        *,
        read_ahead: bool = False,
    ) -> None:
        self._make = make
        self._tasks = iter(tasks)
        self._config = config
        self.workers = config.worker_count
        self._processes: list[Any] = []
        self._pending: deque[tuple[T, Future[R]]] = deque()
        self._changed = threading.Condition()  # guards the pool and what is below
        self._end: Exception | None = None  # what reading raised: StopIteration after the last task
        self._closed = False
        self._reader = (
            threading.Thread(target=self._read_ahead, daemon=True) if read_ahead else None
        )
        self.waited = 0.0
        """Seconds that the caller has waited for batches so far."""

    def __iter__(self) -> Generator[R, None, None]:
        now = (self._make(task) for task in self._tasks)
        with closing(self._make_ahead() if self.workers else now) as batches:
            while True:
                start = time.perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                finally:
                    self.waited += time.perf_counter() - start
                yield batch

    def _make_ahead(self) -> Generator[R, None, None]:
        self._pool = self._start_pool()
        deaths = 0
        if self._reader:
            self._reader.start()
        try:
            while future := self._oldest():
                try:
                    made = future.result()
                except BrokenProcessPool:
                    deaths += 1
                    reason = self._exit_reason()
                    if deaths == _ATTEMPTS:
                        raise WorkerError(reason) from None
                    log.warning("%s; its batches are made again", reason)
                    self._restart()
                    continue
                deaths = 0
                with self._changed:
                    self._pending.popleft()
                    self._changed.notify_all()
                yield made
        finally:
            self._close()

    def _oldest(self) -> Future[R] | None:
        """Wait until the next batch has been handed to a worker; None after the last one."""
        while self._reader is None and self._end is None and self._has_room():
            self._submit_next()
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._end)
            if self._pending:
                return self._pending[0][1]
        if not isinstance(self._end, StopIteration):
            assert self._end is not None
            raise self._end
        return None

    def _read_ahead(self) -> None:
        """Read tasks until there are no more, or the loader is closed."""
        while self._end is None and not self._closed:
            self._submit_next()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._has_room())

    def _has_room(self) -> bool:
        return len(self._pending) < self.workers * self._config.prefetch

    def _submit_next(self) -> None:
        """Read a task and hand it to a worker, or note that there is none."""
        try:
            task = next(self._tasks)
        except Exception as error:
            with self._changed:
                self._end = error
                self._changed.notify_all()
            return
        with self._changed:
            if not self._closed:
                self._pending.append((task, self._submit(task)))
                self._changed.notify_all()

    def _submit(self, task: T) -> Future[R]:
        if self._config.kind == "threads":
            return self._pool.submit(self._make, task)
        try:
            return self._pool.submit(_work, task)
        except BrokenProcessPool as error:  # a worker died while nobody asked for a batch
            future = Future[R]()
            future.set_exception(error)
            return future

    def _start_pool(self) -> Executor:
        if self._config.kind == "threads":
            return ThreadPoolExecutor(self.workers, thread_name_prefix="vitrail-data")
        # Forked workers share the dataset's memory and start at once; only Linux forks safely.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        pool = ProcessPoolExecutor(self.workers, context, _begin_worker, (self._make,))
        started: dict[int, Any] = getattr(pool, "_processes", {})
        try:
            pool.submit(os.getpid)  # starts the workers now, in this thread and not in the reader's
        except OSError:  # of files or memory; the pool would leave the first few, waiting for ever
            for process in started.values():
                process.kill()
                process.join()
            raise
        self._processes = list(started.values())
        return pool

    def _restart(self) -> None:
        """Replace the worker processes, and have them make all batches that were handed out."""
        with self._changed:
            self._pool = self._start_pool()
            tasks = [task for task, _ in self._pending]
            self._pending = deque((task, self._submit(task)) for task in tasks)

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for _, future in self._pending:
            future.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._reader:
            self._reader.join(_PATIENCE)  # a read that hangs ends with the process

    def _exit_reason(self) -> str:
        """Say which worker died, and why."""
        deadline = time.monotonic() + 2
        for process in self._processes:
            # The pool's own thread may be the one that learns the exit code.
            while process.exitcode is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if process.exitcode not in (None, 0, -signal.SIGTERM):  # which ends the others
                cause = f"signal {-process.exitcode}" if process.exitcode < 0 else "an error"
                hint = " (out of memory?)" if process.exitcode == -signal.SIGKILL else ""
                return f"data worker {process.pid} was ended by {cause}{hint}"
        return "a data worker ended"


_make_in_worker: Callable[[Any], Any]


def _begin_worker(make: Callable[[Any], Any]) -> None:
    """Prepare a worker process: one thread, and exit when the parent does, however that ends."""
    global _make_in_worker
    gc.freeze()  # what a fork inherits is not its own to finalize, such as the parent's threads
    _make_in_worker = make
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _work(task: Any) -> Any:
    return _make_in_worker(task)
