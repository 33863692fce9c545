"""The same questions asked by Ray Data's workers, on this machine or on many.

A worker gets the numbers of batches and makes them itself, so that only numbers and answers travel;
the pictures lie where every machine sees them. Batches are those of one process, and so are the
answers.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.evaluate.answers import Answers
from vitrail.evaluate.examine import BATCH, Exam

_STORE = 200_000_000  # bytes of shared memory of a Ray that is started here; answers are small


def ask_ray(
    exam: Exam,
    *,
    batch: int = BATCH,
    workers: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> list[Answers]:
    """Ask the model about every picture on so many workers, one a core unless given.

    It joins the Ray that runs already (RAY_ADDRESS says where), or starts one here for as long.
    """
    ray = _import_ray()
    if workers is not None and workers < 1:
        raise InputError(f"--workers is at least 1 with --engine ray, not {workers}")
    steps = len(exam.batches(batch))
    started = not ray.is_initialized()
    if started:
        _start(ray, workers)
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        crew = max(1, min(workers or cores, cores, steps))
        shared = ray.put((exam, batch))
        # From memory: a source that is read would wait for a core, which the workers have.
        numbers = ray.data.from_items(
            [{"step": step} for step in range(steps)], override_num_blocks=min(steps, 4 * crew)
        )
        pool = ray.data.ActorPoolStrategy(size=crew)
        found = numbers.map_batches(
            _Worker, batch_size=1, compute=pool, fn_constructor_args=([shared],)
        )
        parts: list[Answers] = []
        done = 0
        for row in found.iter_rows():
            part: Answers = pickle.loads(row["answers"])
            parts.append(part)
            done += len(part.indices) + len(part.bad)
            report(done)
        return parts
    finally:
        if started:
            ray.shutdown()


class _Worker:
    """One of Ray's workers, with the model in its memory."""

    def __init__(self, shared: list[Any]) -> None:
        import ray
        import torch

        torch.set_num_threads(1)
        self.exam, self.batch = ray.get(shared[0])
        self.batches = self.exam.batches(self.batch)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.exam.model.to(self.device)

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, list[bytes]]:
        """Answer the batches of these numbers."""
        from vitrail.evaluate.answers import collect

        made = (self.batches[int(step)] for step in rows["step"])
        exam = self.exam
        found = collect(exam.model, made, exam.preprocess, exam.matching, device=self.device)
        return {"answers": [pickle.dumps(each) for each in found]}


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("--engine ray needs Ray; install vitrail[ray]") from None
    return ray


def _start(ray: Any, workers: int | None) -> None:
    """Join the Ray that runs, or start a small one without a page or reports to its makers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its files have all that it says
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**quiet)
    else:
        ray.init(
            address="local",
            num_cpus=workers,
            object_store_memory=_STORE,
            include_dashboard=False,
            **quiet,
        )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
