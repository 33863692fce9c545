"""Metrics, throughput, loggers, log and progress of a run.

`metrics.jsonl` holds only what a run computes: killed and resumed any number of times, it ends with
the same bytes. `speed.jsonl` holds what differs each time.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config import InputError
from vitrail.training.logging.json_lines import JSONLines, format_row
from vitrail.training.logging.log_setup import format_log, log_to
from vitrail.training.logging.loggers import Logger, LoggerFactory, open_logger
from vitrail.training.logging.progress import (
    LinePrinter,
    ProgressState,
    format_progress,
    open_progress,
)
from vitrail.training.logging.throughput import ThroughputMeter, ThroughputWindow, peak_memory

METRICS = "metrics.jsonl"
SPEED = "speed.jsonl"
LOG = "log.txt"
ACCURACIES = {
    "val/top1": "val top-1",
    "val/top5": "val top-5",
    "val/macro_accuracy": "val macro accuracy",
    "val/map": "val mAP",
    "val/macro_f1": "val macro F1",
    "val/micro_f1": "val micro F1",
}
"""Fractions, and what they are called in the log."""

log = logging.getLogger("vitrail")


class MetricsLogger:
    """Writes what a run reports, in a with statement; steps count from 1 and never go back.

    Opened at step S it drops the lines after S, or all lines for a new run (S = 0). So everything
    about a step, evaluations too, must be written before that step is saved.
    """

    def __init__(
        self,
        folder: Path,
        *,
        total: int,
        step: int = 0,
        every: int = 10,
        loggers: Sequence[str] | Mapping[str, LoggerFactory] = ("tensorboard",),
        quiet: bool = False,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Open all files; write values `every` so many steps, 0 for never.

        `quiet`, for all processes but the first, opens and shows nothing. `saved` is the
        `metrics_state` of the checkpoint that the run resumes from.
        """
        assert 0 <= step <= total
        self._quiet, self._every = quiet, every
        self.total = total
        """The last step, which a deadline may change."""
        self._step = step
        self._loggers: dict[str, Logger] = {}
        self._pace = ThroughputMeter()
        with ExitStack() as stack:
            if not quiet:
                self._open(stack, folder, loggers, saved)
            self._stack = stack.pop_all()

    def _open(
        self,
        stack: ExitStack,
        folder: Path,
        loggers: Sequence[str] | Mapping[str, LoggerFactory],
        saved: Mapping[str, Any] | None,
    ) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot hold a run: {error.strerror}") from None
        record = JSONLines(folder / LOG)
        stack.callback(record.close)
        stack.enter_context(log_to(record.append))
        self._append_log = record.append
        stack.push(self._close_loggers)
        for name in loggers:  # which may refuse, so before anything is cut
            make = loggers[name] if isinstance(loggers, Mapping) else None
            if logger := open_logger(name, folder, self._step, make):
                self._loggers[name] = logger
        if saved is not None:
            _restore(folder / METRICS, saved)
        upto = self._step or -1
        self._metrics = JSONLines(folder / METRICS, upto=upto)
        stack.callback(self._metrics.close)
        self._speed = JSONLines(folder / SPEED, upto=upto)
        stack.callback(self._speed.close)
        self._display = open_progress(self.total, self._step)
        stack.push(self._close_display)
        self._line_gauge = ThroughputWindow(self._pace)
        self._shown_gauge = ThroughputWindow(self._pace, self._display.span)
        self._next_show = -math.inf
        self._start: tuple[int, float] | None = None
        self._losses: deque[tuple[float, int]] = deque(maxlen=self._display.span)
        self._loss: tuple[float | Tensor, int] = 0.0, 0  # summed since the last reading, and steps
        self._next_line = -math.inf

    def train(
        self,
        step: int,
        values: Mapping[str, float | Tensor],
        *,
        images: int,
        waited: float,
        ended: float | None = None,
    ) -> None:
        """Take a training step's values, number of images, and seconds spent waiting for them.

        It ended at `ended`, unless just now.

        Every so many steps, at the first and at the last, the values of that step alone are
        written: a mean since the previous line would differ if a run is resumed in between. Tensors
        are read only then, and when they are shown.
        """
        if self._quiet:
            return
        now = time.perf_counter() if ended is None else ended
        self._pace.step(now, images, waited)
        if (loss := values.get("train/loss")) is not None:
            self._loss = self._loss[0] + loss, self._loss[1] + 1
        if self._start is None:
            self._start = step, now
        writes = self._every and (step % self._every == 0 or step in (1, self.total))
        shows = now >= self._next_show or step == self.total
        if not (writes or shows):
            return
        numbers = _read(values)
        if writes:
            self._write(step, numbers, self._measure(step))
        if shows:
            self._show(step, numbers, now)

    def evaluation(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Write and show an evaluation after a step; its time is not part of the throughput."""
        if self._quiet:
            return
        numbers = _read(values)
        self._write(step, numbers)
        shown = "  ".join(_format(name, value) for name, value in numbers.items())
        log.info("step %s/%s  %s", f"{step:,}", f"{self.total:,}", shown)
        self._pace.skip(time.perf_counter())

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        """Send an image, height x width x 3 in uint8, to the loggers."""
        assert array.dtype == np.uint8
        assert array.shape[2:] == (3,), array.shape
        self._tell(lambda logger: logger.image(step, name, array))

    def note(self, text: str) -> None:
        """Write a line to stderr and to the log."""
        if not self._quiet:
            log.info("%s", text)

    def sync(self) -> None:
        """Flush the lines to disk, as must be done before a checkpoint is saved."""
        if not self._quiet:
            self._metrics.sync()
            self._speed.sync()

    def metrics_state(self) -> dict[str, Any]:
        """Return the size and hash of the metrics, for a checkpoint."""
        if self._quiet:
            return {}
        content = self._metrics.read()
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def _write(
        self, step: int, numbers: dict[str, float], speed: Mapping[str, float] | None = None
    ) -> None:
        assert step >= self._step, f"step {step} after step {self._step}"
        self._step = step
        self._metrics.append(format_row(step, numbers))
        self._tell(lambda logger: logger.log(step, {**numbers, **(speed or {})}))

    def _measure(self, step: int) -> dict[str, float]:
        """Write the throughput since the last line, if it is known."""
        speed, memory = self._line_gauge.read(), peak_memory()
        if speed is None:
            return {}
        row = {
            "speed/images_per_second": speed.images,
            "speed/waiting_for_data": speed.waiting,
        }
        if memory is not None:
            row["speed/peak_memory"] = memory
        self._speed.append(format_row(step, {"time": time.time(), **row}))
        return row

    def _mean_loss(self) -> float | None:
        """Return the mean loss since the last line; on a terminal, over the last ten seconds."""
        self._losses.append((float(self._loss[0]), self._loss[1]))
        self._loss = 0.0, 0
        sums, steps = zip(*self._losses, strict=True)
        return sum(sums) / sum(steps) if sum(steps) else None

    def _show(self, step: int, numbers: dict[str, float], now: float) -> None:
        self._next_show = now + self._display.period
        figures = ProgressState(
            step=step,
            total=self.total,
            epoch=numbers.get("epoch"),
            loss=self._mean_loss(),
            lr=numbers.get("lr"),
            speed=self._shown_gauge.read(),
            memory=peak_memory(),
            left=self._guess_left(step, now),
        )
        try:
            self._display.show(figures)
        except OSError:  # the terminal has gone, the run stays
            self._next_show = math.inf
        if now >= self._next_line or step == self.total:
            self._next_line = now + LinePrinter.period
            self._append_log(format_log(format_progress(figures)))

    def _guess_left(self, step: int, now: float) -> float | None:
        """Estimate the seconds to the end, evaluations and saves included."""
        assert self._start is not None
        first, began = self._start
        if step == first:
            return None
        return (now - began) / (step - first) * (self.total - step)

    def _tell(self, call: Callable[[Logger], None]) -> None:
        """Call each logger; one that fails is dropped: no run stops for a logger."""
        for name, logger in list(self._loggers.items()):
            try:
                call(logger)
            except Exception as error:  # a library's own, whatever it be
                del self._loggers[name]
                said = (str(error) or type(error).__name__).splitlines()[0]
                log.warning("logger %r failed and is dropped: %s", name, said)
                with suppress(Exception):
                    logger.close(failed=True)

    def _close_loggers(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tell(lambda logger: logger.close(failed=kind is not None))

    def _close_display(self, *_: object) -> None:
        with suppress(OSError):
            self._display.close()

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def _restore(path: Path, saved: Mapping[str, Any]) -> None:
    """Truncate the metrics to what they were when the run was saved, or warn that they differ.

    Lines of later steps are dropped anyway; at that very step there may be an evaluation that the
    resumed run repeats.
    """
    try:
        with path.open("rb") as file:
            content = file.read(saved["bytes"])
        if hashlib.sha256(content).hexdigest() == saved["sha256"]:
            os.truncate(path, saved["bytes"])
            return
        short = saved["bytes"] - len(content)
        what = f"has lost {short:,} bytes" if short else "was changed"
    except FileNotFoundError:
        what = "is gone"
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    log.warning("%s %s since the run was saved; its curves are incomplete", path, what)


def _read(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Read tensors, which waits for the device."""
    return {
        name: value if isinstance(value, int | float) else value.item()
        for name, value in values.items()
    }


def _format(name: str, value: float) -> str:
    if name in ACCURACIES:
        return f"{ACCURACIES[name]} {value:.2%}"
    if name.startswith("fewshot/"):
        return f"{name.removeprefix('fewshot/')}-shot accuracy {value:.2%}"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:#.4g}"
    return f"{name.replace('/', ' ')} {shown}"
