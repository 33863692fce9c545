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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch

from vitrail.config import InputError
from vitrail.machine import available_cores

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("vitrail")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Who makes batches."""

    workers: int | None = None
    """How many at a time; 0 makes each batch when it is asked for; one a core, at most 8, unless
    given."""
    kind: Literal["threads", "processes"] = "threads"
    """Threads share memory and start at once; processes are for augmentation in much Python."""
    prefetch: int = 2
    """Batches made ahead, for each worker."""

    def __post_init__(self) -> None:
        if (self.workers or 0) < 0 or self.prefetch < 1:
            raise InputError(f"{self.workers} workers, {self.prefetch} batches ahead: no loader")


class WorkerError(RuntimeError):
    """Worker processes died again and again on the same batch."""


class Loader(Generic[T, R]):
    """An iterator over make(task) for each task, in order, made ahead.

    For worker processes `make` is sent once, so that tasks stay small.
    """

    _ATTEMPTS = 3

    def __init__(self, make: Callable[[T], R], tasks: Iterable[T], config: LoaderConfig) -> None:
        self._make = make
        self._tasks = iter(tasks)
        self._config = config
        self._workers = min(available_cores(), 8) if config.workers is None else config.workers
        self._crew: list[Any] = []  # the worker processes, to ask how one ended
        self.waited = 0.0
        """Seconds that the caller has waited for batches, all in all."""

    def __iter__(self) -> Iterator[R]:
        if self._workers == 0:
            for task in self._tasks:
                start = time.perf_counter()
                made = self._make(task)
                self.waited += time.perf_counter() - start
                yield made
            return
        pool = self._start()
        pending: deque[tuple[T, Future[R]]] = deque()
        deaths = 0
        try:
            while True:
                self._fill(pool, pending)
                if not pending:
                    return
                start = time.perf_counter()
                try:
                    made = pending[0][1].result()
                except BrokenProcessPool:
                    deaths += 1
                    if deaths == self._ATTEMPTS:
                        raise WorkerError(self._obituary()) from None
                    log.warning("%s; its batches are made again", self._obituary())
                    pool, self._crew = self._start(), []
                    tasks = [task for task, _ in pending]
                    pending = deque((task, self._submit(pool, task)) for task in tasks)
                    continue
                self.waited += time.perf_counter() - start
                deaths = 0
                pending.popleft()
                yield made
        finally:
            for _, future in pending:
                future.cancel()
            pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self, pool: Executor, pending: deque[tuple[T, Future[R]]]) -> None:
        while len(pending) < self._workers * self._config.prefetch:
            try:
                task = next(self._tasks)
            except StopIteration:
                return
            pending.append((task, self._submit(pool, task)))

    def _start(self) -> Executor:
        if self._config.kind == "threads":
            return ThreadPoolExecutor(self._workers, thread_name_prefix="vitrail-data")
        # Forked workers share the source's memory and start at once; only Linux forks safely.
        method = "fork" if sys.platform == "linux" else "spawn"
        context = multiprocessing.get_context(method)
        return ProcessPoolExecutor(self._workers, context, _begin_worker, (self._make,))

    def _submit(self, pool: Executor, task: T) -> Future[R]:
        if self._config.kind == "threads":
            return pool.submit(self._make, task)
        try:
            future = pool.submit(_work, task)
        except BrokenProcessPool as error:  # a worker died while nobody asked for a batch
            future = Future[R]()
            future.set_exception(error)
        self._crew = self._crew or list((getattr(pool, "_processes", None) or {}).values())
        return future

    def _obituary(self) -> str:
        """Say which worker died, and of what."""
        for process in self._crew:
            process.join(1)
            if process.exitcode not in (None, 0, -signal.SIGTERM):  # by which the others are ended
                cause = f"signal {-process.exitcode}" if process.exitcode < 0 else "an error"
                hint = " (out of memory?)" if process.exitcode == -signal.SIGKILL else ""
                return f"data worker {process.pid} was ended by {cause}{hint}"
        return "a data worker ended"


_make_in_worker: Callable[[Any], Any]


def _begin_worker(make: Callable[[Any], Any]) -> None:
    """Prepare a worker process: one thread, and an end when its parent ends, however that ends."""
    global _make_in_worker
    gc.freeze()  # what a fork inherits is not its own to end, such as threads it does not have
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
