"""Batches computed by Ray Data's workers, on this machine or on many.

A worker gets the numbers of batches and makes them itself, so that only numbers and results travel;
the images must be where every machine can read them. Batches, and so the results, are the same as
in one process.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.distributed import choose_device
from vitrail.evaluation.dataset_predictions import ClassMatching, Predictions, predict_batches
from vitrail.weights.checkpoint import Activation
from vitrail.weights.loaded import LoadedModel

R = TypeVar("R")
_STORE = 200_000_000  # bytes of shared memory, of a cluster that is started here


def predict_on_ray(
    loaded: LoadedModel,
    batches: EvalBatches,
    matching: ClassMatching,
    *,
    device: str | None = None,
    workers: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> list[Predictions]:
    """Run a model over all batches on `workers` processes, by default one per core.

    Without a device a worker uses its GPU, if it has one.
    """
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"--engine ray takes --device cpu or cuda, got {device!r}")
    work = _PredictBatch(
        loaded.model.cpu(), batches, matching, loaded.activation, loaded.temperature, device
    )
    parts: list[Predictions] = []
    done = 0
    steps = range(len(batches))
    for part in map_on_ray(work, steps, workers=workers, gpus=device != "cpu"):
        parts.append(part)
        done += len(part.indices) + len(part.unreadable)
        report(done)
    return parts


@dataclass(frozen=True)
class _PredictBatch:
    """The work on one batch, which is sent to a worker."""

    model: nn.Module
    batches: EvalBatches
    matching: ClassMatching
    activation: Activation
    temperature: float
    device: str | None

    def __call__(self, step: int) -> Predictions:
        """Predict the batch of this number."""
        device = choose_device(self.device)
        made = [self.batches[step]]
        return predict_batches(
            self.model.to(device),
            made,
            self.batches.preprocess,
            self.matching,
            device=device,
            activation=self.activation,
            temperature=self.temperature,
        )[0]


def map_on_ray(
    work: Callable[[int], R], steps: Sequence[int], *, workers: int | None = None, gpus: bool = True
) -> Iterator[R]:
    """Yield what `work` makes of each number, in their order, on Ray's workers.

    It joins the Ray cluster at RAY_ADDRESS, or starts one here for as long. With `gpus` a worker
    gets a GPU, if the cluster has any.
    """
    ray = import_ray()
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1 with --engine ray, got {workers}")
    if not steps:
        return
    started = not ray.is_initialized()
    if started:
        join_cluster(ray, workers)
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        count = max(1, min(workers or cores, cores, len(steps)))
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        # From memory: reading a file would wait for a core, and the workers have them all.
        numbers = ray.data.from_items(
            [{"step": step} for step in steps], override_num_blocks=min(len(steps), 4 * count)
        )
        made = numbers.map_batches(
            _Worker,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=count),
            fn_constructor_args=([ray.put(work)],),
            num_gpus=1 if gpus and ray.cluster_resources().get("GPU") else None,
        )
        for row in made.iter_rows():
            yield pickle.loads(row["made"])
    finally:
        if started:
            ray.shutdown()


class _Worker:
    """A Ray worker that holds the work, and so the model, in memory."""

    def __init__(self, shared: list[Any]) -> None:
        import ray

        torch.set_num_threads(1)
        self.work: Any = ray.get(shared[0])

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, list[bytes]]:
        """Do the work for these numbers."""
        return {"made": [pickle.dumps(self.work(int(step))) for step in rows["step"]]}


def import_ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'vitrail[ray]'") from None
    return ray


def join_cluster(ray: Any, workers: int | None = None) -> None:
    """Join a running Ray cluster, or start a small one without dashboard or usage reports."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its log files have it all
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
