"""The server's configuration: names of models and indices, the API key, and limits."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.config import InputError, suggest
from vitrail.deploy.serving.limits import ServeLimits
from vitrail.deploy.serving.process import KEY_VARIABLE, WorkerConfig

_KEY_LENGTH = 16  # characters at least


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How models are served."""

    worker: WorkerConfig
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port."""
    workers: int = 1
    """Model processes."""
    cores: int = 1
    """Threads of all processes together."""
    hosts: tuple[str, ...] = ()
    """Further host names of the server."""
    key: str | None = None
    """The API key that clients must send."""
    limits: ServeLimits = field(default_factory=ServeLimits)

    def __post_init__(self) -> None:
        for name in self.hosts:
            if ":" in name or "/" in name:
                raise InputError(f"--allow-host {name}: expected a host name without port or path")
        if not 0 <= self.port < 2**16:
            raise InputError(f"--port {self.port}: expected 0 to 65535")


def name_models(models: Any) -> dict[str, Any]:
    """Name each model: NAME=MODEL, the last part of its path, or `model` if it is loaded."""
    if isinstance(models, Mapping):
        return dict(models)
    many = isinstance(models, list | tuple)
    named: dict[str, Any] = {}
    for model in models if many else [models]:
        is_text = isinstance(model, str | os.PathLike)
        text = os.fspath(model) if is_text else "model"
        name, equals, source = text.partition("=")
        if not equals or "/" in name or ":" in name:
            name, source = text.rstrip("/").replace(":", "/").rpartition("/")[2], text
        if not name or not source:
            raise InputError(f"the model {text!r} has no name; give one: NAME={text}")
        if name in named:
            raise InputError(f"two models are called {name!r}; name them: NAME=MODEL")
        named[name] = source if is_text else model
    if not named:
        raise InputError("no model given; give a run folder or a source of weights")
    return named


def name_indices(given: Iterable[str], models: dict[str, str]) -> dict[str, str]:
    """Say which model each index belongs to: NAME=FILE, or the first one."""
    named: dict[str, str] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or "/" in name:
            name, file = next(iter(models)), text
        if name not in models:
            hint = suggest(name, models) or f"; there are: {', '.join(models)}"
            raise InputError(f"--index {text}: no model is called {name!r}{hint}")
        if name in named:
            raise InputError(f"--index {text}: {name!r} already has an index, {named[name]}")
        named[name] = file
    return named


def read_key(path: Path | None) -> str | None:
    """Read the API key from its file, or from the environment."""
    key = os.environ.get(KEY_VARIABLE)
    if path is not None:
        try:
            key = path.read_text(encoding="utf-8").strip()
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise InputError(f"{path}: {reason}; expected a file with the API key") from None
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            sys.stderr.write(
                f"vitrail: warning: other users can read the API key in {path}; chmod 600 {path}\n"
            )
    if key is not None and (len(key) < _KEY_LENGTH or not key.isascii() or not key.isprintable()):
        where = path or KEY_VARIABLE
        raise InputError(
            f"{where}: an API key needs at least {_KEY_LENGTH} printable ASCII characters"
        )
    return key
