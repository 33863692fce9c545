"""The server from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vitrail.config import InputError
from vitrail.deploy.serving.limits import ServeLimits

_FILES = 200  # that the server itself may have open
_BACKLOG = 4096  # connections that wait to be accepted


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How models are served."""

    models: dict[str, str]
    """Sources of weights by the names that clients use; the first is the one meant by none."""
    indices: dict[str, str] = field(default_factory=dict)
    """Files of features in which similar images are found, by the models' names."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any that is free."""
    workers: int = 1
    """Model processes."""
    cores: int = 1
    """Threads that the processes have together."""
    device: str | None = None
    """The best there is unless given."""
    way: str = "pytorch"
    """What computes: a name that `deploy.choice` knows."""
    hosts: tuple[str, ...] = ()
    """Further names that the server may be called by."""
    key: str | None = None
    """What clients must know."""
    limits: ServeLimits = field(default_factory=ServeLimits)


def serve(config: ServeConfig, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what was taken; `started` gets the address.

    InputError where the address is taken, or a model can't be loaded.
    """
    import uvicorn

    with _bind(config) as listening:
        # Without a log_config: to set one up, logging closes the streams of others' handlers.
        loop_factory = uvicorn.Config("", loop="auto", log_config=None).get_loop_factory()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(config, listening, started))


def _bind(config: ServeConfig) -> socket.socket:
    """Take the address before the models are loaded, which takes longer."""
    listening: socket.socket | None = None
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:  # the last for what is no host's name
        if listening:
            listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"can't serve at {config.host} port {config.port}: {reason}; give another --port"
        ) from None
    return listening


async def _serve(
    config: ServeConfig, listening: socket.socket, started: Callable[[str], None]
) -> None:
    import uvicorn

    from vitrail.deploy.serving.app import make_app
    from vitrail.deploy.serving.batching import Batcher
    from vitrail.deploy.serving.connection import Connection
    from vitrail.deploy.serving.metrics import Metrics
    from vitrail.deploy.serving.process import WorkerConfig

    limits, metrics = config.limits, Metrics()
    orders = WorkerConfig(
        models=config.models,
        indices=config.indices,
        device=config.device,
        way=config.way,
        pixels=limits.pixels,
        bytes=limits.body,
        threads=max(1, config.cores // config.workers),
    )
    batcher = Batcher(orders, config.workers, config.cores, limits, metrics)
    app = make_app(batcher, limits, metrics, hosts=list(config.hosts), key=config.key)
    most = _raise_files() - _FILES

    class Limited(Connection):
        """A connection of this server."""

    Limited.limits, Limited.most = limits, most

    class Quiet(uvicorn.Server):
        """A server whose end by a signal is a good one."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    settings = uvicorn.Config(
        app, http=Limited, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, int(limits.stop)),
    )  # fmt: skip
    server = Quiet(settings)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    async def until_stopped() -> None:
        await stopping.wait()
        server.should_exit = True

    starting = asyncio.create_task(batcher.start())
    asked = asyncio.create_task(until_stopped())
    try:
        await asyncio.wait([starting, asked], return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set():
            return
        starting.result()  # raises where a model can't be loaded
        listening.listen(_BACKLOG)  # before the address is told
        host, port = listening.getsockname()[:2]
        started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        await server.serve(sockets=[listening])
    finally:
        starting.cancel()
        asked.cancel()
        await batcher.stop()


def _raise_files() -> int:
    """Let this process have as many files, and so connections, as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
