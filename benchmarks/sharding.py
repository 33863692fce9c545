"""What a process holds of a model: alone, by DDP and with `--sharding full`, by the same step.

    python benchmarks/sharding.py --processes 4 --model 'ViT-B/16@32'

Each row is the peak of resident memory beyond what the process held before it built the model, of
each of the processes (gloo, one thread), after building and after one step of AdamW.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from scale import memory


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    processes: int = 4
    model: str = "ViT-B/16@32"
    batch: int = 8


def peaks(model: str, sharding: Literal["none", "full"], batch: int) -> list[int]:
    """Build a model and take a step; give the peak in MB after each."""
    import torch

    from vitrail.data.batches import TrainBatches
    from vitrail.data.datasets.open import open_dataset
    from vitrail.distributed import process_group
    from vitrail.signals import Signals
    from vitrail.tasks import make_task
    from vitrail.training.parts import gather_parts
    from vitrail.training.train_config import TrainConfig
    from vitrail.training.trainer_setup import build_model, make_trainer

    torch.set_num_threads(1)
    settings: Any = {"precision": "float32", "sharding": sharding, "batch": batch}
    first = TrainConfig(data="shapes,take=64", out=Path("run"), model=model, **settings)
    tiny = f"{model},depth=1,width=48,heads=3,mlp=48"
    found: list[int] = []
    with process_group("cpu") as processes:
        for config in (replace(first, model=tiny), first):  # the first loads what is loaded once
            data, parts = open_dataset(config.data), gather_parts(config)[1]
            task = make_task(config, data)
            before = memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            built, _ = build_model(config, task, parts, processes)
            trainer = make_trainer(config, built, task, len(data), processes, parts)
            found = [round(memory("VmHWM") - before)]
            batches = TrainBatches(
                data,
                config.augment,
                task.preprocess,
                batch=batch,
                seed=0,
                shard=processes.shard,
                mixed=False,
            )
            trainer.step(0, batches[0], Signals())
            found.append(round(memory("VmHWM") - before))
            del built, trainer
    return found


def measure(plan: Plan, sharding: str, count: int) -> list[list[int]]:
    """Start so many processes; give the peaks of each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, "child", plan.model, sharding, str(plan.batch)]
    running = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]
    return [json.loads(each.communicate()[0].splitlines()[-1]) for each in running]


def main(plan: Plan) -> None:
    """Measure and print a table."""
    rows = {
        "one process": measure(plan, "none", 1),
        f"{plan.processes} processes, DDP": measure(plan, "none", plan.processes),
        f"{plan.processes} processes, --sharding full": measure(plan, "full", plan.processes),
    }
    print("\n| MB of each process | built | after a step |\n|---|---:|---:|")
    for name, found in rows.items():
        cells = (", ".join(map(str, each)) for each in zip(*found, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        found = peaks(sys.argv[2], sys.argv[3], int(sys.argv[4]))  # type: ignore[arg-type]
        print(json.dumps(found), flush=True)
        os._exit(0)  # Python's exit may wait for gloo's threads
    else:
        main(tyro.cli(Plan, description=__doc__))
