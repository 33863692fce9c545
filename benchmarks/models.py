"""Speed and peak memory of vitrail's ViT beside its peers', in one interleaved run.

    python benchmarks/models.py                                  # all cases, eager
    python benchmarks/models.py --precision bfloat16 --case ti16-train-32
    python benchmarks/models.py --compiled --memory --markdown compiled.md
    python benchmarks/models.py --case b16-train-8 --rounds 0 --memory      # memory alone

In a round every contestant has one turn, and a large matrix product has one too: what it reaches
is the bound. Ratios are taken within a round, so that a slow minute of the machine slows both
sides of a ratio. A second instance of ours runs as a contestant, and its ratio to the first is
the noise. Memory is measured apart, for each contestant in a fresh process.
"""

from __future__ import annotations

import itertools
import json as json_format
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
import tyro
from measure import (
    BOUND,
    BOUND_SIDE,
    CASES,
    CaseName,
    Memory,
    Precision,
    Timing,
    excuse,
    measure_memory,
    measure_time,
    prepare_all,
    seconds_of_others,
)
from peers import AGAIN, CONTESTANTS, OURS, versions
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vitrail.machine import processor_name

WORDS = ("case", "contestant", "fastest")
"""Columns that hold words; the others hold numbers."""


@dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    settings: dict[str, Any]
    timings: list[Timing] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a contestant stayed out, by its name."""
    disturbed: dict[str, float] = field(default_factory=dict)
    """What share of the processor other processes had while a case ran, by its name."""


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
    precision: Precision = "float32",
    processor_time: bool = False,
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
        precision: What products are computed in; bfloat16 by autocast.
        processor_time: Count seconds of the processor, for a machine that is busy; one thread.
        memory: Measure peak memory too.
        quick: Two rounds, and only the small model's cases unless they are given.
        json: Write the figures here.
        markdown: Write the tables here.
    """
    torch.set_num_threads(1 if processor_time else threads or torch.get_num_threads())
    if quick:
        rounds, case = min(rounds, 2), case or tuple(c for c in CASES if c.startswith("ti4"))
    report = Report({**_machine(), "rounds": rounds, "compiled": compiled, "precision": precision})
    names = case or get_args(CaseName)
    for name in names if rounds > 0 else ():
        _run_times(name, report, time.process_time if processor_time else time.perf_counter)
    if memory:
        _run_memories(names, report)
    grids = list(tabulate(report))
    if json:
        json.write_text(json_format.dumps(asdict(report), indent=1) + "\n")
    if markdown:
        markdown.write_text(write_markdown(report, grids))
    for grid in grids:
        _show(grid)
    for contestant, reason in report.skipped.items():
        print(f"{contestant} stayed out: {reason}", file=sys.stderr)


def _run_times(name: CaseName, report: Report, clock: Callable[[], float]) -> None:
    stderr = Console(stderr=True)
    stderr.print(f"{name}: building and warming up")
    how = {key: report.settings[key] for key in ("compiled", "precision")}
    steps, skipped = prepare_all(CASES[name], **how)
    report.skipped.update(skipped)
    rounds = track(range(report.settings["rounds"]), description=name, console=stderr)
    start, others = time.monotonic(), seconds_of_others()
    report.timings.extend(measure_time(name, steps, rounds, how["precision"], clock))
    whole = (time.monotonic() - start) * (os.cpu_count() or 1)
    share = report.disturbed[name] = (seconds_of_others() - others) / whole
    if share > 0.05:
        stderr.print(f"{name}: other processes had {share:.0%} of the processor: measure again")


def _run_memories(names: tuple[CaseName, ...], report: Report) -> None:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of its starts and stops
    jobs = list(itertools.product(names, CONTESTANTS))
    threads = report.settings["threads"]
    how = {key: report.settings[key] for key in ("compiled", "precision")}
    for name, contestant in track(jobs, description="memory", console=Console(stderr=True)):
        if contestant in report.skipped:
            continue
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            job = fresh.submit(measure_memory, name, contestant, threads, **how)
        try:
            report.memories.append(job.result())
        except Exception as error:
            report.skipped[contestant] = excuse(contestant, error, compiled=how["compiled"])


def tabulate(report: Report) -> Iterator[Grid]:
    """Put a run's findings into tables: ratios, details, memory."""
    how = "compiled" if report.settings["compiled"] else "eager"
    how += ", " + report.settings["precision"]
    if report.timings:
        yield _ratio_grid(report.timings, how)
        yield Grid(
            f"Times, {how}",
            ("case", "contestant", "median ms", "least ms", "time / ours", "GFLOP/s", "of bound"),
            [_detail(timing) for timing in report.timings],
            "Ratios: the median of the rounds', and their quartiles.",
        )
    if report.memories:
        yield Grid(
            f"Peak memory in MiB, {how}",
            ("case", "contestant", "allocated", "allocated / ours", "resident"),
            list(_memory_rows(report.memories)),
            "Over the model at rest. Allocated is torch's own count, exact; a training step's "
            "has the gradients in it. Resident is what a fresh process grew by: with Adam's "
            "moments, the libraries' own buffers, and compiling where that is done.",
        )


def _ratio_grid(timings: list[Timing], how: str) -> Grid:
    """Lay the ratios out, one row per case, and name the fastest beyond the noise."""
    found = {(timing.case, timing.contestant): timing for timing in timings}
    peers = [contestant for contestant in CONTESTANTS if contestant not in (OURS, AGAIN)]
    rows = []
    for name in dict.fromkeys(timing.case for timing in timings):
        again = found[name, AGAIN]
        noise = max(again.ratio_high, 1 / again.ratio_low)  # which one is "again" is arbitrary
        ratios = {peer: found[name, peer].ratio for peer in peers if (name, peer) in found}
        cells = [f"{ratios[peer]:.3f}" if peer in ratios else "" for peer in peers]
        least = min([1.0, *ratios.values()])
        fastest = [who for who, ratio in ({OURS: 1.0} | ratios).items() if ratio <= least * noise]
        bound = f"{found[name, OURS].of_bound:.0%}"
        rows.append((name, _ratio(again), *cells, bound, ", ".join(fastest)))
    return Grid(
        f"Time as a multiple of ours, {how}",
        ("case", AGAIN, *peers, "ours of bound", "fastest"),
        rows,
        "Above 1, ours is faster. The noise is what a second instance of ours shows (median and "
        "quartiles); all within it of the fastest are named. The bound is a "
        f"{BOUND} of {BOUND_SIDE} x {BOUND_SIDE} in the same rounds.",
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


def _memory_rows(memories: list[Memory]) -> Iterator[tuple[str, ...]]:
    ours = {memory.case: memory.allocated for memory in memories if memory.contestant == OURS}
    for memory in memories:
        size, ratio = f"{memory.allocated / 2**20:,.2f}", memory.allocated / ours[memory.case]
        resident = "" if memory.resident is None else f"{memory.resident / 2**20:,.0f}"
        yield memory.case, memory.contestant, size, f"{ratio:.3f}", resident


def write_markdown(report: Report, grids: list[Grid]) -> str:
    """Write the tables for the documentation, and what they were measured with."""
    said = report.settings
    which = ", ".join(f"{package} {number}" for package, number in said["versions"].items())
    kind = f"{said['processor']}, {said['threads']} threads"
    head = f"{kind}, {said['precision']}, {said['rounds']} rounds"
    lines = [f"{head}; {which}."]
    if report.disturbed:
        most = f"{max(report.disturbed.values()):.0%}"
        lines += ["", f"Other processes had at most {most} of the processor while a case ran."]
    lines += [f"\n{name} stayed out: {reason}" for name, reason in report.skipped.items()]
    for grid in grids:
        rule = ["---" if column in WORDS else "---:" for column in grid.header]
        table = [" | ".join(row) for row in (grid.header, rule, *grid.rows)]
        lines += ["", f"### {grid.title}", "", *(f"| {row} |" for row in table), "", grid.note]
    return "\n".join(lines) + "\n"


def _show(grid: Grid) -> None:
    table = Table(title=grid.title, caption=grid.note, box=box.SIMPLE_HEAD)
    for column in grid.header:
        justify = "left" if column in WORDS else "right"
        table.add_column(column, justify=justify, no_wrap=column != "fastest")
    for place, row in enumerate(grid.rows):
        last = place + 1 == len(grid.rows) or grid.rows[place + 1][0] != row[0]
        table.add_row(*row, end_section=last and grid.header[1] == "contestant")
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _machine() -> dict[str, Any]:
    """Say what the figures hold for."""
    return {
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions(),
    }


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
