"""How many images run at once, and on how many threads: what decides a processor's speed.

A micro-batch that stays in the processor's cache is faster than a large one: of a ViT-Ti/16, a
image takes 1.4 times as long in a batch of 256 as in one of 8. Several workers, each of which
decodes its images and runs the model on one thread, wait for nothing and for nobody.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec

_CACHED = 5 << 20
"""Bytes of a micro-batch's widest activations, which a core's part of the cache should hold."""
_WORKERS = 8  # beyond which Python's lock is felt


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How images are shared out; what is answered does not depend on it."""

    micro: int
    """Images that run through the model at once."""
    workers: int
    """Micro-batches that are decoded and run side by side, where there are many images."""
    threads: int
    """Threads of each worker's model."""

    def __post_init__(self) -> None:
        if min(self.micro, self.workers, self.threads) < 1:
            raise InputError(f"no pace: {self}; each is at least 1")

    def __str__(self) -> str:
        return f"{self.micro} x {self.workers} x {self.threads}"


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usual_pace(spec: Spec, *, on_gpu: bool = False) -> BatchingConfig:
    """Choose a pace by the model's size alone; `vitrail bench` measures which is best."""
    count = cores()
    workers = min(count, _WORKERS)
    if on_gpu:
        return BatchingConfig(micro=64, workers=workers, threads=1)
    widest = 4 * spec.tokens * spec.mlp if isinstance(spec, ViTSpec) else 4 * 64 * 112 * 112
    micro = min(max(_CACHED // widest, 1), 64)
    return BatchingConfig(micro=micro, workers=workers, threads=max(1, count // workers))
