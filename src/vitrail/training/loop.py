"""The one training loop: batches in, steps out, nothing known of what is learned or from where.

The host never waits for the device before a step is taken: whether loss and gradient are finite is
decided there, and their numbers are read while the next step is under way.

Losses are divided by the global batch, so that micro-batches and processes add up to the same
gradient; noise belongs to the image and the step, so that they see the same noise.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config import InputError
from vitrail.data.batches import Batch
from vitrail.data.rng import keys
from vitrail.distributed import CopyStream, Processes
from vitrail.models.init import seeded
from vitrail.models.model import Model
from vitrail.models.noise import keyed_noise
from vitrail.signals import Signals
from vitrail.training.memory import is_out_of_memory
from vitrail.training.optimization.deadline import Deadline
from vitrail.training.optimization.ema import EMA
from vitrail.training.optimization.optim import clip_gradients, set_rate, step_unless
from vitrail.training.optimization.precision import LossScale
from vitrail.training.optimization.step_intervals import Intervals, SaveTimer
from vitrail.training.task import DeviceBatch, Task

log = logging.getLogger("vitrail")


Use = Literal[
    "step", "pass", "evaluation", "on_start", "on_step", "on_evaluation", "on_save", "on_end"
]
"""What draws random numbers after a step, each its own."""


class DivergedError(RuntimeError):
    """The loss or its gradient is not finite any more."""


class StopRequested(Exception):
    """A signal came in the midst of an evaluation, which is left to the next call."""


@dataclass(frozen=True)
class StepResult:
    """What a step did."""

    step: int
    """Counted from 1: steps taken in all."""
    loss: float
    """Mean loss of the global batch's readable images."""
    norm: float
    """Global norm of the gradient, before clipping."""
    lr: float
    finite: bool
    """Whether training can continue; a loss or gradient that is not finite changes no weight, and
    in float16 a gradient may be too large once."""
    bad: int
    """Images that could not be read, in all processes."""
    stop: bool
    """Whether a signal asked any of the processes to stop."""
    save_due: bool = False
    """Whether the time has come to save, which is the same in all processes."""
    ended: float | None = None
    """When the device had computed it, by `time.perf_counter`."""


class LaunchedStep:
    """A step that the device may still compute; its numbers are on their way to the host."""

    def __init__(self, step: int, lr: float, numbers: Tensor, *, stop: bool) -> None:
        """Start copying: loss, readable images, non-finite norms, bad, stop, save, norm, failed."""
        self.stop = stop
        """Whether a signal is known to have asked this process, which is alone, to stop."""
        self._step, self._lr = step, lr
        self._numbers = numbers.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if numbers.is_cuda else None
        if self._copied is not None:  # on the stream that copies, whichever GPU is the current one
            self._copied.record(torch.cuda.current_stream(numbers.device))
        # A CPU has computed it by now, though its numbers may be read after the next step.
        self._ended = time.perf_counter()

    def read(self) -> StepResult:
        """Wait for the numbers."""
        if self._copied is not None:
            self._copied.synchronize()
            self._ended = time.perf_counter()
        loss, readable, _, bad, stop, save, norm, failed = self._numbers.tolist()
        return StepResult(
            self._step + 1,
            loss / max(readable, 1),
            norm,
            self._lr,
            not failed,
            int(bad),
            stop > 0,
            save > 0,
            self._ended,
        )


class Trainer:
    """Takes optimizer steps on a model."""

    def __init__(
        self,
        model: Model,
        task: Task,
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[float], float],
        *,
        forward: nn.Module,
        lr: float,
        clip: float | None,
        batch: int,
        micro_batch: int,
        seed: int,
        processes: Processes,
        autocast: torch.dtype | None = None,
        ema: EMA | None = None,
        compiled: bool = False,
        draws: bool = False,
    ) -> None:
        """Train `model` through `forward`, which is itself, or what wraps it.

        `schedule` gives the factor of the learning rate `lr` at each step. With `compiled`, model,
        loss and their backward pass are compiled as one. With `draws`, parts of the user's own may
        draw from the process's generators, which are seeded for each step.
        """
        self.model, self.task, self.optimizer, self.ema = model, task, optimizer, ema
        self.micro_batch = micro_batch
        """Images that go through the model at a time; halved when memory runs out."""
        self._forward, self.schedule, self._lr, self._clip = forward, schedule, lr, clip
        self._batch, self._seed, self._processes = batch, seed, processes
        self._compiled = torch.compile(task.losses) if compiled else None
        self._copies = CopyStream(processes.device)
        self._draws = draws
        self._failed = torch.zeros((), device=processes.device)
        self.compute_in(autocast)

    def compute_in(self, dtype: torch.dtype | None) -> None:
        """Compute products in this type; None leaves them in float32."""
        self.autocast = dtype
        device = self._processes.device
        self.scale = LossScale(device=device) if dtype == torch.float16 else None

    def step(self, step: int, batch: Batch, signals: Signals) -> StepResult:
        """Take one step, the step-th from 0, and wait for its numbers."""
        result = self.launch(step, batch, signals).read()
        self._failed.zero_()
        return result

    def launch(
        self, step: int, batch: Batch, signals: Signals, save_due: bool = False
    ) -> LaunchedStep:
        """Start one step, the step-th from 0, on this process's part of a global batch.

        Where its loss or gradient is not finite it changes nothing, and no later step does.
        """
        with self.drawing(step, "step"):
            return self._launch(step, batch, signals, save_due)

    def drawing(self, step: int, use: Use) -> AbstractContextManager[None]:
        """Seed the process's generators by step, use and process, where parts draw from them."""
        if not self._draws:
            return nullcontext()
        uses = get_args(Use)
        place = np.array([self._processes.rank * len(uses) + uses.index(use)])
        number = int(keys(self._seed, "globals", step, place)[0]) % 2**63
        return seeded(number, self._processes.device)

    def _launch(self, step: int, batch: Batch, signals: Signals, save_due: bool) -> LaunchedStep:
        self.model.train()
        prepared = self._copies.run(lambda: self.task.prepare(batch))
        drawn = keys(self._seed, "noise", step, prepared.keys.numpy())
        prepared = prepared._replace(keys=torch.from_numpy(drawn))
        loss = self._accumulate(prepared, step)
        if self.scale is not None:
            self.scale.remove(self.model.parameters())
        norm = clip_gradients(self.model.parameters(), self._clip)
        odd = ~norm.isfinite()
        numbers = self._processes.sum_on_device(
            (loss, prepared.weights.sum(), odd), len(batch.bad), signals.number, save_due
        )
        held = self._hold(~numbers[0].isfinite(), numbers[2] > 0)
        lr = self._lr * self.schedule(step)
        set_rate(self.optimizer, lr)
        step_unless(self.optimizer, held)
        if self.ema is not None:
            self.ema.update(self.model, held)
        self.optimizer.zero_grad(set_to_none=True)
        self.task.after_step(self.model)
        own = torch.stack([norm, self._failed]).to(numbers)
        alone = self._processes.count == 1
        return LaunchedStep(step, lr, torch.cat([numbers, own]), stop=alone and signals.number > 0)

    def _hold(self, bad_loss: Tensor, bad_gradient: Tensor) -> Tensor:
        """Note whether training failed; return 1 if the step must not be taken, all on the device.

        A gradient that is too large for float16 only skips the step, until the scale is 1.
        """
        device = self._failed.device
        bad_loss, overflow = (flag.to(device, torch.float32) for flag in (bad_loss, bad_gradient))
        if self.scale is None:
            failed = torch.maximum(bad_loss, overflow)
        else:
            failed = torch.maximum(bad_loss, self.scale.settle(overflow * (1 - bad_loss)))
        self._failed = torch.maximum(self._failed, failed)
        return torch.maximum(self._failed, overflow)

    def _accumulate(self, batch: DeviceBatch, step: int) -> Tensor:
        """Compute the gradient of the whole batch, a micro-batch at a time; give the summed loss.

        When memory runs out, smaller micro-batches give the same gradient.
        """
        while True:
            try:
                with self.drawing(step, "pass"):
                    return self._try_accumulate(batch)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            self._halve()
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _halve(self) -> None:
        """Make micro-batches smaller, or say what else to do."""
        said = f"out of memory with {self.micro_batch} of {self._batch} images at a time"
        smaller = self.micro_batch // 2
        name = self.model.spec.name
        if smaller == 0:
            raise InputError(f"{said} in {name}; try a smaller one, or --checkpointing") from None
        if self.task.needs_whole_batch:
            raise InputError(f"{said} in {name}; the task needs them all: try a smaller --batch")
        if self._processes.count > 1:  # the others wait in the midst of an exchange
            raise InputError(f"{said}; try --micro-batch {smaller} (same result)") from None
        log.warning("%s; going on with %d, same result", said, smaller)
        self.micro_batch = smaller

    def _try_accumulate(self, batch: DeviceBatch) -> Tensor:
        count = len(batch.weights)
        # Wrappers average gradients over processes, where the sum is wanted.
        scale: Tensor | float = self._processes.count / self._batch
        if self.scale is not None:
            scale = self.scale.factor * scale
        total = torch.zeros((), device=self._processes.device)
        for start in range(0, count, self.micro_batch):
            part = batch.part(start, min(start + self.micro_batch, count))
            last = start + self.micro_batch >= count
            # Noise lasts over the backward pass, where checkpointing draws it again.
            with self._exchange(last), keyed_noise(self.model, part.keys):
                with self._autocasting():
                    losses = (self._compiled or self.task.losses)(self._forward, part)
                loss = (losses * part.weights).sum()
                (loss * scale).backward()
            total += loss.detach()
        return total

    def _exchange(self, last: bool) -> AbstractContextManager[Any]:
        """Let processes exchange gradients with the last micro-batch only."""
        if isinstance(self._forward, DistributedDataParallel) and not last:
            return self._forward.no_sync()
        if hold_back := getattr(self.model, "set_requires_gradient_sync", None):  # of FSDP
            hold_back(last)
        return nullcontext()

    def _autocasting(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self._processes.device.type, self.autocast)


Ending = Literal["finished", "stopped", "converged", "paused"]


def fit(
    trainer: Trainer,
    batches: Iterable[Batch],
    intervals: Intervals,
    signals: Signals,
    *,
    start: int,
    ahead: int = 1,
    deadline: Deadline | None = None,
    record: Callable[[StepResult, Batch], None],
    evaluate: Callable[[int], bool],
    save: Callable[[int], None],
    blame: Callable[[int], str],
) -> tuple[Ending, int]:
    """Train to the end, or until a signal, or until `evaluate` says that it gets no better.

    So many steps are launched `ahead` of the one that is recorded. A `deadline` plans the last one.

    Return how it ended, and at which step. What is due after step `start` is asked for again,
    since a signal may have put it off. A loss that is not finite ends it with an error; `blame`
    says where a person can look up the batch that gave it.
    """
    timer, saved = SaveTimer(), start

    def settle(done: int, *, stop: bool, save_due: bool) -> Ending | None:
        """Do what is due after a step; say how the run ends, if it ends there."""
        nonlocal saved
        ending: Ending | None = "paused" if intervals.rests(done) else None
        ending = "finished" if done == intervals.total else ending
        if not stop and intervals.measures(done):
            try:
                ending = "converged" if evaluate(done) else ending
            except StopRequested:
                stop = True
            except InputError:  # of the validation images or a metric: no step is lost for them
                if done > saved:
                    save(done)
                raise
        ending = "stopped" if stop else ending
        early = ending in ("stopped", "converged")
        if intervals.save is None:
            save_due = save_due or intervals.rests(done)
        else:
            save_due = intervals.due(intervals.save, done)
        # What a pause has measured is saved even where no step was taken.
        if ending == "paused" or (done > start and (early or save_due)):
            timer.time(save, done)
            saved = done
        return ending

    if ending := settle(start, stop=False, save_due=False):
        return ending, start
    launched: deque[tuple[LaunchedStep, Batch]] = deque()
    most = intervals.total if deadline is None else deadline.most
    for step, batch in zip(range(start, most), batches, strict=False):
        if deadline is not None:
            deadline.replan(step, intervals)
        by_time = intervals.save is None and timer.due()
        launched.append((trainer.launch(step, batch, signals, by_time), batch))
        stop, save_due, acts = launched[-1][0].stop, False, intervals.acts(step + 1)
        while len(launched) > (0 if acts or stop or save_due else ahead):
            pending, learned = launched.popleft()
            result = pending.read()
            if not result.finite:
                if result.step - 1 > saved:
                    save(result.step - 1)
                where = blame(result.step - 1)
                raise DivergedError(_explain(result, where, scaled=trainer.scale is not None))
            record(result, learned)
            stop, save_due = stop or result.stop, save_due or result.save_due
        if not launched and (ending := settle(step + 1, stop=stop, save_due=save_due)):
            return ending, step + 1
    raise AssertionError("there are fewer batches than steps")


def _explain(result: StepResult, where: str, *, scaled: bool) -> str:
    what = "gradient" if math.isfinite(result.loss) else "loss"
    or_else = "; in float16 nothing exceeds 65,504: try --precision float32" if scaled else ""
    return (
        f"the {what} is not finite at step {result.step} (loss {result.loss:.4g}, gradient norm "
        f"{result.norm:.3g}, lr {result.lr:.1e}); the weights of step {result.step - 1} are kept, "
        f"and {where}; try a lower --lr, a longer warm-up or --optim.clip 1{or_else}"
    )
