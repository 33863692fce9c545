"""Several processes that work together, forked from a clean one that has torch already.

Not from this one: pytest and other tests leave threads here, and what a fork inherits of theirs
hangs. So does a gloo group, whose end waits for threads that the fork does not have.
"""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import cloudpickle
import pytest
import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from vitrail.signals import Stopped

LIMIT = 150.0
"""Seconds that processes may take before they count as hanging."""
GRACE = 60.0
"""Seconds that the others may take to end when one has failed."""

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # or the clean process has threads too
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.hf_storage"),
        *("torch.distributed.checkpoint.state_dict", "numpy.ma", "vitrail.run", "tests.forks"),
    ]
)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or minus the signal's number; what it gave or raised."""

    code: int
    value: Any = None
    error: str = ""


def in_processes(
    work: Callable[[], object],
    count: int = 2,
    *,
    meanwhile: Callable[[list[ForkServerProcess]], None] = lambda processes: None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[Ended]:
    """Do the same work in so many processes, with the environment that torchrun gives, and more.

    They share nothing with this one but what `work` holds. `meanwhile` gets them as soon as they
    run. Where they hang the test fails, with a stack of each.
    """
    agent = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # as torchrun has one
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(agent.port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    with TemporaryDirectory() as folder:
        processes, files = [], [Path(folder, str(rank)) for rank in range(count)]
        try:
            for rank, file in enumerate(files):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                environment = {**os.environ, **shared, **own, **variables}
                args = (cloudpickle.dumps(work), environment, file)
                process = _CONTEXT.Process(target=_be_child, args=args)
                process.start()
                processes.append(process)
            meanwhile(processes)
            _wait(processes, files)
        finally:
            for process in processes:
                process.kill()
                process.join()
        return [_read(process, file) for process, file in zip(processes, files, strict=True)]


def _be_child(work: bytes, environment: dict[str, str], file: Path) -> None:
    """Work, and leave in a file what came of it, beside what was printed."""
    ended = Ended(1)
    try:
        printed = os.open(file.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        sys.stdout = sys.stderr = os.fdopen(printed, "w", buffering=1, closefd=False)
        faulthandler.register(signal.SIGUSR1, sys.stderr)
        warnings.simplefilter("error")
        os.environ.update(environment)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        ended = Ended(0, cloudpickle.loads(work)())
    except Stopped as stopped:
        ended = Ended(128 + stopped.number, None, str(stopped))
    except BaseException as error:
        ended = Ended(1, None, f"{type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        file.write_bytes(pickle.dumps(ended))
        os._exit(ended.code)  # as a run that was killed: without what ends threads and groups


def _wait(processes: list[ForkServerProcess], files: list[Path]) -> None:
    """Wait for all at once; fail with their stacks if they hang, or if they outlive a failure."""
    end = time.monotonic() + LIMIT
    while running := {each.sentinel: each for each in processes if each.exitcode is None}:
        if any(each.exitcode for each in processes):
            end = min(end, time.monotonic() + GRACE)
        if not wait(list(running), max(0.0, end - time.monotonic())):
            break
    if not running:
        return
    for process in running.values():
        os.kill(process.pid or 0, signal.SIGUSR1)
    time.sleep(1)  # while they write
    said = [
        f"--- process {rank}, {process.exitcode=}\n{file.with_suffix('.txt').read_text()}"
        for rank, (process, file) in enumerate(zip(processes, files, strict=True))
        if file.with_suffix(".txt").exists()
    ]
    pytest.fail("processes hang\n" + "\n".join(said), pytrace=False)


def _read(process: ForkServerProcess, file: Path) -> Ended:
    """Give what a process left, or how it was killed."""
    with suppress(FileNotFoundError):
        return pickle.loads(file.read_bytes())
    assert process.exitcode is not None
    return Ended(process.exitcode)
