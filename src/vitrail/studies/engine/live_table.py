"""How far a sweep is: a live table on a terminal, elsewhere a line for each run that has ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.console import log_line, new_table
from vitrail.studies.engine.jobs import JobQueue, Records
from vitrail.studies.engine.sweep_cost import RunCost
from vitrail.text import show_duration
from vitrail.training.logging.metrics_logger import METRICS

_TAIL = 8192  # bytes of a run's metrics that are read for its last lines
_ROWS = 16  # runs that the table shows
_SCORES = ("val/top1", "val/map", "val/loss")


@dataclass(frozen=True)
class RunState:
    """How far a run is."""

    state: str
    step: int = 0
    score: str = ""


class SweepProgress:
    """Shows how far the runs are, and when all will have ended."""

    def __init__(self, costs: Mapping[str, RunCost], records: Records, *, live: bool) -> None:
        """Watch runs; `live` where no run draws on the terminal itself."""
        self._costs, self._records = costs, records
        self._start = time.monotonic()
        self._left = {name for name, cost in costs.items() if not cost.done}
        self._ended: dict[str, str | None] = {}
        self._shows = live and sys.stderr.isatty()
        self._live: Any = None

    def __enter__(self) -> SweepProgress:
        if self._shows and self._left:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, markup=False, emoji=False, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self, queue: JobQueue) -> None:
        """Show the runs as they are now."""
        for name, error in queue.failed.items():  # of which some have never begun
            if name not in self._ended:
                self.tell(name, error)
        if self._live is not None:
            running = {name: self.read(name) for name in queue.running}
            self._live.update(self.table(running), refresh=True)

    def tell(self, name: str, error: str | None) -> None:
        """Take in that a run has ended, and say so where there is no table."""
        self._ended[name] = error
        if self._live is None:
            count = f"{self.count_ended():,} of {len(self._costs):,} runs"
            said = f"failed: {error}" if error else self.read(name).score
            log_line(f"{count}: {name}  {said}{self._show_left({})}")

    def count_ended(self) -> int:
        """Count the runs that have ended, now or in an earlier call."""
        return len(self._costs) - len(self._left) + len(self._ended)

    def read(self, name: str) -> RunState:
        """Read from a run's metrics how far it is."""
        step, score = 0, ""
        for row in _last_rows(self._records.folder(name) / METRICS):
            step = max(step, int(row.get("step", 0)))
            found = next((key for key in _SCORES if key in row), None)
            if found is not None:
                value = row[found]
                shown = f"{value:.4g}" if found == "val/loss" else f"{value:.2%}"
                score = f"{found.removeprefix('val/')} {shown}"
        return RunState("running", step, score)

    def seconds_left(self, running: Mapping[str, RunState]) -> float | None:
        """Estimate when all runs have ended, by the operations that were done since the start."""
        work = {name: max(1, self._costs[name].flops) for name in self._left}
        whole = sum(work.values())
        done = sum(work[name] for name in self._ended if name in work)
        for name, state in running.items():
            if name in work:
                done += int(work[name] * min(1.0, state.step / max(1, self._costs[name].steps)))
        if not done:
            return None
        return (time.monotonic() - self._start) / done * (whole - done)

    def _show_left(self, running: Mapping[str, RunState]) -> str:
        seconds = self.seconds_left(running)
        return "" if not seconds else f"  {show_duration(seconds)} left"

    def table(self, running: Mapping[str, RunState]) -> Any:
        """Make the table: what runs, what failed, the last that are done, and the whole."""
        table = new_table("run", "state", "step", "score")
        failed = [name for name, error in self._ended.items() if error]
        done = [name for name, error in self._ended.items() if not error]
        free = max(0, _ROWS - len(running))
        for name in [*failed[-free // 2 :], *done[-(free // 2) :]]:
            state, cost = self.read(name), self._costs[name]
            shown = self._ended[name] or state.score
            word = "failed" if self._ended[name] else "done"
            table.add_row(name, word, f"{cost.steps:,}", shown[:60])
        for name, state in running.items():
            steps = f"{state.step:,} of {self._costs[name].steps:,}"
            table.add_row(name, "running", steps, state.score)
        waiting = len(self._costs) - self.count_ended() - len(running)
        table.caption = (
            f"{self.count_ended():,} of {len(self._costs):,} runs ended, {len(failed):,} failed, "
            f"{len(running):,} running, {waiting:,} waiting{self._show_left(running)}"
        )
        return table


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """Read the last whole lines of a run's metrics; none while there are none."""
    rows = []
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        for line in file.read().splitlines():
            with suppress(ValueError):  # cut at the start, or being written
                rows.append(json.loads(line))
    return rows
