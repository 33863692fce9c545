"""Run a sweep's jobs on a Ray cluster; a job whose machine has gone is run again elsewhere.

The sweep's folder must be where every machine can read and write it: a run is resumed there from
what its last machine had saved.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.config import InputError
from vitrail.evaluation.engine_ray import import_ray, join_cluster
from vitrail.studies.engine.jobs import Job
from vitrail.studies.engine.local_workers import Ended, pack_job, run_packed

_LOSSES = 3  # machines that a job may lose before it is the one to blame
_PATIENCE = 30.0  # seconds for a lost machine's last process to let go of its run

log = logging.getLogger("vitrail")


class RayWorkers:
    """Hands jobs to Ray, each with its request of cores and GPUs."""

    def __init__(self, ray: Any, out: Path, *, most: int | None, cpus: float, gpus: float) -> None:
        self._ray, self._out, self._most = ray, out.resolve(), most
        self._requests = {"CPU": cpus, "GPU": gpus}
        self._run = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_on_node)
        self._running: dict[Any, str] = {}
        self._lost: Counter[str] = Counter()

    @property
    def slots(self) -> int:
        """Jobs that run at once: as many as the machines that are there now can hold."""
        there = self._ray.cluster_resources()
        fit = [int(there.get(name, 0) // each) for name, each in self._requests.items() if each]
        return max(1, min([*fit, *([self._most] if self._most else [])]))

    def check(self) -> None:
        """Refuse a request that no machine can ever meet."""
        for name, each in self._requests.items():
            most = max((node["Resources"].get(name, 0) for node in self._ray.nodes()), default=0)
            if each > most:
                raise InputError(
                    f"a run asks for {each:g} {name}, and the largest machine of the cluster has "
                    f"{most:g}; ask for less, or add a machine"
                )

    def submit(self, job: Job, chosen: Mapping[str, Any]) -> None:
        """Hand a job to the cluster."""
        self._running[self._run.remote(pack_job(job, chosen, self._out))] = job.name

    def wait(self, seconds: float) -> list[Ended]:
        """Return the jobs that have ended; wait so long for the first one."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._read(each, self._running.pop(each)) for each in ready]

    def _read(self, reference: Any, name: str) -> Ended:
        errors = self._ray.exceptions
        try:
            return Ended(name, self._ray.get(reference))
        except errors.TaskCancelledError:
            return Ended(name, lost=True)
        except errors.RayTaskError as error:  # which run_job would have caught
            return Ended(name, str(error.cause).splitlines()[0])
        except errors.RayError as error:  # its process or its machine has gone
            self._lost[name] += 1
            said = str(error).strip().splitlines()[0]
            if self._lost[name] >= _LOSSES:
                return Ended(name, f"lost {_LOSSES} times: {said}")
            log.warning("%s: lost with its machine or process; it is run again", name)
            return Ended(name, lost=True)

    def close(self) -> None:
        """Ask what still runs to save itself, and wait for that."""
        for reference in self._running:
            self._ray.cancel(reference, force=False, recursive=False)
        if self._running:
            left = list(self._running)
            self._ray.wait(left, num_returns=len(left), timeout=60)


def run_on_node(packed: Mapping[str, Any]) -> str | None:
    """Run a job in a worker of Ray; wait a little for the run's folder, if it is still held."""
    until = time.monotonic() + _PATIENCE
    while True:
        error = run_packed(packed)
        if error is None or "is in use by" not in error or time.monotonic() > until:
            return error
        time.sleep(0.5)


@contextmanager
def ray_executor(
    out: Path, most: int | None, *, cpus: float = 1, gpus: float = 0
) -> Iterator[RayWorkers]:
    """Open a Ray cluster: the one that is joined already, at RAY_ADDRESS, or one started here."""
    ray = import_ray()
    started = not ray.is_initialized()
    if started:
        join_cluster(ray)
    try:
        workers = RayWorkers(ray, out, most=most, cpus=cpus, gpus=gpus)
        workers.check()
        try:
            yield workers
        finally:
            workers.close()
    finally:
        if started:
            ray.shutdown()
