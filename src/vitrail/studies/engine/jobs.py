"""The runs that a sweep's cells need, each once, and what is known of them.

    OUT/sweep.json          the plan
    OUT/runs/NAME/          an ordinary run folder
    OUT/records/NAME.json   what the run reached and measured, or why it failed

A run waits for the one that it starts from and for the trials that choose its settings. What is
done is known by its record, so that the same sweep goes on from there after any end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.config import InputError
from vitrail.files import write_whole
from vitrail.studies.engine.stage_words import THEN
from vitrail.studies.engine.sweep_plan import (
    HELD_OUT,
    Cell,
    Measure,
    Sweep,
    job_name,
    plain_measure,
    stage_words,
)

RUNS, RECORDS = "runs", "records"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep."""

    name: str
    words: Mapping[str, Any]
    seed: int
    measures: tuple[Measure, ...] = ()
    after: str | None = None
    """The run whose model it starts from."""
    trials: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Runs that choose for it, and what each has tried."""
    image_seconds: float | None = None
    """Processor time of training on an image, from which its length is solved, if it is."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Name the runs that it waits for."""
        return (*([self.after] if self.after else []), *(name for name, _ in self.trials))


@dataclass(frozen=True)
class CellJobs:
    """A cell, and the runs that its row is made of."""

    cell: Cell
    first: str | None
    then: str | None


def plan_jobs(plan: Sweep) -> tuple[dict[str, Job], list[CellJobs]]:
    """List the runs of a sweep, those that others wait for first, and each cell's."""
    jobs: dict[str, Job] = {}
    rows: list[CellJobs] = []
    leading: str | None = None  # the first run with the first seed, from whose model trials start
    for cell in plan.cells():
        words, after_words = stage_words(cell)
        first = then = None
        if words is not None:
            first = _add_jobs(jobs, plan, cell, words, then=False)
        if cell.seed == plan.seeds[0]:
            leading = first
        if after_words is not None:
            then = _add_jobs(jobs, plan, cell, after_words, then=True, after=(leading, first))
        rows.append(CellJobs(cell, first, then))
    return jobs, rows


def _add_jobs(
    jobs: dict[str, Job],
    plan: Sweep,
    cell: Cell,
    words: Mapping[str, Any],
    *,
    then: bool,
    after: tuple[str | None, str | None] = (None, None),
) -> str:
    """Add a run and the trials that choose for it; return its name.

    `after` is what its trials start from, and what it starts from itself.
    """
    measures = () if then else tuple(plan.measures)
    trials = []
    for candidate in plan.candidates(then=then):
        tried = {name.removeprefix(THEN): value for name, value in candidate.items()}
        trial_words = {**words, **tried, "hold_out": HELD_OUT}
        seed = plan.seeds[0]
        name = job_name(cell.choices, [trial_words, after[0]], seed, then=then, trial=True)
        # What the cell's own run is evaluated on chooses nothing.
        trial_words["hold_out_of"] = "train"
        jobs.setdefault(name, Job(name=name, words=trial_words, seed=seed, after=after[0]))
        trials.append((name, tried))
    plain = [plain_measure(each) for each in measures]
    name = job_name(cell.choices, [words, after[1], trials, plain], cell.seed, then=then)
    jobs[name] = Job(
        name=name,
        words=words,
        seed=cell.seed,
        measures=measures,
        after=after[1],
        trials=tuple(trials),
    )
    return name


class Records:
    """What is known of each run, in files."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._known: dict[str, dict[str, Any]] = {}

    def folder(self, name: str) -> Path:
        """Return a run's folder."""
        return self.out / RUNS / name

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what a run reached, or why it failed; None while nothing is known."""
        if name not in self._known:
            path = self.out / RECORDS / f"{name}.json"
            try:
                self._known[name] = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                return None
            except ValueError:
                raise InputError(f"{path} is damaged; remove it to measure its run again") from None
        return self._known[name]

    def done(self, name: str) -> bool:
        """Tell whether a run is finished and measured."""
        record = self.read(name)
        return record is not None and record["state"] == "done"

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Write what a run reached."""
        folder = self.out / RECORDS
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}.json", json.dumps(record, indent=1) + "\n")
        self._known[name] = dict(record)

    def forget(self, name: str) -> None:
        """Read a record again when it is asked for: another process may have written it."""
        self._known.pop(name, None)


class JobQueue:
    """Hands out runs whose time has come, whoever makes them."""

    def __init__(self, jobs: Mapping[str, Job], records: Records) -> None:
        self._records = records
        self._jobs = jobs
        self.waiting = [job for job in jobs.values() if not records.done(job.name)]
        self.failed: dict[str, str] = {}
        self.running: dict[str, Job] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def take(self) -> tuple[Job, dict[str, Any]] | None:
        """Take the next run that can be made, and the words that its trials have chosen."""
        for job in list(self.waiting):
            if blocked := self._blocked(job):
                self.waiting.remove(job)
                self._fail(job, blocked)
            elif all(self._settled(name) for name in job.needs):
                self.waiting.remove(job)
                chosen, why = self._choose(job)
                if why:
                    self._fail(job, why)
                    continue
                self.running[job.name] = job
                return job, chosen
        return None

    def finish(self, name: str, error: str | None) -> None:
        """Note that a run has ended; `error` says why where it failed."""
        job = self.running.pop(name)
        self._records.forget(name)
        if error is not None:
            self._fail(job, error)

    def again(self, name: str) -> None:
        """Put a run back, whose machine has gone."""
        self.waiting.insert(0, self.running.pop(name))

    def _fail(self, job: Job, why: str) -> None:
        self.failed[job.name] = why
        self._records.write(job.name, {"state": "failed", "error": why})

    def _settled(self, name: str) -> bool:
        return name in self.failed or self._records.done(name)

    def _blocked(self, job: Job) -> str | None:
        if job.after is not None and job.after in self.failed:
            return f"the run before it failed: {self.failed[job.after]}"
        return None

    def _choose(self, job: Job) -> tuple[dict[str, Any], str | None]:
        """Say what the trials have chosen, or why they could not."""
        if not job.trials:
            return {}, None
        done = [(name, tried) for name, tried in job.trials if self._records.done(name)]
        if not done:
            return {}, f"every trial failed: {self.failed[job.trials[0][0]]}"
        best = max(done, key=lambda trial: score_of(self._records.read(trial[0]) or {}))
        return dict(best[1]), None


def score_of(record: Mapping[str, Any]) -> tuple[float, float]:
    """Rank a run by its accuracy on the images it was validated on; of equals, by its loss."""
    run = record.get("run", {})
    reached = next((run[name] for name in ("top1", "map") if run.get(name) is not None), -math.inf)
    return reached, -run["loss"] if run.get("loss") is not None else -math.inf


def states(jobs: Sequence[str], queue: JobQueue, records: Records) -> Iterator[tuple[str, str]]:
    """Give the state of each run."""
    for name in jobs:
        if name in queue.running:
            yield name, "running"
        elif name in queue.failed:
            yield name, "failed"
        else:
            yield name, "done" if records.done(name) else "waiting"
