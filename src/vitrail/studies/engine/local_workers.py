"""Run jobs on this machine: in this process, or in several that share the cores' threads.

A worker is `python -m vitrail.studies.engine.local_workers`: a job is a line of JSON on its stdin,
its answer a line on its stdout. It ends when its stdin does, so that none outlives its parent.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vitrail.config import OBJECT, InputError
from vitrail.machine import available_cores
from vitrail.studies.engine.jobs import Job
from vitrail.studies.engine.sweep_plan import plain_measure, read_measure


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    name: str
    error: str | None = None
    lost: bool = False
    """Whether its machine has gone, so that it is to be run again."""


class Executor(Protocol):
    """Where jobs run."""

    @property
    def slots(self) -> int:
        """Jobs that run at once."""
        ...

    def submit(self, job: Job, chosen: Mapping[str, Any]) -> None:
        """Start a job."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """Return the jobs that have ended; wait so long for the first one."""
        ...


class InProcess:
    """Runs one job at a time, here."""

    slots = 1

    def __init__(self, out: Path) -> None:
        self._out = out
        self._ended: list[Ended] = []

    def submit(self, job: Job, chosen: Mapping[str, Any]) -> None:
        """Run a job to its end."""
        from vitrail.studies.engine.run_job import run_job

        self._ended.append(Ended(job.name, run_job(job, chosen, self._out)))

    def wait(self, seconds: float) -> list[Ended]:
        """Return what has ended since."""
        ended, self._ended = self._ended, []
        return ended


class LocalWorkers:
    """Runs jobs in processes of their own, each with its part of the threads."""

    def __init__(self, out: Path, count: int) -> None:
        self.slots = count
        self._out, self._threads = out, max(1, available_cores() // count)
        self._selector = selectors.DefaultSelector()
        self._idle: list[subprocess.Popen[str]] = []
        self._busy: dict[subprocess.Popen[str], str] = {}

    def submit(self, job: Job, chosen: Mapping[str, Any]) -> None:
        """Hand a job to a worker, a new one if none is idle."""
        line = json.dumps(pack_job(job, chosen, self._out))
        worker = self._idle.pop() if self._idle else self._start()
        assert worker.stdin is not None
        with suppress(BrokenPipeError):  # it has died; that is read from its stdout
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
        self._busy[worker] = job.name

    def _start(self) -> subprocess.Popen[str]:
        threads = str(self._threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        worker = subprocess.Popen(
            [sys.executable, "-m", "vitrail.studies.engine.local_workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what a run says is in its log.txt
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C comes to the parent, which tells them
        )
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)  # pyright: ignore
        return worker

    def wait(self, seconds: float) -> list[Ended]:
        """Return the jobs that have ended; wait so long for the first one."""
        ended = []
        for key, _ in self._selector.select(seconds):
            worker: subprocess.Popen[str] = key.data
            assert worker.stdout is not None
            line = worker.stdout.readline()
            name = self._busy.pop(worker, None)
            if line:
                self._idle.append(worker)
                error = json.loads(line)["error"]
            else:
                self._selector.unregister(worker.stdout)
                error = f"its process ended: {_exit_reason(worker.wait())}"
                _close_pipes(worker)
                with suppress(ValueError):
                    self._idle.remove(worker)
            if name is not None:
                ended.append(Ended(name, error))
        return ended

    def close(self) -> None:
        """Let idle workers end; ask busy ones to save their runs, and wait for that."""
        for worker in self._busy:
            worker.send_signal(signal.SIGTERM)
        for worker in self._busy:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(60)
        for worker in (*self._busy, *self._idle):
            assert worker.stdin is not None
            with suppress(OSError):
                worker.stdin.close()
            worker.wait()
            _close_pipes(worker)
        self._selector.close()


def _close_pipes(worker: subprocess.Popen[str]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()


@contextmanager
def local_executor(out: Path, parallel: int) -> Iterator[Executor]:
    """Open what runs jobs on this machine, so many at once."""
    if parallel == 1:
        yield InProcess(out)
        return
    workers = LocalWorkers(out, parallel)
    try:
        yield workers
    finally:
        workers.close()


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        why = " (perhaps out of memory)" if -code == signal.SIGKILL else ""
        return signal.Signals(-code).name + why
    return f"signal {-code}"


def pack_job(job: Job, chosen: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write a job as plain data for another process."""
    measures = [plain_measure(each) for each in job.measures]
    for measure in measures:
        if isinstance(measure, str) and measure.startswith(OBJECT):
            name = measure.removeprefix(OBJECT)
            raise InputError(
                f"the measure {name} can't be imported by other processes; put it into a module, "
                "or use parallel=1"
            )
    return {
        "name": job.name,
        "words": dict(job.words),
        "seed": job.seed,
        "after": job.after,
        "measures": measures,
        "chosen": dict(chosen),
        "image_seconds": job.image_seconds,
        "out": str(out),
    }


def run_packed(packed: Mapping[str, Any]) -> str | None:
    """Run a job that `pack_job` wrote; return why it failed, if it did."""
    from vitrail.studies.engine.run_job import run_job

    job = Job(
        name=packed["name"],
        words=packed["words"],
        seed=packed["seed"],
        after=packed["after"],
        image_seconds=packed["image_seconds"],
        measures=tuple(read_measure(each) for each in packed["measures"]),
    )
    return run_job(job, packed["chosen"], Path(packed["out"]))


def _serve() -> None:
    """Run jobs from stdin until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # others may print; this is not an answer
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(1)  # the parent has gone, or needs us no more

    threading.Thread(target=read, daemon=True).start()
    while True:
        error = run_packed(json.loads(lines.get()))
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
