"""What the runs of a sweep cost: steps and exact operations, and their time by measured steps."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.config import InputError
from vitrail.data.datasets.open import open_data
from vitrail.machine import available_cores
from vitrail.result import Result, ResultTable
from vitrail.run_estimate import ImageTime, time_image
from vitrail.studies.engine.jobs import Job, Records
from vitrail.studies.engine.stage_words import resolve_stage, solve_length, stage_flops
from vitrail.text import show_duration
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import count_images
from vitrail.training.trainer_setup import count_steps

_SECONDS = 1.0  # that steps are measured for, so that a budget is met within some percent
_SHOWN = 30  # runs that a summary lists


@dataclass(frozen=True)
class RunCost:
    """A run of a sweep before it is run."""

    name: str
    model: str
    steps: int
    flops: int
    """Of all training steps."""
    seconds: float | None = None
    """Expected time; None where nothing was measured."""
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepEstimate(Result):
    """A sweep in numbers, before it is run."""

    cells: int
    runs: tuple[RunCost, ...]
    """Runs that choose settings and runs before others included."""
    parallel: int
    flops: int
    """Of the runs that are still to be made."""
    seconds: float
    """Expected time of these, `parallel` at once."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the sums, then one row for each run."""
        rows = [vars(each) for each in self.runs]
        done = sum(each.done for each in self.runs)
        head = {"cells": self.cells, "runs": len(self.runs), "done": done}
        sums = {"parallel": self.parallel, "flops": self.flops, "seconds": self.seconds}
        return {**head, **sums, "rows": rows}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per run, then the sums."""
        rows = []
        for each in self.runs[:_SHOWN]:
            took = "done" if each.done else show_duration(each.seconds or 0)
            rows.append((each.name, f"{each.steps:,}", f"{each.flops:.3g}", took))
        yield ResultTable(("run", "steps", "FLOPs", "time"), rows)
        if len(self.runs) > _SHOWN:
            yield f"… and {len(self.runs) - _SHOWN:,} more runs"
        left = [each for each in self.runs if not each.done]
        done = (
            f", {len(self.runs) - len(left):,} of them done" if len(left) < len(self.runs) else ""
        )
        yield f"{self.cells:,} cells, {len(self.runs):,} runs{done}"
        at_once = f", {self.parallel} at once" if self.parallel > 1 else ""
        yield f"{self.flops:.3g} FLOPs, about {show_duration(self.seconds)}{at_once}"


def check_jobs(jobs: Mapping[str, Job]) -> dict[str, TrainConfig]:
    """Resolve every run's settings, so that what can't be run is refused before anything is.

    A length in FLOPs or processor minutes is one step here.
    """
    found: dict[str, TrainConfig] = {}
    seen: set[str] = set()
    for job in jobs.values():
        before = found[job.after].model if job.after else None
        words = {**job.words, **({"weights": "run"} if job.after else {})}
        config = resolve_stage(words, Path("_"), seed=job.seed, model=before)
        found[job.name] = config
        key = json.dumps([words, before, [tried for _, tried in job.trials]], default=str)
        if key in seen:
            continue
        seen.add(key)
        _count_images(config.data)
        for _, tried in job.trials:
            resolve_stage({**words, **tried}, Path("_"), seed=job.seed, model=before)
        if words.get("flops") is not None:
            solve_length(words, config)
    return found


@functools.lru_cache(maxsize=256)
def _count_images(data: str) -> int:
    """Count training images; refuse what is not a dataset."""
    return count_images(open_data(data, split="train", labels=False)) or 0


def plan_costs(
    jobs: Mapping[str, Job], configs: Mapping[str, TrainConfig], records: Records
) -> dict[str, RunCost]:
    """Say what each run is: its steps and exact operations."""
    found = {}
    for name, job in jobs.items():
        config = configs[name]
        steps = solve_length(job.words, config, job.image_seconds)
        if steps is None:
            steps = count_steps(config, _count_images(config.data))
        flops = stage_flops(config) * config.batch * steps
        done = records.done(name)
        found[name] = RunCost(name, config.model, steps, flops, done=done)
    return found


def speed_key(config: TrainConfig) -> str:
    """Name what decides how long training on an image takes."""
    teacher = config.distill.teacher if config.distill else None
    own = [config.model, config.task, config.tune.mode, teacher, config.precision, config.compile]
    return json.dumps([*own, config.recomputed_every, config.repeats])


class Speeds:
    """How long training on an image takes, by a few steps of each kind of run, once each."""

    def __init__(self, threads: int, known: Mapping[str, float] | None = None) -> None:
        self._threads = threads
        self._times: dict[str, ImageTime] = {}
        self.processor: dict[str, float] = dict(known or {})
        """Processor seconds by `speed_key`; those that are known are not measured again."""

    def time(self, config: TrainConfig) -> ImageTime:
        """Measure a few steps, of fresh weights: those to start from need not be there yet."""
        key = speed_key(config)
        if key not in self._times:
            with _threads(self._threads):
                tune = replace(config.tune, head="replace")  # a probe needs weights
                fresh = replace(config, weights=None, tune=tune)
                self._times[key] = time_image(fresh, least=_SECONDS)
        return self._times[key]

    def add_to(self, jobs: Mapping[str, Job], configs: Mapping[str, TrainConfig]) -> dict[str, Job]:
        """Give the runs whose budget is processor time what an image takes of it."""
        timed = {}
        for name, job in jobs.items():
            if job.words.get("processor_minutes") is not None:
                key = speed_key(configs[name])
                if key not in self.processor:
                    self.processor[key] = self.time(configs[name]).processor
                job = replace(job, image_seconds=self.processor[key])
                solve_length(job.words, configs[name], job.image_seconds)  # or it is refused
            timed[name] = job
        return timed


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def estimate_time(
    costs: Mapping[str, RunCost], configs: Mapping[str, TrainConfig], speeds: Speeds
) -> list[RunCost]:
    """Add to each run that is to be made how long it will take."""
    found = []
    for name, cost in costs.items():
        if cost.done:
            found.append(cost)
            continue
        images = cost.steps * configs[name].batch
        found.append(replace(cost, seconds=speeds.time(configs[name]).wall * images))
    return found


def share_threads(parallel: int) -> int:
    """Say how many threads each of so many runs has; a single one has this process's."""
    return torch.get_num_threads() if parallel == 1 else max(1, available_cores() // parallel)


def count_slots(parallel: int | None, jobs: Mapping[str, Job]) -> int:
    """Say how many runs are made at once: by default one for each core."""
    if parallel is None:
        parallel = available_cores()
    if parallel < 1:
        raise InputError(f"parallel must be at least 1, got {parallel}")
    return min(parallel, len(jobs))
