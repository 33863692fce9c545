"""Dynamic batching: a bounded queue of images, and the model processes that work on it.

A free process takes what is waiting at once, up to the model's batch size: a single image never
waits for others, and with more load batches get fuller. The queue is bounded, so that an overloaded
server says so instead of being late for everybody.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from vitrail.config import InputError
from vitrail.deploy.serving.frames import Frame
from vitrail.deploy.serving.limits import HTTPError, ServeLimits
from vitrail.deploy.serving.metrics import Metrics
from vitrail.deploy.serving.process import ModelProcess, WorkerConfig

Operation = Literal["predict", "embed", "attention", "similar", "thumbnail"]
ImageResult = tuple[bool, bytes]
"""Whether an image could be used, and JSON with the result or the error; a thumbnail is a JPEG."""

UNHEALTHY = 2.0
"""Seconds without a heartbeat after which a model process counts as unhealthy."""
SILENT = 5.0
"""Seconds without a heartbeat after which it is replaced."""
BATCH_TIMEOUT = 60.0
"""Seconds that a batch may take."""
_MAX_RETRY = 30  # seconds that a client is asked to wait before it tries again
_BACKOFF = (0.2, 10.0)  # first and longest seconds between two attempts to start a process
log = logging.getLogger("vitrail.serve")


@dataclass(eq=False)
class QueuedImage:
    """An image that is waiting for a model."""

    model: str
    operation: Operation
    options: dict[str, Any]
    data: bytes
    result: asyncio.Future[ImageResult]


@dataclass(eq=False)
class WorkerSlot:
    """One of the server's model processes, restarted as needed, and its current batch."""

    process: ModelProcess | None = None
    batch: list[QueuedImage] = field(default_factory=list)
    since: float = 0.0
    """When its batch started."""


class Batcher:
    """The queue and the model processes."""

    def __init__(
        self, config: WorkerConfig, workers: int, cores: int, limits: ServeLimits, metrics: Metrics
    ) -> None:
        self.info: dict[str, Any] = {}
        """What clients may know about each model, by name."""
        self._config, self._cores, self._limits = config, cores, limits
        self._metrics = metrics
        self._slots = [WorkerSlot() for _ in range(workers)]
        self._waiting: deque[QueuedImage] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._seconds_per_image = 0.05  # of one process, a moving average
        self._ready = asyncio.Event()
        metrics.watch(lambda: len(self._waiting), lambda: len(self._healthy_slots()))

    async def start(self) -> None:
        """Start the processes and wait until all have loaded and tried their models.

        Raises InputError if one can't.
        """
        self._tasks = [asyncio.create_task(self.supervise(slot)) for slot in self._slots]
        self._tasks.append(asyncio.create_task(self.watch()))
        ready = asyncio.create_task(self._ready.wait())
        done, _ = await asyncio.wait([ready, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        for task in done - {ready}:
            await self.stop()
            task.result()  # raises

    async def stop(self) -> None:
        """End the processes; what is still waiting is refused."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        running = [slot.process for slot in self._slots if slot.process]
        await asyncio.gather(*(process.stop() for process in running))
        for image in [*self._waiting, *(image for slot in self._slots for image in slot.batch)]:
            _refuse(image, HTTPError(503, "the server is stopping"))

    @property
    def healthy(self) -> bool:
        """Whether every model process is running and sends heartbeats."""
        return len(self._healthy_slots()) == len(self._slots)

    def _healthy_slots(self) -> list[WorkerSlot]:
        now = asyncio.get_running_loop().time()
        return [
            slot
            for slot in self._slots
            if slot.process and slot.process.ready and now - slot.process.seen < UNHEALTHY
        ]

    def check(self, images: int) -> None:
        """Refuse images that don't fit into the queue."""
        if len(self._waiting) + images > self._limits.queue:
            seconds = len(self._waiting) * self._seconds_per_image / len(self._slots)
            retry = min(max(1, math.ceil(seconds)), _MAX_RETRY)
            raise HTTPError(503, f"busy, try again in {retry} s", retry=retry)

    def run(
        self, model: str, operation: Operation, options: dict[str, Any], images: Sequence[bytes]
    ) -> Coroutine[Any, Any, list[ImageResult]]:
        """Queue images at once, and give a coroutine that waits for their results, in order.

        HTTPError if the queue is full or it takes too long. When cancelled, images that no process
        has started on leave the queue.
        """
        self.check(len(images))
        loop = asyncio.get_running_loop()
        queued = [
            QueuedImage(model, operation, options, data, loop.create_future()) for data in images
        ]
        self._waiting.extend(queued)
        self._dispatch()
        return self._wait(queued)

    async def _wait(self, queued: list[QueuedImage]) -> list[ImageResult]:
        try:
            async with asyncio.timeout(self._limits.answer):
                return await asyncio.gather(*(image.result for image in queued))
        except TimeoutError:
            seconds = self._limits.answer
            raise HTTPError(504, f"no result within {seconds:g} s; try again later") from None
        finally:
            for image in queued:
                image.result.cancel()
                with suppress(ValueError):
                    self._waiting.remove(image)

    def _dispatch(self) -> None:
        """Give every free process a batch."""
        for slot in self._slots:
            if self._waiting and slot.process and slot.process.ready and not slot.batch:
                self._begin(slot, slot.process)

    def _begin(self, slot: WorkerSlot, process: ModelProcess) -> None:
        first = self._waiting[0]
        most = 1 if first.operation == "attention" else process.batch_size[first.model]
        kind = (first.model, first.operation)
        slot.batch = [each for each in self._waiting if (each.model, each.operation) == kind][:most]
        for image in slot.batch:
            self._waiting.remove(image)
        busy = len(self._slots) if self._waiting else sum(bool(s.batch) for s in self._slots)
        slot.since = asyncio.get_running_loop().time()
        head = {
            "model": first.model,
            "operation": first.operation,
            "options": [image.options for image in slot.batch],
            "threads": max(1, self._cores // busy),  # a single batch has all cores
        }
        process.send(head, tuple(image.data for image in slot.batch))
        self._metrics.batch(len(slot.batch))

    async def supervise(self, slot: WorkerSlot) -> None:
        """Keep a model process running in a slot, whatever happens to it."""
        pause, longest = _BACKOFF
        while True:
            started = False
            try:
                started = await self._run_process(slot)
            except InputError as error:
                if not self.info:  # at the server's start
                    raise
                log.error("a model process can't load its models: %s", error)
            except Exception as error:  # e.g. no memory for another process: it may come back
                if not self.info:
                    raise InputError(f"a model process could not be started: {error}") from error
                log.exception("a model process could not be started; trying again")
            if not self.info:
                raise InputError(
                    "a model process ended while loading its models; is there enough memory?"
                )
            self._metrics.restarts.inc()
            pause = _BACKOFF[0] if started else min(2 * pause, longest)
            await asyncio.sleep(pause)

    async def _run_process(self, slot: WorkerSlot) -> bool:
        """Start a model process and listen to it until it ends; tell whether it was ready."""
        slot.process = process = await ModelProcess.start(self._config)
        try:
            await process.listen(partial(self._receive, slot))
            return process.ready
        finally:
            process.ended = True
            process.kill()
            lost, slot.batch = slot.batch, []
            for image in lost:
                _refuse(image, HTTPError(503, "a model process ended; try again", retry=1))
            await process.process.wait()

    def _receive(self, slot: WorkerSlot, frame: Frame) -> None:
        head, blobs = frame
        if "ready" in head:
            if all(each.process and each.process.ready for each in self._slots):
                self.info = head["ready"]
                self._ready.set()
            return self._dispatch()
        batch, slot.batch = slot.batch, []
        seconds = asyncio.get_running_loop().time() - slot.since
        self._seconds_per_image += 0.1 * (seconds / max(len(batch), 1) - self._seconds_per_image)
        if "failed_batch" in head:
            for image in batch:
                _refuse(image, HTTPError(500, "the model failed; the server's log says why"))
        else:
            for image, good, text in zip(batch, head["good"], blobs, strict=True):
                if not image.result.done():
                    image.result.set_result((good, text))
        self._dispatch()

    async def watch(self) -> None:
        """End processes that hang; `supervise` starts others. No exception ends the watching."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.25)
            now = loop.time()
            try:
                self._end_hanging(now, late=now - before - 0.25)
            except Exception:
                log.exception("watching the model processes failed; it continues")

    def _end_hanging(self, now: float, *, late: float) -> None:
        for slot in self._slots:
            process = slot.process
            if process is None or not process.ready:
                continue
            process.seen += late  # while this process itself did not run, nobody was heard
            stuck = bool(slot.batch) and now - slot.since > BATCH_TIMEOUT
            if stuck or now - process.seen > SILENT:
                process.kill()


def _refuse(image: QueuedImage, error: HTTPError) -> None:
    if not image.result.done():
        image.result.set_exception(error)
