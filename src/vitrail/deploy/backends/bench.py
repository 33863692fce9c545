"""Benchmark: which backend is fastest on this machine, and what it costs.

All candidates have one turn per round, so that other load slows them equally; the median of the
rounds counts. A backend that is slower than PyTorch, or loses more accuracy than allowed, is never
recommended; without labels, it may not change more predictions than allowed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError, suggest
from vitrail.console import show_progress
from vitrail.data.datasets.open import Data
from vitrail.deploy.backends.backends import BACKENDS, MERGE_RATIO, REFERENCE, BackendContext
from vitrail.deploy.exporting.samples import Samples, take_samples
from vitrail.evaluation.evaluation_result import Selected
from vitrail.files import temporary_folder
from vitrail.machine import available_cores
from vitrail.predictor import BatchingConfig, ModelLike, Predictor
from vitrail.result import Result, ResultTable
from vitrail.text import show_rate

ROUNDS, MAX_LOSS, MAX_CHANGED = 3, 0.005, 0.01
_GAIN = 1.03  # a smaller ratio is noise
_JUDGED = 512  # images whose predictions are compared, where a backend is not exact


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """The measurements of one backend."""

    backend: str
    batching: BatchingConfig
    images_per_second: float
    """From files to logits."""
    ratio: float
    """Speed relative to PyTorch with its default batching, the median of the rounds."""
    latency: tuple[float, float, float]
    """Milliseconds for one preprocessed image: p50, p90 and p99."""
    memory: float | None
    """MiB that the process grew by; None where the system does not say."""
    top1: float | None
    """Accuracy, if the images are labeled with the model's classes."""
    agreement: float
    """Fraction of images with the same top-1, or the same labels, as PyTorch."""
    verdict: str


@dataclass(frozen=True)
class BenchmarkResult(Result):
    """All measurements, and what is recommended."""

    rows: tuple[BenchmarkRow, ...]
    best: BenchmarkRow
    images: str
    """The dataset that was measured on."""
    count: int
    """Number of its images that were timed."""
    judged: int
    """Number of its images whose predictions were compared."""
    unavailable: dict[str, str]
    """Backends that could not be tried, and why."""
    selected: Selected | None = None
    """Which images of the user's data these are taken from, and why those."""
    notes: tuple[str, ...] = ()

    def summary(self) -> Iterable[ResultTable | str]:
        """Give a table of the backends, and what is recommended."""
        columns = ("images / s", "ratio", "p50 ms", "p90", "p99", "MiB", "top-1", "agreement")
        rows = [
            (
                row.backend, str(row.batching), show_rate(row.images_per_second),
                f"{row.ratio:.2f}", *(f"{each:.1f}" for each in row.latency),
                "" if row.memory is None else f"{row.memory:.0f}",
                "" if row.top1 is None else f"{row.top1:.1%}", f"{row.agreement:.1%}",
            )
            for row in self.rows
        ]  # fmt: skip
        yield ResultTable(("backend", "batching", *columns), rows)
        for row in self.rows:
            yield f"{row.backend} {row.batching}: {row.verdict}"
        yield "Batching is batch x workers x threads per worker."
        chosen = self.images if self.selected is None else f"{self.images}: {self.selected}"
        yield (
            f"Measured on {self.count} images of {chosen}. Agreement: fraction with the same "
            f"top-1 as PyTorch; of {self.judged} images where a backend is not exact."
        )
        yield from self.notes
        for backend, reason in self.unavailable.items():
            yield f"not measured: {backend}: {reason}"


@dataclass
class _Candidate:
    backend: str
    predictor: Predictor
    memory: float | None
    logits: Tensor
    seconds: list[float]
    latencies: list[float]


def bench(
    model: ModelLike,
    *,
    data: Data | None = None,
    split: str = "val",
    backends: Sequence[str] = (),
    images: int = 64,
    rounds: int = ROUNDS,
    max_loss: float = MAX_LOSS,
    max_changed: float = MAX_CHANGED,
    merge: float = MERGE_RATIO,
) -> BenchmarkResult:
    """Measure which backend runs a model fastest, on the user's images or on generated shapes.

    `max_loss` is the largest loss of accuracy; where the images are not labeled with the model's
    classes, `max_changed` is the largest fraction of them whose top-1 may change.
    """
    for name in backends:
        if name not in BACKENDS:
            hint = suggest(name, BACKENDS)
            raise InputError(f"--backends {name}: expected some of {', '.join(BACKENDS)}{hint}")
    for name, count in (("images", images), ("rounds", rounds)):
        if count < 1:
            raise InputError(f"{name} must be at least 1, got {count}")
    for name, most in (("max_loss", max_loss), ("max_changed", max_changed)):
        if not 0 <= most < 1:
            raise InputError(f"{name} must be in [0, 1), got {most}")
    predictor = Predictor.load(model, device="cpu")
    with temporary_folder("vitrail-bench-", Path(tempfile.gettempdir())) as folder:
        names = tuple(backends) or tuple(BACKENDS)
        exact = data is None or all(BACKENDS[name].exact for name in names)
        count = images if exact else max(images, _JUDGED)
        given = None if isinstance(model, Predictor) else model
        samples = take_samples(data, predictor.preprocess, count=count, split=split, model=given)
        context = BackendContext(predictor, folder, data, merge)
        return measure_backends(context, samples, names, images, rounds, max_loss, max_changed)


def measure_backends(
    context: BackendContext,
    samples: Samples,
    backends: Sequence[str],
    images: int,
    rounds: int = ROUNDS,
    max_loss: float = MAX_LOSS,
    max_changed: float = MAX_CHANGED,
) -> BenchmarkResult:
    """Measure backends by name, and PyTorch in any case, on the first `images` of the samples."""
    timed = samples.first(images)
    found, unavailable = _build(context, timed, backends)
    for each in found:
        _compute_logits(each, timed if BACKENDS[each.backend].exact else samples)
    reference = found[0]
    if any(len(each.logits) > len(timed) for each in found):
        _compute_logits(reference, samples)
    with show_progress("measuring", rounds) as report:
        for turn in range(rounds):
            for candidate in found:
                _take_turn(candidate, timed)
            report(turn + 1)
    limits = max_loss, max_changed
    rows = [_judge(each, reference, samples, limits) for each in found]
    good = [index for index, row in enumerate(rows) if row.verdict in ("faster", "the reference")]
    best = max(good, key=lambda index: rows[index].ratio)
    rows[best] = replace(rows[best], verdict=f"recommended: {rows[best].verdict}")
    return BenchmarkResult(
        tuple(rows),
        rows[best],
        samples.name,
        len(timed),
        len(reference.logits),
        unavailable,
        samples.selected,
        samples.notes,
    )


def batching_candidates(default: BatchingConfig) -> list[BatchingConfig]:
    """List what to try: batch sizes around the default, with many workers or many threads."""
    count = available_cores()
    sizes = {1, max(1, default.batch_size // 2), default.batch_size, 2 * default.batch_size}
    spread = {(min(count, 8), 1), (1, count)}
    return [
        BatchingConfig(batch_size=batch_size, workers=workers, threads=threads)
        for batch_size in sorted(sizes)
        for workers, threads in sorted(spread)
    ]


def _build(
    context: BackendContext, samples: Samples, backends: Sequence[str]
) -> tuple[list[_Candidate], dict[str, str]]:
    """Make the candidates: PyTorch with each batching, then the others with the best of these."""
    default = context.predictor.batching
    first = _try(context, REFERENCE, default, samples)
    found, unavailable = [first], {}
    tried = (each for each in batching_candidates(default) if each != default)
    others = [_try(context, REFERENCE, each, samples) for each in tried]
    best = min([first, *others], key=lambda each: each.seconds[0])
    if best is not first:
        found.append(best)
    for name in backends:
        if name == REFERENCE:
            continue
        try:
            found.append(_try(context, name, best.predictor.batching, samples))
        except InputError as error:
            unavailable[name] = str(error)
    for each in found:
        each.seconds.clear()
        each.latencies.clear()
    return found, unavailable


def _try(
    context: BackendContext, name: str, batching: BatchingConfig, samples: Samples
) -> _Candidate:
    """Make a candidate and run it once, as warm-up."""
    before = _resident("VmRSS")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    engine = BACKENDS[name].make(context, batching)
    candidate = _Candidate(
        name, context.predictor.with_engine(engine, batching), None, torch.empty(0), [], []
    )
    _take_turn(candidate, samples, latencies=2)
    peak = _resident("VmHWM")
    if before is not None and peak is not None:
        candidate.memory = (peak - before) / 1024
    return candidate


def _compute_logits(candidate: _Candidate, samples: Samples) -> None:
    outputs = [output.values for output in candidate.predictor.outputs(samples.contents)]
    candidate.logits = torch.stack([each for each in outputs if each is not None])


def _take_turn(candidate: _Candidate, samples: Samples, latencies: int = 16) -> None:
    predictor = candidate.predictor
    start = time.perf_counter()
    for _ in predictor.outputs(samples.contents):
        pass
    candidate.seconds.append(time.perf_counter() - start)
    for index in range(latencies):
        prepared = predictor.prepare(samples.contents[index % len(samples)])[None]
        start = time.perf_counter()
        predictor.run(prepared)
        candidate.latencies.append(time.perf_counter() - start)


def _judge(
    each: _Candidate, first: _Candidate, samples: Samples, limits: tuple[float, float]
) -> BenchmarkRow:
    """Judge a backend by speed and by accuracy, or by agreement where that is unknown."""
    reference = first.logits[: len(each.logits)]
    same = each.predictor.same_predictions(each.logits, reference)
    agreement = float(same.double().mean())
    labels, top1, lost = _labels(samples, each.predictor.classes), None, 0.0
    if labels is not None:
        labels = labels[: len(each.logits)]
        top1, before = (
            float((logits.argmax(1) == labels).double().mean())
            for logits in (each.logits, reference)
        )
        lost = before - top1
    ratio = float(np.median(np.divide(first.seconds, each.seconds)))
    p50, p90, p99 = (float(1000 * np.quantile(each.latencies, q)) for q in (0.5, 0.9, 0.99))
    max_loss, max_changed = limits
    if each is first:
        verdict = "the reference"
    elif lost > max_loss:
        verdict = f"not recommended: loses {100 * lost:.1f} points of accuracy"
    elif labels is None and 1 - agreement > max_changed:
        verdict = f"not recommended: changes the top-1 of {1 - agreement:.1%} of the images"
    elif ratio < _GAIN:
        verdict = "slower" if ratio < 1 else "not faster"
    else:
        verdict = "faster"
    return BenchmarkRow(
        backend=each.backend,
        batching=each.predictor.batching,
        images_per_second=float(len(samples) / np.median(each.seconds)),
        ratio=ratio,
        latency=(p50, p90, p99),
        memory=each.memory,
        top1=top1,
        agreement=agreement,
        verdict=verdict,
    )


def _labels(samples: Samples, classes: Sequence[str] | None) -> Tensor | None:
    """Give each image's class index in the model, if it knows all the names."""
    if samples.labels is None or classes is None or not set(samples.classes) <= set(classes):
        return None
    indices = {name: index for index, name in enumerate(classes)}
    return torch.tensor([indices[samples.classes[label]] for label in samples.labels])


def _resident(field: str) -> int | None:
    """Read a memory size of this process in KiB, on Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = status.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), None)
