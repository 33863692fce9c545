"""What a run was and what it cost: size, images, operations; and time and memory of its machine.

The first are the same wherever it ran; the others are kept apart from all that is compared.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from vitrail import __version__
from vitrail.data.dataset import ImageDataset
from vitrail.distributed import Processes
from vitrail.files import write_whole
from vitrail.machine import available_cores
from vitrail.models.cost.training_cost import TrainingCost, training_cost
from vitrail.models.model import Model
from vitrail.models.spec import Spec
from vitrail.training.checkpoints.run_folder import MACHINE, identify_run
from vitrail.training.logging.throughput import peak_memory
from vitrail.training.parts import Parts
from vitrail.training.task import Task
from vitrail.training.train_config import TrainConfig


class _TrainingRun(Protocol):
    """What is told of: `vitrail.training_run.TrainingRun`."""

    config: TrainConfig
    model: Model
    task: Task
    parts: Parts
    val_set: ImageDataset | None


def image_flops(config: TrainConfig, spec: Spec, teacher: Spec | None = None) -> int:
    """Count the operations of training on an image, the same whether or not any are repeated.

    Those that checkpointing repeats to save memory are left out, as they teach nothing.
    """
    plain = replace(config, checkpointing=False, checkpoint_every=1)
    return cost_of_training(plain, spec, teacher).flops


def cost_of_training(
    config: TrainConfig, spec: Spec, teacher: Spec | None = None, *, batch: int = 1
) -> TrainingCost:
    """Compute the exact cost of a run's training, by its task, what it tunes and its teacher."""
    return training_cost(
        spec,
        task=config.task,
        mim=config.mim,
        tune=config.tune,
        teacher=teacher,
        checkpointing=config.recomputed_every,
        batch=batch,
    )


def _describe_training(run: _TrainingRun, steps: int) -> dict[str, Any]:
    """Say what was trained, on how many images and with how many operations.

    Those of a task or model of the user's own are unknown.
    """
    config, parts, spec = run.config, run.parts, run.model.spec
    tensors = list(run.model.parameters())
    images = steps * config.batch
    flops = None
    if parts.task is None and parts.model is None:
        teacher = getattr(run.task, "teach", None)
        flops = image_flops(config, spec, teacher and teacher.spec) * images
    return {
        "data": config.data,
        "example": _find_file(run.val_set),
        "seed": config.seed,
        "settings": identify_run(config)["settings"],
        "model": str(spec),
        "parameters": sum(each.numel() for each in tensors),
        "trained_parameters": sum(each.numel() for each in tensors if each.requires_grad),
        "images_seen": images,
        "flops": flops,
    }


def _find_file(dataset: ImageDataset | None) -> str | None:
    """Give the first image's file, where it is one of its own."""
    if dataset is None or not len(dataset):
        return None
    file = (dataset.root or Path()) / dataset.where(0)
    return os.path.normpath(file) if file.is_file() else None


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Where a run was made, and what it took there, over all processes and resumes."""

    wall_seconds: float = 0.0
    processor_seconds: float = 0.0
    """Of the run's processes and those that loaded its data."""
    peak_memory: int | None = None
    """Bytes, of the GPU if one was used; of the process that needed most."""
    processes: int = 1
    machine: str = ""
    device: str = ""
    versions: dict[str, str] | None = None


class CostMeter:
    """Measures time and memory of a run from now on, and adds what it took before."""

    def __init__(self, folder: Path, processes: Processes, *, resumes: bool) -> None:
        self._path, self._processes = folder / MACHINE, processes
        self._before = _read_facts(self._path) if resumes else MachineFacts()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this run
        self._wall, self._used = time.perf_counter(), _processor_seconds()

    def tell(self, run: _TrainingRun, steps: int) -> dict[str, Any]:
        """Say what a finished run was and what it took; all processes must call it."""
        return {**_describe_training(run, steps), "machine": self.write()}

    def write(self) -> MachineFacts:
        """Write what the run has taken so far; all processes must call it."""
        own = _processor_seconds() - self._used, peak_memory() or 0
        used, peaks = zip(*self._processes.gather(own), strict=True)
        before = self._before
        facts = MachineFacts(
            wall_seconds=before.wall_seconds + time.perf_counter() - self._wall,
            processor_seconds=before.processor_seconds + sum(used),
            peak_memory=max(*peaks, before.peak_memory or 0) or None,
            processes=self._processes.count,
            machine=_describe_machine(),
            device=_describe_device(self._processes.device),
            versions=_list_versions(),
        )
        text = json.dumps(vars(facts), indent=1) + "\n"
        self._processes.on_main(lambda: write_whole(self._path, text))
        return facts


def _read_facts(path: Path) -> MachineFacts:
    with suppress(OSError, ValueError, TypeError):  # without it, time counts from now
        return MachineFacts(**json.loads(path.read_text(encoding="utf-8")))
    return MachineFacts()


def _processor_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _describe_machine() -> str:
    return f"{platform.system()} {platform.machine()}, {available_cores()} cores"


def _describe_device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _list_versions() -> dict[str, str]:
    return {
        "vitrail": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }
