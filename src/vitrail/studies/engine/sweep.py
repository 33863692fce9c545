"""Run a sweep: the plan is checked whole, then its runs are made, wherever there is room.

One queue (jobs.py) hands out the runs, an executor makes them: in this process, in several of this
machine (local_workers.py), or on a Ray cluster (ray_workers.py). Every run is an ordinary one that
resumes, so that the same call goes on after any end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.config import InputError, read_file
from vitrail.data.checks.output_place import check_output_place
from vitrail.files import write_whole
from vitrail.signals import Signals, Stopped, listen
from vitrail.studies.engine.jobs import CellJobs, Job, JobQueue, Records, plan_jobs
from vitrail.studies.engine.live_table import SweepProgress
from vitrail.studies.engine.local_workers import Executor, InProcess, local_executor
from vitrail.studies.engine.plan_file import make_plan, read_plan
from vitrail.studies.engine.sweep_cost import (
    RunCost,
    Speeds,
    SweepEstimate,
    check_jobs,
    count_slots,
    estimate_time,
    plan_costs,
    share_threads,
)
from vitrail.studies.engine.sweep_plan import Measure, Sweep, Values
from vitrail.studies.engine.sweep_result import SweepResult, make_result
from vitrail.training.checkpoints.run_lock import LOCK, run_lock
from vitrail.training.train_config import TrainConfig

PLAN, TABLE, SPEEDS, PAGE = "sweep.json", "table.csv", "speeds.json", "report.html"
_PERIOD = 1.0  # seconds between looks at the runs

Engine = Literal["local", "ray"]
PlanWords = Sweep | Mapping[str, Any] | str | Path
"""A plan, the base words of one, or a plan file."""


class SweepStopped(Stopped):
    """A signal has stopped a sweep, whose runs are saved."""

    def __init__(self, number: int) -> None:
        super().__init__(number, 0)
        self.args = ("stopped; its runs are saved: run the same command again to resume",)


def sweep(
    plan: PlanWords,
    *,
    vary: Mapping[str, Values] | None = None,
    seeds: int | Sequence[int] | None = None,
    best: Mapping[str, Sequence[Any]] | None = None,
    measures: Sequence[Measure] = (),
    out: str | Path,
    parallel: int | None = None,
    engine: Engine = "local",
    cpus: float = 1,
    gpus: float = 0,
    report: bool = True,
) -> SweepResult:
    """Make many runs by one plan, from where an earlier call stopped, and gather their results.

    Give a Sweep, a plan file, or base words and what varies: `sweep({"data": "digits", "model": …},
    vary={"lr": [1e-3, 3e-3]}, seeds=3, out="sweeps/lr")`. `parallel` runs are made at once, by
    default one for each core, each with its part of the threads; with the engine `ray` as many as
    the cluster can hold, of which each asks for `cpus` and `gpus`.
    """
    plan, out = gather_plan(plan, vary, seeds, best, measures), Path(out)
    planned = _check_plan(plan, out, engine, parallel)
    slots = _open_executor(engine, out, planned.parallel, parallel, cpus, gpus)
    with slots as executor, run_lock(out):
        write_whole(out / PLAN, json.dumps(plan.to_dict(), indent=1) + "\n")
        if planned.speeds.processor:
            write_whole(out / SPEEDS, json.dumps(planned.speeds.processor, indent=1) + "\n")
        records = Records(out)
        live = not isinstance(executor, InProcess)
        with SweepProgress(planned.costs, records, live=live) as progress:
            run_queue(JobQueue(planned.jobs, records), executor, progress)
        result = make_result(out, planned.cells, records)
        write_whole(out / TABLE, result.to_csv())
        if report:
            from vitrail.studies.engine.sweep_page import sweep_page

            write_whole(out / PAGE, sweep_page(result))
    return result


def estimate_sweep(
    plan: PlanWords,
    *,
    vary: Mapping[str, Values] | None = None,
    seeds: int | Sequence[int] | None = None,
    best: Mapping[str, Sequence[Any]] | None = None,
    measures: Sequence[Measure] = (),
    out: str | Path,
    parallel: int | None = None,
) -> SweepEstimate:
    """Say what `sweep` would do with the same words: runs, operations, and time by a few steps."""
    planned = _check_plan(
        gather_plan(plan, vary, seeds, best, measures), Path(out), "local", parallel
    )
    runs = estimate_time(planned.costs, planned.configs, planned.speeds)
    left = [each for each in runs if not each.done]
    return SweepEstimate(
        cells=len(planned.cells),
        runs=tuple(runs),
        parallel=planned.parallel,
        flops=sum(each.flops for each in left),
        seconds=sum(each.seconds or 0 for each in left) / planned.parallel,
    )


def gather_plan(
    plan: PlanWords,
    vary: Mapping[str, Values] | None,
    seeds: int | Sequence[int] | None,
    best: Mapping[str, Sequence[Any]] | None,
    measures: Sequence[Measure],
) -> Sweep:
    """Make the plan of what `sweep` was given; what is given besides a file takes its place."""
    if isinstance(plan, Sweep):
        if vary or best or measures or seeds is not None:
            raise InputError("give a Sweep alone, or base words with vary, seeds, best, measures")
        return plan
    words: dict[str, Any] = read_plan(plan) if isinstance(plan, str | Path) else {"base": plan}
    given = {"seeds": seeds, "measures": list(measures) or None}
    words |= {name: value for name, value in given.items() if value is not None}
    words["vary"] = {**words.get("vary", {}), **(vary or {})}
    words["best"] = {**words.get("best", {}), **(best or {})}
    return make_plan(**words)


@dataclass(frozen=True)
class _Planned:
    """A plan that was checked whole."""

    jobs: Mapping[str, Job]
    cells: list[CellJobs]
    configs: Mapping[str, TrainConfig]
    costs: Mapping[str, RunCost]
    speeds: Speeds
    parallel: int


def _check_plan(plan: Sweep, out: Path, engine: str, parallel: int | None) -> _Planned:
    """Refuse what can't be run, and the folder of something else, before anything is written."""
    if engine not in ("local", "ray"):
        raise InputError(f"engine must be local or ray, got {engine!r}")
    jobs, cells = plan_jobs(plan)
    slots = count_slots(parallel, jobs)
    _check_folder(out, plan)
    configs = check_jobs(jobs)
    for data in {config.data for config in configs.values()}:
        check_output_place(out, data)
    known = read_file(out / SPEEDS) if (out / SPEEDS).exists() else {}
    speeds = Speeds(share_threads(slots), known)
    jobs = speeds.add_to(jobs, configs)
    costs = plan_costs(jobs, configs, Records(out))
    return _Planned(jobs, cells, configs, costs, speeds, slots)


def _open_executor(
    engine: str, out: Path, slots: int, parallel: int | None, cpus: float, gpus: float
) -> AbstractContextManager[Executor]:
    if engine == "local":
        return local_executor(out, slots)
    from vitrail.studies.engine.ray_workers import ray_executor

    return ray_executor(out, parallel, cpus=cpus, gpus=gpus)


def run_queue(queue: JobQueue, executor: Executor, progress: SweepProgress) -> None:
    """Make all runs of a queue; one that fails stops no other."""
    if isinstance(executor, InProcess):  # a run listens to signals itself
        _run_all(queue, executor, progress, Signals())
        return
    with listen() as signals:
        _run_all(queue, executor, progress, signals)
    if signals.number:
        raise SweepStopped(signals.number)


def _run_all(
    queue: JobQueue, executor: Executor, progress: SweepProgress, signals: Signals
) -> None:
    while queue and not signals.number:
        while len(queue.running) < executor.slots and (taken := queue.take()):
            executor.submit(*taken)
            if isinstance(executor, InProcess):
                break
        progress.look(queue)
        for ended in executor.wait(_PERIOD) if queue.running else ():
            if ended.lost:
                queue.again(ended.name)
            else:
                queue.finish(ended.name, ended.error)
                progress.tell(ended.name, ended.error)
    progress.look(queue)


def _check_folder(out: Path, plan: Sweep) -> None:
    """Refuse a folder of something else, or of another sweep; more values and seeds may come."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder; {_OTHER}")
    there = set(os.listdir(out)) if out.exists() else set()
    if not there - {LOCK, f".{PLAN}.new"}:  # which a call that was killed may have left
        return
    if not (out / PLAN).exists():
        raise InputError(f"{out} is not the folder of a sweep; {_OTHER}")
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


def read_cells(out: Path) -> list[CellJobs]:
    """Read a sweep's cells from its folder."""
    plan = read_file(out / PLAN)
    return plan_jobs(Sweep(**plan))[1]
