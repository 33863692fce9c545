"""Several processes that work together, forked from this one, which has torch already."""

import os
import pickle
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from vitrail.train.signals import Stopped


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or minus the signal's number; what it gave or raised."""

    code: int
    value: Any = None
    error: str = ""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def in_processes(
    work: Callable[[], object],
    count: int = 2,
    *,
    meanwhile: Callable[[list[int]], None] = lambda pids: None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[Ended]:
    """Do the same work in so many processes, with the environment that torchrun gives, and more.

    `meanwhile` gets their numbers as soon as they run.
    """
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": f"{free_port()}"}
    pids, pipes = [], []
    for rank in range(count):
        reading, writing = os.pipe()
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of threads
            pid = os.fork()
        if pid == 0:
            os.environ.update(
                shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | dict(variables)
            )
            _be_child(work, writing)
        os.close(writing)
        pids.append(pid)
        pipes.append(reading)
    meanwhile(pids)
    return [_wait(pid, pipe) for pid, pipe in zip(pids, pipes, strict=True)]


def _be_child(work: Callable[[], object], writing: int) -> None:
    """Work, and end without what pytest would do at the end."""
    ended = Ended(1)
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        sys.stdout = sys.stderr = os.fdopen(quiet, "w", closefd=False)
        ended = Ended(0, work())
    except Stopped as stopped:
        ended = Ended(128 + stopped.number, None, str(stopped))
    except BaseException as error:
        ended = Ended(1, None, f"{type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        os.write(writing, pickle.dumps(ended))
        os._exit(ended.code)


def _wait(pid: int, pipe: int) -> Ended:
    with os.fdopen(pipe, "rb") as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    return pickle.loads(said) if said else Ended(os.waitstatus_to_exitcode(status))
