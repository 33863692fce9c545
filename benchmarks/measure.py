"""How a contestant's time and memory are measured, one case at a time."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from peers import AGAIN, CONTESTANTS, OURS, build_contestant
from torch.profiler import ProfilerActivity, profile

from vitrail.models import parse
from vitrail.models.cost.total import cost_of
from vitrail.models.layers.linear import linear
from vitrail.models.spec import ViTSpec

Step = Callable[[], None]

Precision = Literal["float32", "bfloat16"]

CaseName = Literal[
    "b16-forward-1",
    "b16-forward-8",
    "b16-train-8",
    "ti16-train-32",
    "ti4-forward-1",
    "ti4-forward-8",
    "ti4-train-64",
]

BOUND = "matrix product"
BOUND_SIDE = 4096
TURN = 0.1
"""Seconds that ours takes for one turn, at least: a fast case makes several calls a turn."""


@dataclass(frozen=True)
class Case:
    """What is measured: a model's forward pass, or a whole training step, of one batch."""

    model: str
    batch: int
    training: bool

    @property
    def spec(self) -> ViTSpec:
        """The model's record."""
        spec = parse(self.model)
        assert isinstance(spec, ViTSpec)
        return spec

    @property
    def flops(self) -> int:
        """Operations of a call in closed form, the same for every contestant."""
        cost = cost_of(self.spec)
        return self.batch * (cost.training_flops if self.training else cost.flops)


_B16, _TI16 = "ViT-B/16,activation=gelu", "ViT-Ti/16,activation=gelu"
_TI4 = "ViT-Ti/4@32,activation=gelu,classes=10"

CASES: dict[CaseName, Case] = {
    "b16-forward-1": Case(_B16, 1, training=False),
    "b16-forward-8": Case(_B16, 8, training=False),
    "b16-train-8": Case(_B16, 8, training=True),
    "ti16-train-32": Case(_TI16, 32, training=True),
    "ti4-forward-1": Case(_TI4, 1, training=False),
    "ti4-forward-8": Case(_TI4, 8, training=False),
    "ti4-train-64": Case(_TI4, 64, training=True),
}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One contestant's times of a call, in seconds, and its ratios to ours, round by round."""

    case: CaseName
    contestant: str
    median: float
    minimum: float
    ratio: float
    """The median of the rounds' ratios of its time to ours: above 1, ours is faster."""
    ratio_low: float
    """Their lower quartile."""
    ratio_high: float
    """Their upper quartile."""
    flops: float
    """Operations in a second, at the median."""
    of_bound: float
    """That as a fraction of what a large matrix product reached in the same rounds."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One contestant's peak memory in bytes, over what it takes at rest."""

    case: CaseName
    contestant: str
    allocated: int
    """What torch's allocator handed out: exact. A training step's has gradients in it."""
    resident: int | None
    """What the process grew by: Adam's moments, the libraries' buffers and compiling too."""


def prepare(case: Case, contestant: str, *, compiled: bool, precision: Precision) -> Step:
    """Build a contestant and give the call to measure."""
    halved = precision == "bfloat16"
    torch.manual_seed(0)
    spec = case.spec
    model = build_contestant(contestant, spec).train(case.training)
    run = torch.compile(model) if compiled else model
    images = torch.randn(case.batch, spec.channels, *spec.image)
    labels = torch.randint(spec.classes, (case.batch,))

    def forward() -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=halved):
            run(images)

    if not case.training:
        return forward
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=halved):
            loss = F.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train


def prepare_all(
    case: Case, *, compiled: bool, precision: Precision
) -> tuple[dict[str, Step], dict[str, str]]:
    """Build and warm up all contestants; also say which had to stay out, and why."""
    torch.compiler.reset()
    steps: dict[str, Step] = {}
    skipped: dict[str, str] = {}
    for contestant in CONTESTANTS:
        try:
            step = prepare(case, contestant, compiled=compiled, precision=precision)
            for _ in range(2):
                step()
        except Exception as error:
            skipped[contestant] = excuse(contestant, error, compiled=compiled)
        else:
            steps[contestant] = step
    return steps, skipped


def excuse(contestant: str, error: Exception, *, compiled: bool) -> str:
    """Say why a peer stays out: it is absent or does not compile. Other errors are raised."""
    if contestant in (OURS, AGAIN) or not (compiled or isinstance(error, ImportError)):
        raise error
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}"


def measure_time(
    name: CaseName,
    steps: dict[str, Step],
    rounds: Iterable[int],
    precision: Precision,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time warm contestants and the bound in turns; the bound comes last."""
    case, contestants = CASES[name], list(steps)
    calls = max(1, round(TURN / min(_time(steps[OURS], 1, clock) for _ in range(3))))
    product = _matrix_product(precision)
    product()
    seconds: dict[str, list[float]] = {contestant: [] for contestant in (*contestants, BOUND)}
    for turn in rounds:
        gc.collect()
        gc.disable()
        for place in turn_order(len(contestants), turn):
            contestant = contestants[place]
            seconds[contestant].append(_time(steps[contestant], calls, clock))
        seconds[BOUND].append(_time(product, 1, clock))
        gc.enable()
    bound = 2 * BOUND_SIDE**3 / np.median(seconds[BOUND])
    timings = []
    for contestant, times in seconds.items():
        low, middle, high = np.percentile(np.divide(times, seconds[OURS]), [25, 50, 75])
        work = 2 * BOUND_SIDE**3 if contestant == BOUND else case.flops
        speed = work / float(np.median(times))
        timings.append(
            Timing(
                case=name,
                contestant=contestant,
                median=float(np.median(times)),
                minimum=min(times),
                ratio=float(middle),
                ratio_low=float(low),
                ratio_high=float(high),
                flops=speed,
                of_bound=float(speed / bound),
            )
        )
    return timings


def turn_order(count: int, turn: int) -> list[int]:
    """Order a round's contestants: over `count` rounds (if even) each follows each other once.

    Williams' square: rotating alone would leave everyone behind the same neighbor for ever.
    """
    zigzag = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    return [(place + turn) % count for place in zigzag]


def seconds_of_others() -> float:
    """Give the processor time that all other processes have had so far, where Linux says it."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return 0.0
    user, nice, system, _idle, _wait, *rest = map(int, counters.read_text().split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def _time(step: Step, calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        step()
    return (clock() - start) / calls


def _matrix_product(precision: Precision) -> Step:
    """Give a large product, by the library that is the fastest here."""
    left, right = torch.randn(2, BOUND_SIDE, BOUND_SIDE).to(getattr(torch, precision))

    def product() -> None:
        with torch.inference_mode():
            linear(left, right)

    return product


def measure_memory(
    name: CaseName, contestant: str, threads: int, *, compiled: bool, precision: Precision
) -> Memory:
    """Measure a contestant's peak memory; the process should be a fresh one."""
    torch.set_num_threads(threads)
    step = prepare(CASES[name], contestant, compiled=compiled, precision=precision)
    with suppress(AttributeError):  # where the allocator is not glibc's
        ctypes.CDLL(None).malloc_trim(0)  # what building left behind would hide the first growth
    before = resident("VmRSS")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # let the peak start here
    for _ in range(3):
        step()
    peak = resident("VmHWM")
    return Memory(
        case=name,
        contestant=contestant,
        allocated=_allocated(step),
        resident=None if before is None or peak is None else peak - before,
    )


def resident(field: str) -> int | None:
    """Read a size of this process in bytes, where the system is Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def _allocated(step: Step) -> int:
    """Give the most bytes that torch's allocator had handed out at once during a call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return max(e["args"]["Total Allocated"] for e in events if e["name"] == "[memory]")
