"""Which way is fastest on this machine, and what it costs: measured side by side, then said.

All candidates have one turn in each round, so that a busy machine slows them alike; the medians of
the rounds count. What is slower than PyTorch as it is, or answers otherwise more often than
allowed, is said to be so and never recommended.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError, suggest
from vitrail.deploy.backends.backends import BACKENDS, MERGED, REFERENCE, BackendContext
from vitrail.deploy.exporting.samples import Samples, take_samples
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.batching_config import cores

_GAIN = 1.03  # less is noise


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured, on how much, and what may be lost."""

    ways: tuple[str, ...] = tuple(BACKENDS)
    images: int = 64
    rounds: int = 3
    loss: float = 0.01
    """Part of the images for which another answer, or a wrong one more, is allowed."""
    merge: float = MERGED
    split: str = "val"

    def __post_init__(self) -> None:
        for name in self.ways:
            if name not in BACKENDS:
                there = ", ".join(BACKENDS)
                raise InputError(f"no way {name!r}; there are: {there}{suggest(name, BACKENDS)}")
        if self.images < 1 or self.rounds < 1 or not 0 <= self.loss < 1:
            said = f"images {self.images}, rounds {self.rounds}, loss {self.loss}"
            raise InputError(f"{said}: nothing to measure")


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """What one way and pace reached."""

    way: str
    pace: BatchingConfig
    speed: float
    """Images in a second, from files to logits."""
    ratio: float
    """That by PyTorch's at its usual pace, the median of the rounds."""
    latency: tuple[float, float, float]
    """Milliseconds for one image alone, prepared already: half, 90 % and 99 % are no slower."""
    memory: float | None
    """MiB that the process grew by to make it and run it, where the system says so."""
    accuracy: float | None
    """Top-1 on the images, where they are labeled with the model's classes."""
    agreement: float
    """Part of the images whose most likely class is PyTorch's."""
    verdict: str


@dataclass(frozen=True)
class Bench:
    """All that was measured, and what is recommended."""

    rows: tuple[BenchmarkRow, ...]
    best: BenchmarkRow
    images: str
    absent: dict[str, str]
    """The ways that could not be tried, and why."""


@dataclass
class _Candidate:
    way: str
    predictor: Predictor
    memory: float | None
    logits: Tensor
    seconds: list[float]
    latencies: list[float]


def bench(
    predictor: Predictor,
    data: str | None = None,
    settings: Settings | None = None,
    *,
    report: Callable[[int], None] = lambda done: None,
) -> Bench:
    """Measure the ways to run a model on the user's images, or on drawn ones."""
    with tempfile.TemporaryDirectory(prefix="vitrail-bench-") as folder:
        return compare(predictor, Path(folder), data, settings or Settings(), report)[0]


def optimize(
    predictor: Predictor, data: str | None = None, settings: Settings | None = None
) -> Predictor:
    """Give the fastest predictor that measuring finds among the exact ways and their paces.

    Name `merged` or `int8` in the settings' ways to have those tried as well.
    """
    exact = tuple(name for name in BACKENDS if BACKENDS[name].exact)
    folder = Path(tempfile.mkdtemp(prefix="vitrail-bench-"))
    try:
        found = compare(predictor, folder, data, settings or Settings(ways=exact))[1]
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # Engines open its files whenever one batch more runs at a time, so it stays as long as they do.
    weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


def compare(
    predictor: Predictor,
    folder: Path,
    data: str | None,
    settings: Settings,
    report: Callable[[int], None] = lambda done: None,
) -> tuple[Bench, Predictor]:
    """Measure ways whose files may lie in a folder, and give the recommended one's predictor."""
    samples = take_samples(data, predictor.preprocess, count=settings.images, split=settings.split)
    shop = BackendContext(predictor, folder, data, settings.merge)
    found, absent = _build(shop, samples, settings)
    for turn in range(settings.rounds):
        for candidate in found:
            _take_turn(candidate, samples)
        report(turn + 1)
    rows = [_judge(each, found[0], samples, settings) for each in found]
    good = [place for place, row in enumerate(rows) if row.verdict in ("faster", "the reference")]
    best = max(good, key=lambda place: rows[place].ratio)
    rows[best] = replace(rows[best], verdict=f"recommended: {rows[best].verdict}")
    return Bench(tuple(rows), rows[best], samples.name, absent), found[best].predictor


def paces(usual: BatchingConfig) -> list[BatchingConfig]:
    """List the paces worth a try: micro-batches around the usual, workers or threads."""
    count = cores()
    micros = {1, max(1, usual.micro // 2), usual.micro, 2 * usual.micro}
    spread = {(min(count, 8), 1), (1, count)}
    return [
        BatchingConfig(micro=micro, workers=workers, threads=threads)
        for micro in sorted(micros)
        for workers, threads in sorted(spread)
    ]


def _build(
    shop: BackendContext, samples: Samples, settings: Settings
) -> tuple[list[_Candidate], dict[str, str]]:
    """Make the candidates: PyTorch at each pace, then each other way at PyTorch's best pace."""
    usual = shop.predictor.pace
    first = _try(shop, REFERENCE, usual, samples)
    found, absent = [first], {}
    others = [_try(shop, REFERENCE, pace, samples) for pace in paces(usual) if pace != usual]
    best = min([first, *others], key=lambda each: each.seconds[0])
    if best is not first:
        found.append(best)
    for name in settings.ways:
        if name == REFERENCE:
            continue
        try:
            found.append(_try(shop, name, best.predictor.pace, samples))
        except InputError as error:
            absent[name] = str(error)
    for each in found:
        each.seconds.clear()
        each.latencies.clear()
    return found, absent


def _try(shop: BackendContext, name: str, pace: BatchingConfig, samples: Samples) -> _Candidate:
    """Make a candidate, and let it run once, for what only a first run takes."""
    before = _resident("VmRSS")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # let the peak start here
    engine = BACKENDS[name].make(shop, pace)
    candidate = _Candidate(
        name, shop.predictor.with_engine(engine, pace), None, torch.empty(0), [], []
    )
    outputs = [answer.output for answer in candidate.predictor.answers(samples.contents)]
    candidate.logits = torch.stack([output for output in outputs if output is not None])
    _take_turn(candidate, samples, latencies=2)
    peak = _resident("VmHWM")
    if before is not None and peak is not None:
        candidate.memory = (peak - before) / 1024
    return candidate


def _take_turn(candidate: _Candidate, samples: Samples, latencies: int = 16) -> None:
    predictor = candidate.predictor
    start = time.perf_counter()
    for _ in predictor.answers(samples.contents):
        pass
    candidate.seconds.append(time.perf_counter() - start)
    for place in range(latencies):
        prepared = predictor.prepare(samples.contents[place % len(samples)])[None]
        start = time.perf_counter()
        predictor.run(prepared)
        candidate.latencies.append(time.perf_counter() - start)


def _judge(
    each: _Candidate, first: _Candidate, samples: Samples, settings: Settings
) -> BenchmarkRow:
    answers, expected = each.logits.argmax(1), first.logits.argmax(1)
    agreement = float((answers == expected).double().mean())
    labels = _labels(samples, each.predictor.classes)
    accuracy, reference = (
        None if labels is None else float((found == labels).double().mean())
        for found in (answers, expected)
    )
    ratio = float(np.median(np.divide(first.seconds, each.seconds)))
    lost = 0.0 if accuracy is None or reference is None else reference - accuracy
    p50, p90, p99 = (float(1000 * np.quantile(each.latencies, q)) for q in (0.5, 0.9, 0.99))
    if each is first:
        verdict = "the reference"
    elif 1 - agreement > settings.loss or lost > settings.loss:
        verdict = f"loses too much: other answers for {1 - agreement:.1%} of the images"
    elif ratio < _GAIN:
        verdict = "slower" if ratio < 1 else "no faster"
    else:
        verdict = "faster"
    return BenchmarkRow(
        way=each.way,
        pace=each.predictor.pace,
        speed=float(len(samples) / np.median(each.seconds)),
        ratio=ratio,
        latency=(p50, p90, p99),
        memory=each.memory,
        accuracy=accuracy,
        agreement=agreement,
        verdict=verdict,
    )


def _labels(samples: Samples, classes: Sequence[str] | None) -> Tensor | None:
    """Give each image's class by the model's numbers, where it knows all the names."""
    if samples.labels is None or classes is None or not set(samples.classes) <= set(classes):
        return None
    places = {name: place for place, name in enumerate(classes)}
    return torch.tensor([places[samples.classes[label]] for label in samples.labels])


def _resident(field: str) -> int | None:
    """Read a size of this process in KiB, where the system is Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = status.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), None)
