"""Batch size, workers and threads: what decides how fast a CPU is.

A batch whose activations stay in the CPU's cache is faster than a large one: ViT-Ti/16 takes 1.4
times as long per image in a batch of 256 as in a batch of 8. Several workers that decode their
images and run the model on one thread each never wait for one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from vitrail.config import InputError
from vitrail.machine import available_cores
from vitrail.models import Spec, ViTSpec

_CACHE_BYTES = 5 << 20
"""Size of a batch's widest activations that one core's share of the cache should hold."""
_MAX_WORKERS = 8  # beyond which Python's lock is felt


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How images are divided into batches; predictions do not depend on it."""

    batch_size: int
    """Images per forward pass."""
    workers: int
    """Batches that are decoded and run at the same time."""
    threads: int
    """Threads per worker."""

    def __post_init__(self) -> None:
        if min(self.batch_size, self.workers, self.threads) < 1:
            raise InputError(
                f"batch size {self.batch_size}, workers {self.workers}, threads {self.threads}: "
                "each must be at least 1"
            )

    def __str__(self) -> str:
        return f"{self.batch_size} x {self.workers} x {self.threads}"


@contextmanager
def keep_threads() -> Iterator[None]:
    """Restore torch's number of threads after the block."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_batching(spec: Spec, *, on_gpu: bool = False) -> BatchingConfig:
    """Choose by the model's size alone; `vitrail bench` measures what is fastest."""
    count = available_cores()
    workers = min(count, _MAX_WORKERS)
    if on_gpu:
        return BatchingConfig(batch_size=64, workers=workers, threads=1)
    widest = 4 * spec.tokens * spec.mlp if isinstance(spec, ViTSpec) else 4 * 64 * 112 * 112
    batch_size = min(max(_CACHE_BYTES // widest, 1), 64)
    return BatchingConfig(batch_size=batch_size, workers=workers, threads=max(1, count // workers))
