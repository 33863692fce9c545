"""The one training loop: batches in, steps taken, nothing known of what is learnt or from where.

Losses are divided by the global batch, so that micro-batches and processes add up to the same
gradient; noise belongs to the image and the step, so that they see the same noise.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config import InputError
from vitrail.data.batches import Batch
from vitrail.data.rng import keys
from vitrail.distributed import Processes
from vitrail.models.model import Model
from vitrail.models.noise import keyed_noise
from vitrail.signals import Signals
from vitrail.training.ema import EMA
from vitrail.training.memory import is_out_of_memory
from vitrail.training.optim import clip_gradients, set_rate
from vitrail.training.precision import LossScale
from vitrail.training.schedule import LRSchedule, rate_at
from vitrail.training.tasks import DeviceBatch, Task

log = logging.getLogger("vitrail")


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
    """Whether training can go on; a loss or gradient that is not finite changes no weight, and of
    float16 a gradient may be too large once."""
    bad: int
    """Images that could not be read, in all processes."""
    stop: bool
    """Whether a signal asked any of the processes to stop."""


class Trainer:
    """Takes optimizer steps on a model."""

    def __init__(
        self,
        model: Model,
        task: Task,
        optimizer: torch.optim.Optimizer,
        schedule: LRSchedule,
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
    ) -> None:
        """Train `model` through `forward`, which is itself, or what wraps it."""
        self.model, self.task, self.optimizer, self.ema = model, task, optimizer, ema
        self.micro_batch = micro_batch
        """Images that go through the model at a time; halved when memory runs out."""
        self._forward, self._schedule, self._lr, self._clip = forward, schedule, lr, clip
        self._batch, self._seed, self._processes = batch, seed, processes
        self._autocast = autocast
        self.scale = LossScale() if autocast == torch.float16 else None

    def step(self, step: int, batch: Batch, signals: Signals) -> StepResult:
        """Take one step, the step-th from 0, on this process's part of a global batch."""
        self.model.train()
        example = self.task.prepare(batch, self._processes.device)
        drawn = keys(self._seed, "noise", step, example.keys.numpy())
        example = example._replace(keys=torch.from_numpy(drawn))
        loss = self._accumulate(example)
        if self.scale is not None:
            self.scale.remove(self.model.parameters())
        norm = float(clip_gradients(self.model.parameters(), self._clip))
        numbers = (loss, example.weights.sum(), not math.isfinite(norm), len(batch.bad))
        summed, readable, odd, bad, stop = self._processes.sum(*numbers, signals.number)
        finite = math.isfinite(summed) and not odd
        lr = self._lr * rate_at(step, self._schedule)
        if finite:
            set_rate(self.optimizer, lr)
            self.optimizer.step()
            if self.ema is not None:
                self.ema.update(self.model, step)
        self.optimizer.zero_grad(set_to_none=True)
        if self.scale is not None and math.isfinite(summed):
            finite = self.scale.settle(overflow=not finite)
        mean = summed / max(readable, 1)
        return StepResult(step + 1, mean, norm, lr, finite, int(bad), stop > 0)

    def _accumulate(self, example: DeviceBatch) -> Tensor:
        """Compute the gradient of the whole batch, a micro-batch at a time; give the summed loss.

        When memory runs out, smaller micro-batches give the same gradient.
        """
        while True:
            try:
                return self._try_accumulate(example)
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
        if smaller == 0:
            name = self.model.spec.name
            raise InputError(f"{said} in {name}; try a smaller one, or --checkpointing") from None
        if self._processes.count > 1:  # the others wait in the midst of an exchange
            raise InputError(f"{said}; try --micro-batch {smaller} (same result)") from None
        log.warning("%s; going on with %d, same result", said, smaller)
        self.micro_batch = smaller

    def _try_accumulate(self, example: DeviceBatch) -> Tensor:
        count = len(example.weights)
        # Wrappers average gradients over processes, where the sum is wanted.
        scale = self._processes.count / self._batch * (self.scale.value if self.scale else 1)
        total = torch.zeros((), device=self._processes.device)
        for start in range(0, count, self.micro_batch):
            part = example.part(start, min(start + self.micro_batch, count))
            last = start + self.micro_batch >= count
            # Noise lasts over the backward pass, where checkpointing draws it again.
            with self._exchange(last), keyed_noise(self.model, part.keys):
                with self._autocasting():
                    losses = self.task.losses(self._forward, part)
                loss = (losses * part.weights).sum()
                (loss * scale).backward()
            total += loss.detach()
        return total

    def _exchange(self, last: bool) -> AbstractContextManager[Any]:
        """Let processes exchange gradients with the last micro-batch only."""
        if isinstance(self._forward, DistributedDataParallel) and not last:
            return self._forward.no_sync()
        return nullcontext()

    def _autocasting(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._processes.device.type, self._autocast)


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """When what happens, in steps; 0 is never."""

    total: int
    evaluate: int
    save: int
    pause: int | None = None
    """The step at which the run rests, evaluated and saved, before it is at its end."""

    def due(self, every: int, step: int) -> bool:
        """Tell whether something is to happen after a step; where the run ends or rests all is."""
        return every > 0 and step > 0 and (step % every == 0 or self.rests(step))

    def rests(self, step: int) -> bool:
        """Tell whether no step is taken after this one for now."""
        return step == self.total or (self.pause is not None and step >= self.pause)


Ending = Literal["finished", "stopped", "converged", "paused"]


def fit(
    trainer: Trainer,
    batches: Iterable[Batch],
    rhythm: Intervals,
    signals: Signals,
    *,
    start: int,
    record: Callable[[StepResult, Batch], None],
    evaluate: Callable[[int], bool],
    save: Callable[[int], None],
    blame: Callable[[int], str],
) -> tuple[Ending, int]:
    """Train to the end, or until a signal, or until `evaluate` says that it gets no better.

    Give how it ended, and at which step. What is due after step `start` is asked for again, since
    a signal may have put it off. A loss that is not finite ends it with an error; of the batch
    that gave it, `blame` says where a person can look it up.
    """

    def settle(done: int, stop: bool) -> Ending | None:
        """Do what is due after a step; say how the run ends, if it ends there."""
        ending: Ending | None = "paused" if rhythm.rests(done) else None
        ending = "finished" if done == rhythm.total else ending
        if not stop and rhythm.due(rhythm.evaluate, done):
            try:
                ending = "converged" if evaluate(done) else ending
            except StopRequested:
                stop = True
        ending = "stopped" if stop else ending
        early = ending in ("stopped", "converged")
        # What a rest has measured is saved even where no step was taken.
        if ending == "paused" or (done > start and (early or rhythm.due(rhythm.save, done))):
            save(done)
        return ending

    if ending := settle(start, stop=False):
        return ending, start
    for step, batch in zip(range(start, rhythm.total), batches, strict=False):
        taken = trainer.step(step, batch, signals)
        if not taken.finite:
            if step > start and not rhythm.due(rhythm.save, step):
                save(step)
            raise DivergedError(_explain(taken, blame(step), scaled=trainer.scale is not None))
        record(taken, batch)
        if ending := settle(taken.step, taken.stop):
            return ending, taken.step
    raise AssertionError("there are fewer batches than steps")


def _explain(taken: StepResult, where: str, *, scaled: bool) -> str:
    what = "gradient" if math.isfinite(taken.loss) else "loss"
    or_else = "; in float16 nothing exceeds 65,504: try --precision float32" if scaled else ""
    return (
        f"the {what} is not finite at step {taken.step} (loss {taken.loss:.4g}, gradient norm "
        f"{taken.norm:.3g}, lr {taken.lr:.1e}); the weights of step {taken.step - 1} are kept, and "
        f"{where}; try a lower --lr, a longer warm-up or --optim.clip 1{or_else}"
    )
