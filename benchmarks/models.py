"""Speed and peak memory of vitrail's ViT beside its peers', in one interleaved run.

    python benchmarks/models.py                                  # all cases, eager
    python benchmarks/models.py --compiled --memory --markdown compiled.md
    python benchmarks/models.py --case b16-train-8 --rounds 0 --memory      # memory alone

In a round every contestant has one turn, and a large matrix product has one too: what it reaches
is the bound. Ratios are taken within a round, so that a slow minute of the machine slows both
sides of a ratio. A second instance of ours runs as a contestant, and its ratio to the first is
the noise. Memory is measured apart, for each contestant in a fresh process.
"""

from __future__ import annotations

import json as json_format
import multiprocessing
import os
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
import tyro
from measure import (
    BOUND,
    CASES,
    CaseName,
    Memory,
    Timing,
    measure_memory,
    measure_time,
    prepare_all,
)
from peers import AGAIN, CONTESTANTS, OURS, versions
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table


@dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    settings: dict[str, Any]
    timings: list[Timing] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a contestant stayed out, by its name."""


@dataclass(frozen=True)
class Grid:
    """A table as words, to be printed or written as Markdown."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str


def main(
    *,
    case: tuple[CaseName, ...] = (),
    rounds: int = 12,
    threads: int | None = None,
    compiled: bool = False,
    memory: bool = False,
    quick: bool = False,
    json: Path | None = None,
    markdown: Path | None = None,
) -> None:
    """Compare vitrail's ViT with its peers'.

    Args:
        case: Which cases; all unless given.
        rounds: Turns that each contestant has in each case; 0 leaves the times out.
        threads: Threads that torch may use; its own choice unless given.
        compiled: Compile every contestant with torch.compile's default mode.
        memory: Measure peak memory too.
        quick: Two rounds, and only the small model's cases unless they are given.
        json: Write the figures here.
        markdown: Write the tables here.
    """
    torch.set_num_threads(threads or torch.get_num_threads())
    if quick:
        rounds, case = min(rounds, 2), case or tuple(c for c in CASES if c.startswith("ti4"))
    report = Report({**_machine(), "rounds": rounds, "compiled": compiled})
    names = case or get_args(CaseName)
    for name in names if rounds else ():
        _run_times(name, report)
    if memory:
        _run_memories(names, report)
    grids = list(tabulate(report))
    for grid in grids:
        _show(grid)
    for contestant, reason in report.skipped.items():
        print(f"{contestant} stayed out: {reason}", file=sys.stderr)
    if json:
        json.write_text(json_format.dumps(asdict(report), indent=1) + "\n")
    if markdown:
        markdown.write_text(write_markdown(report, grids))


def _run_times(name: CaseName, report: Report) -> None:
    stderr = Console(stderr=True)
    stderr.print(f"{name}: building and warming up")
    steps, skipped = prepare_all(CASES[name], compiled=report.settings["compiled"])
    report.skipped.update(skipped)
    rounds = track(range(report.settings["rounds"]), description=name, console=stderr)
    report.timings.extend(measure_time(name, steps, rounds))


def _run_memories(names: tuple[CaseName, ...], report: Report) -> None:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of its starts and stops
    jobs = [(name, contestant) for name in names for contestant in CONTESTANTS]
    threads, compiled = report.settings["threads"], report.settings["compiled"]
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        for job in track(jobs, description="memory", console=Console(stderr=True)):
            if job[1] not in report.skipped:
                result = pool.submit(measure_memory, *job, threads, compiled=compiled)
                report.memories.append(result.result())


def tabulate(report: Report) -> Iterator[Grid]:
    """Put a run's findings into tables: ratios, details, memory."""
    how = "compiled" if report.settings["compiled"] else "eager"
    present = [c for c in CONTESTANTS if c not in report.skipped]
    if report.timings:
        yield _ratio_grid(report.timings, [c for c in present if c != OURS], how)
        yield Grid(
            f"Times, {how}",
            ("case", "contestant", "median ms", "least ms", "time / ours", "GFLOP/s", "of bound"),
            [_detail(timing) for timing in report.timings],
            "Ratios: the median of the rounds', and their quartiles.",
        )
    if report.memories:
        yield Grid(
            f"Peak memory in MiB, {how}",
            ("case", "contestant", "allocated", "resident"),
            [_memory_row(memory) for memory in report.memories],
            "Over the model at rest. Allocated is torch's own count, exact; a training step's "
            "has the gradients in it. Resident is what a fresh process grew by, Adam's moments "
            "and the libraries' buffers included.",
        )


def _ratio_grid(timings: list[Timing], others: list[str], how: str) -> Grid:
    """Lay the ratios out, a row a case; ours is the fastest where all are above the noise."""
    found = {(timing.case, timing.contestant): timing for timing in timings}
    rows = []
    for name in dict.fromkeys(timing.case for timing in timings):
        own, again = found[name, OURS], found[name, AGAIN]
        cells = [_ratio(again), *(f"{found[name, c].ratio:.3f}" for c in others if c != AGAIN)]
        noise = min(again.ratio_low, 1), max(again.ratio_high, 1)
        fastest = min((found[name, c] for c in others), key=lambda timing: timing.ratio)
        verdict = "ours" if fastest.ratio > noise[1] else "within noise"
        verdict = fastest.contestant if fastest.ratio < noise[0] else verdict
        rows.append((name, *cells, f"{own.of_bound:.0%}", verdict))
    return Grid(
        f"Time as a multiple of ours, {how}",
        ("case", *others, "ours of bound", "fastest"),
        rows,
        "Above 1, ours is faster. The noise is a second instance of ours (median and quartiles); "
        f"the bound is a float32 {BOUND} of 4096 x 4096 in the same rounds.",
    )


def _ratio(timing: Timing) -> str:
    return f"{timing.ratio:.3f} ({timing.ratio_low:.3f} to {timing.ratio_high:.3f})"


def _detail(timing: Timing) -> tuple[str, ...]:
    return (
        timing.case,
        timing.contestant,
        f"{1e3 * timing.median:,.2f}",
        f"{1e3 * timing.minimum:,.2f}",
        "" if timing.contestant in (OURS, BOUND) else _ratio(timing),
        f"{timing.flops / 1e9:,.0f}",
        f"{timing.of_bound:.0%}",
    )


def _memory_row(memory: Memory) -> tuple[str, ...]:
    resident = "" if memory.resident is None else f"{memory.resident / 2**20:,.0f}"
    return memory.case, memory.contestant, f"{memory.allocated / 2**20:,.2f}", resident


def write_markdown(report: Report, grids: list[Grid]) -> str:
    """Write the tables for the documentation, and what they were measured with."""
    said = report.settings
    lines = [f"{said['processor']}, {said['threads']} threads, float32, {said['rounds']} rounds; "
             + ", ".join(f"{name} {which}" for name, which in said["versions"].items()) + "."]  # fmt: skip
    lines += [f"{name} stayed out: {reason}" for name, reason in report.skipped.items()]
    for grid in grids:
        rule = ["---"] + ["---:"] * (len(grid.header) - 1)
        table = [" | ".join(row) for row in (grid.header, rule, *grid.rows)]
        lines += ["", f"### {grid.title}", "", *(f"| {row} |" for row in table), "", grid.note]
    return "\n".join(lines) + "\n"


def _show(grid: Grid) -> None:
    table = Table(title=grid.title, caption=grid.note, box=box.SIMPLE_HEAD)
    for place, column in enumerate(grid.header):
        table.add_column(column, justify="right" if place else "left", no_wrap=True)
    for place, row in enumerate(grid.rows):
        last = place + 1 == len(grid.rows) or grid.rows[place + 1][0] != row[0]
        table.add_row(*row, end_section=last and grid.header[1] == "contestant")
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _machine() -> dict[str, Any]:
    """Say what the figures hold for."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": (named or [platform.processor()])[0],
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions(),
    }


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
