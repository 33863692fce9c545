"""One model process as the server sees it: started, spoken to, and ended."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vitrail.config import InputError
from vitrail.deploy.serving.wire import Frame, pack, receive_frame

COMMAND = (sys.executable, "-m", "vitrail.deploy.serving.worker")
_PIPE = 2**24  # bytes of a pipe that are read ahead
# Threads that spin while they wait for each other take 40 times as long on a busy machine.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What a model process is told when it starts."""

    models: dict[str, str]
    """Sources of weights by the names that clients use."""
    indices: dict[str, str]
    """Files of features, by the names of the models that have one."""
    device: str | None
    way: str
    """What computes: a name that `deploy.choice` knows."""
    pixels: int
    bytes: int
    threads: int
    """Threads of each process while all are busy."""


@dataclass(eq=False)
class ModelProcess:
    """A process that runs models, one batch at a time."""

    process: asyncio.subprocess.Process
    facts: dict[str, Any] = field(default_factory=dict)
    """What it says of each model; empty until it is ready."""
    micro: dict[str, int] = field(default_factory=dict)
    """Images that each model runs at once."""
    seen: float = 0.0
    """When it last gave a sign of life, by the loop's clock."""
    ended: bool = False

    @classmethod
    async def start(cls, orders: WorkerConfig) -> ModelProcess:
        """Start a process and tell it what to load; it is not ready then."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_PIPE,
            env={**_ENVIRONMENT, **os.environ},
        )  # fmt: skip
        started = cls(process, seen=asyncio.get_running_loop().time())
        started.tell(vars(orders))
        return started

    @property
    def ready(self) -> bool:
        """Whether its models are loaded, and it lives."""
        return bool(self.facts) and not self.ended

    def tell(self, head: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> None:
        """Send a frame; one that has died is noticed by `listen`."""
        assert self.process.stdin is not None
        self.process.stdin.writelines(pack(head, blobs))

    async def listen(self, answered: Callable[[Frame], Awaitable[None]]) -> None:
        """Take in what it says until it ends; InputError where its models can't be loaded."""
        assert self.process.stdout is not None
        loop = asyncio.get_running_loop()
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, blobs = await receive_frame(self.process.stdout)
                self.seen = loop.time()
                if "failed" in head:
                    raise InputError(head["failed"])
                if "ready" in head:
                    self.facts, self.micro = head["ready"], head["micro"]
                if "beat" not in head:
                    await answered((head, blobs))

    async def stop(self, seconds: float = 2.0) -> None:
        """End it: by the end of its input, or by force."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """End it by force."""
        with suppress(ProcessLookupError):
            self.process.kill()
