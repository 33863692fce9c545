"""Requests' images put together to batches, and shared out to model processes.

A free process takes at once what waits, up to the model's micro-batch: alone, an image waits for
nobody, and the more there are, the fuller the batches. The queue is bounded, so that a server with
too much to do says so instead of being late for everybody.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.config import InputError
from vitrail.deploy.serving.limits import HTTPError, ServeLimits
from vitrail.deploy.serving.metrics import Metrics
from vitrail.deploy.serving.process import ModelProcess, WorkerConfig
from vitrail.deploy.serving.wire import Frame

Work = Literal["predict", "embed", "attention", "similar", "thumbnail"]
Answer = tuple[bool, bytes]
"""Whether an image could be used, and the JSON of what was found, or of why not.

A thumbnail is a JPEG, not JSON."""

UNWELL = 2.0
"""Seconds of silence after which a model process counts as ill."""
SILENT = 5.0
"""Seconds of silence after which it is replaced."""
STUCK = 60.0
"""Seconds that a batch may take."""
_LONGEST = 30  # seconds that a client is asked to wait before it tries again


@dataclass(eq=False)
class Job:
    """An image that waits for a model."""

    model: str
    work: Work
    options: dict[str, Any]
    data: bytes
    answer: asyncio.Future[Answer]


@dataclass(eq=False)
class Slot:
    """A place for a model process, and what the one in it is doing."""

    process: ModelProcess | None = None
    batch: list[Job] = field(default_factory=list)
    since: float = 0.0
    """When its batch began."""


class Batcher:
    """The queue and the processes."""

    def __init__(
        self, orders: WorkerConfig, workers: int, cores: int, limits: ServeLimits, metrics: Metrics
    ) -> None:
        self.facts: dict[str, Any] = {}
        """What is known of each model."""
        self._orders, self._cores, self._limits = orders, cores, limits
        self._metrics = metrics
        self._slots = [Slot() for _ in range(workers)]
        self._waiting: deque[Job] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._pace = 0.05  # seconds that an image takes a process, lately
        self._ready = asyncio.Event()
        metrics.watch(lambda: len(self._waiting), lambda: len(self._well()))

    async def start(self) -> None:
        """Start the processes and wait until all have loaded their models.

        InputError where one can't.
        """
        self._tasks = [asyncio.create_task(self._keep(slot)) for slot in self._slots]
        self._tasks.append(asyncio.create_task(self._watch()))
        ready = asyncio.create_task(self._ready.wait())
        done, _ = await asyncio.wait([ready, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        for task in done - {ready}:
            await self.stop()
            task.result()  # raises

    async def stop(self) -> None:
        """End the processes; what still waits is refused."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        running = [slot.process for slot in self._slots if slot.process]
        await asyncio.gather(*(process.stop() for process in running))
        for job in [*self._waiting, *(job for slot in self._slots for job in slot.batch)]:
            _refuse(job, HTTPError(503, "the server is stopping"))

    @property
    def healthy(self) -> bool:
        """Whether every model process is there and gives signs of life."""
        return len(self._well()) == len(self._slots)

    def _well(self) -> list[Slot]:
        now = asyncio.get_running_loop().time()
        return [
            slot
            for slot in self._slots
            if slot.process and slot.process.ready and now - slot.process.seen < UNWELL
        ]

    def check(self, images: int) -> None:
        """Refuse images for which there is no room in the queue."""
        if len(self._waiting) + images > self._limits.queue:
            seconds = len(self._waiting) * self._pace / len(self._slots)
            retry = min(max(1, math.ceil(seconds)), _LONGEST)
            raise HTTPError(503, f"busy, try again in {retry} s", retry=retry)

    def run(
        self, model: str, work: Work, options: dict[str, Any], images: Sequence[bytes]
    ) -> Coroutine[Any, Any, list[Answer]]:
        """Take images in, and give what waits for their answers, in their order.

        Refusal where there is no room, or it takes too long. They are in the queue at once: whoever
        comes next, in a flood before anybody waits, is measured by it. Cancelled, what has not
        begun is taken back.
        """
        self.check(len(images))
        loop = asyncio.get_running_loop()
        jobs = [Job(model, work, options, data, loop.create_future()) for data in images]
        self._waiting.extend(jobs)
        self._dispatch()
        return self._wait(jobs)

    async def _wait(self, jobs: list[Job]) -> list[Answer]:
        try:
            async with asyncio.timeout(self._limits.answer):
                return await asyncio.gather(*(job.answer for job in jobs))
        except TimeoutError:
            seconds = self._limits.answer
            raise HTTPError(504, f"no answer within {seconds:g} s; try again later") from None
        finally:
            for job in jobs:
                job.answer.cancel()
                with suppress(ValueError):
                    self._waiting.remove(job)

    def _dispatch(self) -> None:
        """Give every free process a batch."""
        for slot in self._slots:
            if self._waiting and slot.process and slot.process.ready and not slot.batch:
                self._begin(slot, slot.process)

    def _begin(self, slot: Slot, process: ModelProcess) -> None:
        first = self._waiting[0]
        most = 1 if first.work == "attention" else process.micro[first.model]
        alike = [j for j in self._waiting if (j.model, j.work) == (first.model, first.work)]
        slot.batch = alike[:most]
        for job in slot.batch:
            self._waiting.remove(job)
        busy = len(self._slots) if self._waiting else sum(bool(s.batch) for s in self._slots)
        slot.since = asyncio.get_running_loop().time()
        head = {
            "model": first.model,
            "work": first.work,
            "options": [job.options for job in slot.batch],
            "threads": max(1, self._cores // busy),  # whoever is alone has all cores
        }
        process.tell(head, tuple(job.data for job in slot.batch))
        self._metrics.batch(len(slot.batch))

    async def _keep(self, slot: Slot) -> None:
        """Have a living process in a slot, whatever happens to it."""
        pause = 0.2
        while True:
            slot.process = process = await ModelProcess.start(self._orders)

            async def answered(frame: Frame) -> None:
                self._answered(slot, frame)

            try:
                await process.listen(answered)
            except InputError:
                if not self.facts:
                    raise
            loaded = process.ready
            process.ended = True
            process.kill()
            lost, slot.batch = slot.batch, []
            for job in lost:
                _refuse(job, HTTPError(503, "a model process ended; try again", retry=1))
            await process.process.wait()
            if not self.facts:
                raise InputError(
                    "a model process ended while it loaded its models; is there memory enough?"
                )
            self._metrics.restarts.inc()
            pause = 0.2 if loaded else min(2 * pause, 10.0)
            await asyncio.sleep(pause)

    def _answered(self, slot: Slot, frame: Frame) -> None:
        head, blobs = frame
        if "ready" in head:
            if all(each.process and each.process.ready for each in self._slots):
                self.facts = head["ready"]
                self._ready.set()
            return self._dispatch()
        batch, slot.batch = slot.batch, []
        seconds = asyncio.get_running_loop().time() - slot.since
        self._pace += 0.1 * (seconds / max(len(batch), 1) - self._pace)
        if "broken" in head:
            for job in batch:
                _refuse(job, HTTPError(500, "the model failed; the server's log says why"))
        else:
            for job, good, text in zip(batch, head["good"], blobs, strict=True):
                if not job.answer.done():
                    job.answer.set_result((good, text))
        self._dispatch()

    async def _watch(self) -> None:
        """End processes that hang; `_keep` starts others."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.25)
            now = loop.time()
            late = now - before - 0.25  # what this process did not run is no fault of theirs
            for slot in self._slots:
                process = slot.process
                if process is None or not process.ready:
                    continue
                process.seen += late
                stuck = bool(slot.batch) and now - slot.since > STUCK
                if stuck or now - process.seen > SILENT:
                    process.kill()


def _refuse(job: Job, refusal: HTTPError) -> None:
    if not job.answer.done():
        job.answer.set_exception(refusal)
