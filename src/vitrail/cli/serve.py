"""The command that serves models over HTTP."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from vitrail.config import InputError, suggest
from vitrail.console import print_json, print_line

KEY = "VITRAIL_API_KEY"
_SHORTEST = 16  # characters of a key
_LONGEST, _MOST = 3600, 65536  # seconds, and images, of a limit


def serve(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL")],
    *,
    index: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE")] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int | None = None,
    way: str = "pytorch",
    device: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    api_key_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    allow_host: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (),
    max_megabytes: float = 10.0,
    max_megapixels: float = 50.0,
    max_images: int = 16,
    queue: int = 256,
    receive_seconds: float = 8.0,
    answer_seconds: float = 30.0,
    json: Annotated[bool, tyro.conf.arg(help="Say as JSON when and where it serves.")] = False,
) -> None:
    """Serve models over HTTP, with a page to see them think.

    Example: vitrail serve runs/photos other=timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k

    Uploads are held in memory only, and neither kept nor logged. SIGTERM and Ctrl-C finish what was
    taken, and end with exit code 0.

    Args:
        models: Runs' or models' folders, or weights: timm:…, hf:…, google:…, file:…, or a path;
            NAME=MODEL says what clients call it, else the last part of its path does.
        index: Features that vitrail embed wrote, in which similar images are found: of the first
            model, or NAME=FILE of another.
        host: The address to listen at; 0.0.0.0 lets everybody in who can reach this machine.
        port: 0 takes any that is free.
        workers: Model processes; one a core unless given.
        way: What computes: pytorch, onnxruntime or openvino; auto measures, once for a model and
            a machine, which is fastest. The answers are the same.
        device: cpu, cuda:1, mps; the best there is unless given.
        api_key_file: A file with the key that clients must send; VITRAIL_API_KEY may hold it too.
        allow_host: Further names that clients may call the server by, such as that of a proxy.
        max_megabytes: The largest request.
        max_megapixels: The largest image.
        max_images: The most images of a request; never more than may wait.
        queue: Images that may wait; more are refused with 503.
        receive_seconds: How long a client may take for its headers, and to begin with its body.
        answer_seconds: After how long a request is late, and gets 504.
    """
    for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if find_spec(package) is None:
            raise InputError(f"this needs {package}: pip install 'vitrail[serve]'")
    # The server itself stays free of torch, which its model processes load.
    from vitrail.data.decoding.faults import LIMITS
    from vitrail.deploy.serving.limits import ServeLimits
    from vitrail.deploy.serving.server import ServeConfig
    from vitrail.deploy.serving.server import serve as run

    for flag, given, most in (
        ("--max-megabytes", max_megabytes, ServeLimits.held / 2**20),  # all requests' at once
        ("--max-megapixels", max_megapixels, LIMITS.pixels / 1e6),  # what decoding takes at all
        ("--max-images", max_images, _MOST),
        ("--queue", queue, _MOST),
        ("--receive-seconds", receive_seconds, _LONGEST),
        ("--answer-seconds", answer_seconds, _LONGEST),
    ):
        if not 0 < given <= most:
            raise InputError(f"{flag} {given:g}: expected above 0, at most {most:g}")
    limits = ServeLimits(
        body=int(max_megabytes * 2**20),
        pixels=int(max_megapixels * 1e6),
        images=min(max_images, queue),  # more would be told to try again for ever
        queue=queue,
        receive=receive_seconds,
        answer=answer_seconds,
    )
    for name in allow_host:
        if ":" in name or "/" in name:
            raise InputError(f"--allow-host {name}: expected a name alone; its port may be any")
    if not 0 <= port < 2**16:
        raise InputError(f"--port {port}: expected 0 to 65535")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = (cores or 1) if workers is None else workers
    if count < 1:
        raise InputError(f"--workers {count}: expected 1 or more")
    key = _read_key(api_key_file)
    named = name_models(models)
    config = ServeConfig(
        models=named, indices=name_indices(index, named), host=host, port=port, workers=count,
        cores=cores or 1, device=device, way=way, hosts=allow_host, key=key, limits=limits,
    )  # fmt: skip
    if host not in ("127.0.0.1", "::1", "localhost"):
        who = "everybody who knows the key" if key else "everybody, for there is no --api-key-file"
        sys.stderr.write(f"vitrail: warning: {host} can be reached from other machines, by {who}\n")

    def started(address: str) -> None:
        if json:
            print_json({"address": address, "models": list(named), "workers": count})
        else:
            print_line(f"{address} serves {', '.join(named)}; Ctrl-C stops")
        sys.stdout.flush()

    run(config, started)


def name_models(given: tuple[str, ...]) -> dict[str, str]:
    """Say what clients call each model: NAME=MODEL, or the last part of its path."""
    if not given:
        raise InputError("no model given; name a run's folder or a source of weights")
    named: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals or "/" in name or ":" in name:
            name, source = text.rstrip("/").replace(":", "/").rpartition("/")[2], text
        if not name or not source:
            raise InputError(f"the model {text!r} has no name; call it NAME={text}")
        if name in named:
            raise InputError(f"two models are called {name!r}; call them NAME=MODEL")
        named[name] = source
    return named


def name_indices(given: tuple[str, ...], models: dict[str, str]) -> dict[str, str]:
    """Say which index belongs to each model: NAME=FILE, or that of the first."""
    named: dict[str, str] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or "/" in name:
            name, file = next(iter(models)), text
        if name not in models:
            hint = suggest(name, models) or f"; there are: {', '.join(models)}"
            raise InputError(f"--index {text}: no model is called {name!r}{hint}")
        if name in named:
            raise InputError(f"--index {text}: {name!r} has an index already, {named[name]}")
        named[name] = file
    return named


def _read_key(path: Path | None) -> str | None:
    """Read the key from its file, or from the environment."""
    key = os.environ.get(KEY)
    if path is not None:
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text"
            raise InputError(f"{path}: {reason}; expected a file with the API key") from None
    if key is not None and (len(key) < _SHORTEST or not key.isascii() or not key.isprintable()):
        where = path or KEY
        raise InputError(f"{where}: an API key has {_SHORTEST} printable ASCII characters or more")
    return key
