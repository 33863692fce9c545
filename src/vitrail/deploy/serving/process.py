"""One model process as the server sees it: started, used, and ended."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vitrail.config import InputError
from vitrail.deploy.serving.frames import Frame, pack_frame, receive_frame
from vitrail.machine import KEEP_FREED_MEMORY

COMMAND = (sys.executable, "-m", "vitrail.deploy.serving.worker")
_PIPE = 2**24  # bytes read ahead of a pipe
# Threads that spin while waiting take 40 times as long on a busy machine.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONSAFEPATH": "1",
    "GLIBC_TUNABLES": KEEP_FREED_MEMORY,
}
KEY_VARIABLE = "VITRAIL_API_KEY"
"""Environment variable with the API key, which model processes never see."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What a model process gets when it starts."""

    models: dict[str, str]
    """Sources of weights by the names that clients use; the first is the default."""
    indices: dict[str, str]
    """Files of features, by the names of the models that have one."""
    device: str | None
    """The best device if None."""
    backend: str
    precision: str
    """Of matrix products: float32, bfloat16 or int8."""
    data: str | None
    """The dataset whose training images calibrate int8."""
    unsure: float | None
    """The error rate of the answers that are given; None gives all."""
    pixels: int
    """Largest image."""
    bytes: int
    """Largest request."""
    threads: int
    """Threads of each process while all are busy."""


@dataclass(eq=False)
class ModelProcess:
    """A process that runs models, one batch at a time."""

    process: asyncio.subprocess.Process
    info: dict[str, Any] = field(default_factory=dict)
    """What it says about each model; empty until it is ready."""
    batch_size: dict[str, int] = field(default_factory=dict)
    """Largest batch of each model."""
    seen: float = 0.0
    """Time of its last heartbeat, by the loop's clock."""
    ended: bool = False

    @classmethod
    async def start(cls, config: WorkerConfig) -> ModelProcess:
        """Start a process and send it its configuration; it is not ready yet."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_PIPE,
            env={
                **_ENVIRONMENT,
                **{name: text for name, text in os.environ.items() if name != KEY_VARIABLE},
            },
        )  # fmt: skip
        started = cls(process, seen=asyncio.get_running_loop().time())
        started.send(vars(config))
        return started

    @property
    def ready(self) -> bool:
        """Whether it is running and its models are loaded."""
        return bool(self.info) and not self.ended

    def send(self, head: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> None:
        """Send a frame; `listen` notices if the process has ended."""
        assert self.process.stdin is not None
        self.process.stdin.writelines(pack_frame(head, blobs))

    async def listen(self, receive: Callable[[Frame], None]) -> None:
        """Receive frames until it ends; InputError if its models can't be loaded."""
        assert self.process.stdout is not None
        loop = asyncio.get_running_loop()
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, blobs = await receive_frame(self.process.stdout)
                self.seen = loop.time()
                if "failed" in head:
                    raise InputError(head["failed"])
                if "ready" in head:
                    self.info, self.batch_size = head["ready"], head["batch_size"]
                if "heartbeat" not in head:
                    receive((head, blobs))

    async def stop(self, seconds: float = 2.0) -> None:
        """End it, by closing its input or else by force."""
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
