"""Run a sweep: the plan is checked whole, then its runs are made, wherever there is room.

One queue (jobs.py) hands out the runs, an executor makes them: in this process, in several of this
machine (local_workers.py), or on a Ray cluster. Every run is an ordinary one that resumes, so that
the same call goes on after any end.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from vitrail.config import InputError, read_file
from vitrail.files import write_whole
from vitrail.machine import available_cores
from vitrail.studies.engine.jobs import CellJobs, Job, JobQueue, Records, plan_jobs
from vitrail.studies.engine.local_workers import Executor, local_executor
from vitrail.studies.engine.stage_words import resolve_stage, solve_flops
from vitrail.studies.engine.sweep_plan import Measure, Sweep, Values
from vitrail.studies.engine.sweep_result import SweepResult, make_result
from vitrail.training.checkpoints.run_lock import run_lock

PLAN, TABLE = "sweep.json", "table.csv"
_PERIOD = 1.0  # seconds between looks at the runs

log = logging.getLogger("vitrail")


def sweep(
    plan: Sweep | Mapping[str, Any],
    *,
    vary: Mapping[str, Values] | None = None,
    seeds: int | Sequence[int] = 1,
    best: Mapping[str, Sequence[Any]] | None = None,
    measures: Sequence[Measure] = (),
    out: str | Path,
    parallel: int | None = None,
    engine: Literal["local"] = "local",
) -> SweepResult:
    """Make many runs by one plan, from where an earlier call stopped, and gather their results.

    Give a Sweep, or its base words and what varies: `sweep({"data": "digits", "model": …}, vary=
    {"lr": [1e-3, 3e-3]}, seeds=3, out="sweeps/lr")`. `parallel` runs are made at once, by default
    one for each core, each with its part of the threads.
    """
    if not isinstance(plan, Sweep):
        numbers = range(seeds) if isinstance(seeds, int) else seeds
        plan = Sweep(plan, vary or {}, tuple(numbers), best or {}, measures)
    out = Path(out)
    jobs, cells = plan_jobs(plan)
    check_jobs(jobs)
    _check_folder(out, plan)
    parallel = _count_slots(parallel, jobs)
    with run_lock(out):
        write_whole(out / PLAN, json.dumps(plan.to_dict(), indent=1) + "\n")
        records = Records(out)
        with _open_executor(engine, out, parallel) as executor:
            run_queue(JobQueue(jobs, records), executor)
        result = make_result(out, cells, records)
        write_whole(out / TABLE, result.to_csv())
    return result


def _count_slots(parallel: int | None, jobs: Mapping[str, Job]) -> int:
    if parallel is None:
        parallel = available_cores()
    if parallel < 1:
        raise InputError(f"parallel must be at least 1, got {parallel}")
    return min(parallel, len(jobs))


def _open_executor(engine: str, out: Path, parallel: int) -> AbstractContextManager[Executor]:
    assert engine == "local"
    return local_executor(out, parallel)


def run_queue(queue: JobQueue, executor: Executor) -> None:
    """Make all runs of a queue; one that fails stops no other."""
    while queue:
        while len(queue.running) < executor.slots and (taken := queue.take()):
            executor.submit(*taken)
            if executor.slots == 1:
                break
        for ended in executor.wait(_PERIOD):
            if ended.lost:
                queue.again(ended.name)
            else:
                queue.finish(ended.name, ended.error)


def check_jobs(jobs: Mapping[str, Job]) -> None:
    """Resolve every run's settings, so that what can't be run is refused before anything is."""
    models: dict[str, str] = {}
    seen: set[str] = set()
    for job in jobs.values():
        key = json.dumps([job.words, job.after and models[job.after]], default=str)
        words = dict(job.words)
        model = None
        if job.after is not None:
            words["weights"], model = "run", models[job.after]
        config = resolve_stage(words, Path("_"), seed=job.seed, model=model)
        models[job.name] = config.model
        if key in seen:
            continue
        seen.add(key)
        for _, tried in job.trials:
            resolve_stage({**words, **tried}, Path("_"), seed=job.seed, model=model)
        if words.get("flops") is not None:
            solve_flops(config, float(words["flops"]))


def _check_folder(out: Path, plan: Sweep) -> None:
    """Refuse a folder of something else, or of another sweep; more values and seeds may come."""
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / PLAN).exists():
        raise InputError(f"{out} is not the folder of a sweep; choose another --out")
    old, new = read_file(out / PLAN), plan.to_dict()
    for name in ("base", "best", "measures"):
        if old.get(name) != new[name]:
            raise InputError(f"{out} is the folder of another sweep: its {name} differ; {_OTHER}")
    if [*old["axes"]] != [*new["axes"]]:
        axes = ", ".join(old["axes"]) or "nothing"
        raise InputError(f"{out} is the folder of another sweep, which varies {axes}; {_OTHER}")
    if not set(old["seeds"]) <= set(new["seeds"]):
        raise InputError(f"{out} has the seeds {old['seeds']}, not only {new['seeds']}; {_OTHER}")
    for axis, values in old["axes"].items():
        if not all(_has(new["axes"][axis], each, values) for each in values):
            raise InputError(f"{out} is the folder of another sweep: {axis} differs; {_OTHER}")


_OTHER = "choose another --out"


def _has(values: Any, value: Any, old: Any) -> bool:
    if isinstance(values, Mapping) and isinstance(old, Mapping):
        return values.get(value) == old[value]
    return not isinstance(values, Mapping) and not isinstance(old, Mapping) and value in values


def read_cells(out: Path) -> tuple[dict[str, Job], list[CellJobs]]:
    """Read a sweep's runs and cells from its folder."""
    plan = read_file(out / PLAN)
    return plan_jobs(Sweep(**plan))
