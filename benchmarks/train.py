"""Training beside the peers: our loop and loader, their steps and theirs; speed and peak memory.

    python benchmarks/train.py                            # painted JPEGs, and small images
    python benchmarks/train.py --case jpeg --photos DIR   # a folder of your own, DIR/CLASS/…

All train the same shape in float32 with fused AdamW on the same images: decoded, cut by
torchvision's rule, flipped, normalized. A turn is a few batches from the first read to the last
step, and nothing is made ahead of it. In a round every contestant has one turn; ratios are taken
within a round, of the processor time of the process and its data workers, so that a busy machine
slows both sides.

Memory is measured in fresh processes, with all that is imported: the peak of the process that
trains, and what its data workers hold for themselves. Ours is a whole `vitrail.train` there, which
also says how much of its time it waited for data. The contestants are in trainers.py; what a step
without labels costs is measured in pretext.py.
"""

from __future__ import annotations

import gc
import json as json_format
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import tyro
from data import make_files
from measure import resident, turn_order
from peers import AGAIN, OURS, mend_torchvision, versions
from rich import box
from rich.console import Console
from rich.table import Table
from trainers import CASES, CLASSES, CONTESTANTS, Case, our_config

from vitrail.run import train


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one contestant reached in a case."""

    case: str
    contestant: str
    speed: float
    """Images in a second of processor time, at the median of the rounds."""
    wall: float
    """Images in a second by the clock, likewise."""
    ratio: float
    """The median of the rounds' ratios of its processor time to ours: above 1, ours is faster."""
    ratio_low: float
    """Their lower quartile."""
    ratio_high: float
    """Their upper quartile."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one contestant needs while it trains, in bytes."""

    case: str
    contestant: str
    peak: int
    """Of the process that trains."""
    workers: int
    """What its data workers hold for themselves at the end."""
    waiting: float | None = None
    """Part of the time that it waited for data, where it says so."""


def main(
    *,
    case: tuple[str, ...] = tuple(CASES),
    rounds: int = 4,
    threads: int | None = None,
    photos: Path | None = None,
    memory: bool = True,
    json: Path | None = None,
) -> None:
    """Compare how fast vitrail and its peers train, from files to weights.

    Args:
        case: Which cases; all unless given.
        rounds: Turns that each contestant has in each case.
        threads: Of torch and of data loading; one per core unless given.
        photos: A folder DIR/CLASS/… for `jpeg`, in the place of painted images.
        memory: Whether fresh processes measure memory and waiting.
        json: Write the figures here.
    """
    torch.set_num_threads(threads or os.cpu_count() or 1)
    mend_torchvision()
    timings: list[Timing] = []
    memories: list[Memory] = []
    with tempfile.TemporaryDirectory() as name:
        for each in case:
            folder = photos if photos and each == "jpeg" else write_images(each, Path(name))
            timings += (timed := measure_time(each, folder, rounds))
            show_timings(timed)
            memories += (held := [*measure_memories(each, folder)] if memory else [])
            show_memories(held)
    if json:
        figures = {"timings": [*map(asdict, timings)], "memories": [*map(asdict, memories)]}
        figures |= {"versions": versions(), "threads": torch.get_num_threads()}
        json.write_text(json_format.dumps(figures, indent=1) + "\n")


def write_images(name: str, folder: Path) -> Path:
    """Write the images of a case, as many as a turn takes, to folders of classes."""
    case, folder = CASES[name], folder / name
    painted = make_files(*case.size)
    for number in range(case.batch * case.steps):
        file = folder / f"class{number % CLASSES}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(painted[number % len(painted)])
    return folder


def measure_time(name: str, folder: Path, rounds: int) -> list[Timing]:
    """Let the contestants train in turns."""
    case = CASES[name]
    turns = {contestant: prepare(case, folder) for contestant, prepare in CONTESTANTS.items()}
    for turn in turns.values():
        turn()  # imports, workers, the optimizer's state
    spent: dict[str, list[tuple[float, float]]] = {contestant: [] for contestant in turns}
    for number in range(rounds):
        gc.collect()
        for place in turn_order(len(turns), number):
            contestant = list(turns)[place]
            start, clock = processor_seconds(), time.perf_counter()
            turns[contestant]()
            spent[contestant].append((processor_seconds() - start, time.perf_counter() - clock))
    images, timings = case.batch * case.steps, []
    ours = np.array(spent[OURS])[:, 0]
    for contestant, found in spent.items():
        processor, clock = np.array(found).T
        low, middle, high = np.percentile(processor / ours, [25, 50, 75]).tolist()
        timings.append(
            Timing(
                case=name,
                contestant=contestant,
                speed=images / float(np.median(processor)),
                wall=images / float(np.median(clock)),
                ratio=middle,
                ratio_low=low,
                ratio_high=high,
            )
        )
    return timings


def processor_seconds() -> float:
    """Give the processor time of this process and of those that it has started."""
    ticks = 0
    for child in multiprocessing.active_children():
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure_memories(name: str, folder: Path) -> Iterator[Memory]:
    """Measure memory, each contestant in a fresh process."""
    fresh, threads = multiprocessing.get_context("spawn"), torch.get_num_threads()
    for contestant in CONTESTANTS:
        if contestant != AGAIN:
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                yield pool.submit(measure_memory, name, contestant, folder, threads).result()


def measure_memory(name: str, contestant: str, folder: Path, threads: int) -> Memory:
    """Train for some turns and give the peak; ours also says how long it waited."""
    multiprocessing.set_start_method("fork", force=True)  # data workers, as they are elsewhere
    torch.set_num_threads(threads)
    case, turns, waiting = CASES[name], 3, None
    if contestant == OURS:
        waiting = run_ours(case, folder, turns)
    else:
        turn = CONTESTANTS[contestant](case, folder)
        for _ in range(turns):
            turn()
    peak = resident("VmHWM")
    assert peak is not None
    workers = sum(_own_memory(child.pid) for child in multiprocessing.active_children())
    return Memory(case=name, contestant=contestant, peak=peak, workers=workers, waiting=waiting)


def run_ours(case: Case, folder: Path, turns: int) -> float:
    """Train as a person would; give the part of the time that was spent waiting for data."""
    with tempfile.TemporaryDirectory() as name:
        config = our_config(case, folder, Path(name) / "run", turns * case.steps)
        train(replace(config, log_every=1))
        lines = (config.out / "speed.jsonl").read_text().splitlines()
    rows = [json_format.loads(line) for line in lines]
    seconds = [1 / row["speed/images_per_second"] for row in rows]
    waits = [row["speed/waiting_for_data"] for row in rows]
    return float(np.average(waits, weights=seconds))


def _own_memory(process: int | None) -> int:
    """Give the bytes that a process shares with no other."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def show_timings(timings: list[Timing]) -> None:
    """Print how fast they are."""
    table = Table(
        "case", "contestant", title="Training, from files to weights", box=box.SIMPLE_HEAD
    )
    for column in ("images / processor s", "images / s", "processor time / ours"):
        table.add_column(column, justify="right")
    for timing in timings:
        ratio = f"{timing.ratio:.3f} ({timing.ratio_low:.3f} to {timing.ratio_high:.3f})"
        speeds = f"{timing.speed:,.1f}", f"{timing.wall:,.1f}"
        table.add_row(timing.case, timing.contestant, *speeds, ratio)
    table.caption = "Above 1, ours is faster; median of the rounds' ratios, and quartiles."
    _print(table)


def show_memories(memories: list[Memory]) -> None:
    """Print what they need, and how long ours waited."""
    table = Table("case", "contestant", title="Peak memory in MiB", box=box.SIMPLE_HEAD)
    for column in ("training process", "its data workers", "both / ours", "waiting for data"):
        table.add_column(column, justify="right")
    ours = {each.case: each.peak + each.workers for each in memories if each.contestant == OURS}
    for each in memories:
        sizes = f"{each.peak / 2**20:,.0f}", f"{each.workers / 2**20:,.0f}"
        ratio = f"{(each.peak + each.workers) / ours[each.case]:.2f}"
        waiting = "" if each.waiting is None else f"{each.waiting:.1%}"
        table.add_row(each.case, each.contestant, *sizes, ratio, waiting)
    if memories:
        _print(table)


def _print(table: Table) -> None:
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
