"""Batches worked on by Ray Data's workers, on this machine or on many.

A worker gets the numbers of batches and makes them itself, so that only numbers and results travel;
the images lie where every machine sees them. Batches are those of one process, and so are the
results.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.distributed import choose_device
from vitrail.evaluation.evaluate import BATCH, Exam
from vitrail.evaluation.features.extract import Engine
from vitrail.evaluation.scored import Predictions, collect

R = TypeVar("R")
_STORE = 200_000_000  # bytes of shared memory of a Ray that is started here


def ask_ray(
    exam: Exam,
    *,
    batch: int = BATCH,
    workers: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> list[Predictions]:
    """Ask the model about every image on so many workers, one a core unless given."""
    parts: list[Predictions] = []
    done = 0
    for part in map_on_ray(_Ask(exam, batch), range(len(exam.batches(batch))), workers=workers):
        parts.append(part)
        done += len(part.indices) + len(part.bad)
        report(done)
    return parts


@dataclass(frozen=True)
class _Ask:
    """The question about one batch."""

    exam: Exam
    batch: int

    def __call__(self, step: int) -> Predictions:
        """Answer the batch of this number."""
        exam, device = self.exam, choose_device()
        made = [exam.batches(self.batch)[step]]
        model = exam.model.to(device)
        return collect(model, made, exam.preprocess, exam.matching, device=device)[0]


def map_on_ray(
    work: Callable[[int], R], steps: Sequence[int], *, workers: int | None = None
) -> Iterator[R]:
    """Give what `work` makes of each number, in their order, made by Ray's workers.

    It joins the Ray that runs already (RAY_ADDRESS says where), or starts one here for as long.
    """
    ray = _import_ray()
    if workers is not None and workers < 1:
        raise InputError(f"--workers is at least 1 with --engine ray, not {workers}")
    if not steps:
        return
    started = not ray.is_initialized()
    if started:
        _start(ray, workers)
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        crew = max(1, min(workers or cores, cores, len(steps)))
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        # From memory: a source that is read would wait for a core, which the workers have.
        numbers = ray.data.from_items(
            [{"step": step} for step in steps], override_num_blocks=min(len(steps), 4 * crew)
        )
        made = numbers.map_batches(
            _Worker,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=crew),
            fn_constructor_args=([ray.put(work)],),
            num_gpus=1 if ray.cluster_resources().get("GPU") else None,
        )
        for row in made.iter_rows():
            yield pickle.loads(row["made"])
    finally:
        if started:
            ray.shutdown()


def encode_on_ray(workers: int | None = None) -> Engine:
    """Give what `features.extract` takes to compute on so many of Ray's workers."""
    return partial(map_on_ray, workers=workers)


class _Worker:
    """One of Ray's workers, with the work (and so the model) in its memory."""

    def __init__(self, shared: list[Any]) -> None:
        import ray

        torch.set_num_threads(1)
        self.work: Any = ray.get(shared[0])

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, list[bytes]]:
        """Do the work for these numbers."""
        return {"made": [pickle.dumps(self.work(int(step))) for step in rows["step"]]}


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
    ray.data.DataContext.get_current().enable_progress_bars = False
