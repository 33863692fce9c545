"""The server from start to end."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vitrail.config import InputError
from vitrail.data.decoding.faults import LIMITS
from vitrail.deploy.serving.limits import ServeLimits
from vitrail.deploy.serving.process import WorkerConfig
from vitrail.deploy.serving.serve_config import ServeConfig, name_indices, name_models, read_key
from vitrail.evaluation.uncertainty.selective import parse_rate
from vitrail.machine import available_cores

if TYPE_CHECKING:
    from vitrail.weights.loaded import AnyModel

_FILES = 200  # open files of the server itself
_FEWEST = 50  # connections below which hardly anybody could be served
_BACKLOG = 4096  # connections that wait to be accepted
_ENDING = 1  # second that the model processes take to end, after the last answer
_MAX_SECONDS, _MAX_IMAGES = 3600, 65536


def serve(
    models: AnyModel | list[AnyModel] | tuple[AnyModel, ...] | Mapping[str, AnyModel],
    *,
    index: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int | None = None,
    backend: str = "pytorch",
    precision: str = "float32",
    data: str | Path | None = None,
    unsure: float | str | None = None,
    device: str | None = None,
    api_key_file: str | Path | None = None,
    allow_host: Sequence[str] = (),
    max_megabytes: float = 10.0,
    max_megapixels: float = 36.0,
    max_images: int = 16,
    queue: int = 256,
    receive_seconds: float = 8.0,
    answer_seconds: float = 30.0,
    on_start: Callable[[str, ServeConfig], None] = lambda address, config: None,
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C, with the options of `vitrail serve`.

    A dict names the models; loaded ones are handed over in a temporary folder. `precision` is
    float32, bfloat16, int8, which training images of `data` calibrate, or auto. `unsure`, such as
    "5%", withholds answers so that at most that fraction of the others is wrong. `on_start` gets
    the address once the models are loaded. InputError if the address is taken or a model can't be
    loaded.
    """
    for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if find_spec(package) is None:
            raise InputError(f"serve needs {package}: pip install 'vitrail[serve]'")
    for flag, given, most in (
        ("--max-megabytes", max_megabytes, ServeLimits.uploads / 2**20),  # of all requests
        ("--max-megapixels", max_megapixels, LIMITS.pixels / 1e6),  # of any decoded image
        ("--max-images", max_images, _MAX_IMAGES),
        ("--queue", queue, _MAX_IMAGES),
        ("--receive-seconds", receive_seconds, _MAX_SECONDS),
        ("--answer-seconds", answer_seconds, _MAX_SECONDS),
    ):
        if not 0 < given <= most:
            raise InputError(f"{flag} {given:g}: expected more than 0 and at most {most:g}")
    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: expected at least 1")
    cores = available_cores()
    workers, named = workers or cores, name_models(models)
    limits = ServeLimits(
        body=int(max_megabytes * 2**20),
        pixels=int(max_megapixels * 1e6),
        images=min(max_images, queue),  # more would never fit into the queue
        queue=queue,
        receive=receive_seconds,
        answer=answer_seconds,
    )
    worker = WorkerConfig(
        models=named,
        indices=name_indices(index, named),
        device=device,
        backend=backend,
        precision=precision,
        data=None if data is None else os.fspath(data),
        unsure=None if unsure is None else parse_rate(unsure),
        pixels=limits.pixels,
        bytes=limits.body,
        threads=max(1, cores // workers),
    )
    config = ServeConfig(
        worker=worker,
        host=host,
        port=port,
        workers=workers,
        cores=cores,
        hosts=tuple(allow_host),
        key=read_key(None if api_key_file is None else Path(api_key_file)),
        limits=limits,
    )
    if host not in ("127.0.0.1", "::1", "localhost"):
        who = "anyone with the API key" if config.key else "anyone: there is no --api-key-file"
        sys.stderr.write(f"vitrail: warning: other machines can reach {host}, {who}\n")
    with _written(named) as sources:
        worker = replace(config.worker, models=sources)
        run_server(replace(config, worker=worker), on_start)


@contextmanager
def _written(models: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Give each model as text; a loaded one is written to a folder, which the processes read."""
    texts = {name: os.fspath(m) for name, m in models.items() if isinstance(m, str | os.PathLike)}
    loaded = {name: model for name, model in models.items() if name not in texts}
    if not loaded:  # and torch, which this process does not need, is not imported
        yield texts
        return
    from vitrail.weights.loaded import save

    with TemporaryDirectory(prefix="vitrail-serve-") as folder:
        for number, (name, model) in enumerate(loaded.items()):
            texts[name] = str(save(model, Path(folder, str(number))))
        yield {name: texts[name] for name in models}


def run_server(config: ServeConfig, on_start: Callable[[str, ServeConfig], None]) -> None:
    """Run a server until SIGTERM or Ctrl-C, then finish the accepted requests."""
    import uvicorn

    with _bind(config) as listening:
        # Without a log_config: setting one up closes the streams of other logging handlers.
        loop_factory = uvicorn.Config("", loop="auto", log_config=None).get_loop_factory()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(config, listening, on_start))


def _bind(config: ServeConfig) -> socket.socket:
    """Take the address before the models are loaded, which takes longer."""
    listening: socket.socket | None = None
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:  # the last for an invalid host name
        if listening:
            listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"can't listen on {config.host} port {config.port}: {reason}; try another --port"
        ) from None
    return listening


async def _serve(
    config: ServeConfig, listening: socket.socket, on_start: Callable[[str, ServeConfig], None]
) -> None:
    import uvicorn

    from vitrail.deploy.serving.app import make_app
    from vitrail.deploy.serving.batching import Batcher
    from vitrail.deploy.serving.connection import Connection
    from vitrail.deploy.serving.metrics import Metrics

    limits, metrics = config.limits, Metrics()
    batcher = Batcher(config.worker, config.workers, config.cores, limits, metrics)
    app = make_app(batcher, limits, metrics, hosts=list(config.hosts), key=config.key)
    most = _allow_connections()

    class Limited(Connection):
        """A connection of this server."""

    Limited.limits, Limited.most = limits, most

    class Server(uvicorn.Server):
        """A server for which a signal is a normal end."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    settings = uvicorn.Config(
        app, http=Limited, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, int(limits.stop)),
    )  # fmt: skip
    server = Server(settings)
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
        listening.listen(_BACKLOG)  # before the address is announced
        host, port = listening.getsockname()[:2]
        on_start(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", config)
        await server.serve(sockets=[listening])
    finally:
        starting.cancel()
        asked.cancel()
        await batcher.stop()


def _allow_connections() -> int:
    """Raise the limit of open files as far as allowed; return the connections it leaves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    most = max(soft, wanted) - _FILES
    if most < _FEWEST:
        raise InputError(
            f"only {hard} open files are allowed, too few for connections; raise the limit to "
            f"{_FILES + _FEWEST} or more with ulimit -n"
        )
    return most
