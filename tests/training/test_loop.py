"""Steps against a plain PyTorch loop, in micro-batches of any size; the order of a run's events."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.trainers import (
    BATCH,
    CPU,
    GRAY,
    NOISY,
    PLAIN,
    QUIET,
    STEPS,
    STRONG,
    make,
    make_batches,
)
from vitrail.data.batches import Batch, TrainBatches, UnreadableImage
from vitrail.data.dataset import select
from vitrail.data.datasets.builtin.digits import open_digits
from vitrail.data.transforms.augment import Augment
from vitrail.evaluation.accuracy import measure_accuracy
from vitrail.signals import Signals
from vitrail.tasks.classification import Classification
from vitrail.training.logging.throughput import ThroughputMeter, ThroughputWindow
from vitrail.training.loop import (
    DivergedError,
    LaunchedStep,
    StopRequested,
    Trainer,
    fit,
)
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.precision import LossScale
from vitrail.training.optimization.schedule import LRSchedule, rate_at
from vitrail.training.optimization.step_intervals import Intervals

STILL = Augment(crop="whole", flip=0.0)


def losses_of(trainer: Trainer, augment: Augment) -> list[float]:
    batches = make_batches(augment)
    return [trainer.step(step, batches[step], QUIET).loss for step in range(STEPS)]


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


@pytest.mark.parametrize("micro", [1, 3, 5, 100])
def test_micro_batches_of_any_size_give_the_same_losses(micro: int) -> None:
    """With dropout, stochastic depth, mixup and CutMix on: noise belongs to the image."""
    whole, parted = make(NOISY), make(NOISY, micro_batch=micro)
    expected = losses_of(whole, STRONG)
    assert losses_of(parted, STRONG) == pytest.approx(expected, abs=1e-6)
    others = weights_of(parted)
    for name, weight in weights_of(whole).items():
        assert torch.allclose(weight, others[name], atol=2e-5), name


OPTIMS = {
    "sgd": OptimConfig(kind="sgd", lr=0.1, momentum=0.9, weight_decay=0.01, clip=0.5),
    "nesterov": OptimConfig(kind="sgd", lr=0.1, momentum=0.8, nesterov=True, clip=None),
    "adamw": OptimConfig(kind="adamw", lr=3e-3, weight_decay=0.3, clip=1.0, eps=1e-5),
    "adam": OptimConfig(kind="adam", lr=3e-3, betas=(0.8, 0.99), clip=None, eps=1e-5),
}


@pytest.mark.parametrize("kind", OPTIMS)
def test_steps_are_those_of_a_plain_loop(kind: str) -> None:
    """Written out: the mean loss, clipping, cosine with warm-up, decay of matrices only."""
    optim = OPTIMS[kind]
    trainer, copy = make(PLAIN, optim, micro_batch=5), make(PLAIN, optim).model
    batches = make_batches(STILL)
    named = dict(copy.named_parameters())
    matrices = [p for name, p in named.items() if name.endswith(".weight") and p.ndim > 1]
    vectors = [p for p in named.values() if all(p is not matrix for matrix in matrices)]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if optim.kind == "sgd":
        plain = torch.optim.SGD(groups, momentum=optim.momentum, nesterov=optim.nesterov)
    else:
        family = torch.optim.AdamW if optim.kind == "adamw" else torch.optim.Adam
        plain = family(groups, betas=optim.betas, eps=optim.eps)
    for step in range(STEPS):
        batch = batches[step]
        images = batch.images.permute(0, 3, 1, 2) / 127.5 - 1
        loss = F.cross_entropy(copy.train()(images), batch.labels)
        plain.zero_grad()
        loss.backward()
        limit = math.inf if optim.clip is None else optim.clip
        norm = torch.nn.utils.clip_grad_norm_(copy.parameters(), limit)
        rate = step / 2 if step < 2 else (1 + math.cos(math.pi * (step - 2) / 4)) / 2
        for group in plain.param_groups:
            group["lr"] = optim.lr * rate
        plain.step()
        taken = trainer.step(step, batch, QUIET)
        assert (taken.step, taken.finite, taken.stop, taken.bad) == (step + 1, True, False, 0)
        assert taken.loss == pytest.approx(loss.item(), abs=1e-5)
        assert taken.norm == pytest.approx(norm.item(), rel=1e-4)
        assert taken.lr == pytest.approx(optim.lr * rate)
    for name, parameter in trainer.model.named_parameters():
        assert torch.allclose(parameter, named[name], atol=2e-5), name


def test_unreadable_images_add_nothing_to_the_gradient() -> None:
    """The gradient of the others stays a twelfth of their sum; the loss shown is their mean."""
    batch = make_batches(STILL)[0]
    weights = torch.ones(BATCH)
    weights[[1, 7]] = 0
    images = batch.images.clone()
    images[[1, 7]] = 0
    bad = tuple(UnreadableImage(f"p{n}", "gone", "unreadable") for n in (1, 7))
    trainer = make(PLAIN, OptimConfig(kind="sgd", lr=1.0, momentum=0.0, clip=None))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    spoilt = replace(batch, weights=weights, images=images, bad=bad)
    taken = trainer.step(2, spoilt, QUIET)  # where the rate is 1
    keep = weights.bool()
    model = make(PLAIN).model.train()
    losses = F.cross_entropy(
        model(batch.images[keep].permute(0, 3, 1, 2) / 127.5 - 1),
        batch.labels[keep],
        reduction="none",
    )
    (losses.sum() / BATCH).backward()
    assert taken.loss == pytest.approx(losses.mean().item(), abs=1e-5)
    assert taken.bad == 2
    for name, parameter in model.named_parameters():
        moved = before[name] - trainer.model.get_parameter(name).detach()
        assert parameter.grad is not None
        assert torch.allclose(moved, parameter.grad, atol=1e-5), name


def test_checkpointing_changes_no_bit_though_there_is_noise() -> None:
    one, two = make(NOISY), make(NOISY, checkpointing=True)
    assert losses_of(one, STRONG) == losses_of(two, STRONG)


def test_a_batch_meets_other_noise_at_another_step() -> None:
    trainer = make(NOISY, OptimConfig(kind="sgd", lr=0.0))
    batch = make_batches(STILL)[0]
    losses = [trainer.step(step, batch, QUIET).loss for step in (0, 1, 0, 2)]
    assert losses[0] == losses[2]
    assert len(set(losses)) == 3


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_its_type_and_keeps_weights_in_float32(kind: torch.dtype) -> None:
    exact, rough = make(PLAIN), make(PLAIN, autocast=kind)
    expected, found = losses_of(exact, STILL), losses_of(rough, STILL)
    assert found != expected
    assert found == pytest.approx(expected, rel=0.02)
    assert {parameter.dtype for parameter in rough.model.parameters()} == {torch.float32}


def scale_losses(patch: pytest.MonkeyPatch, factor: float) -> None:
    real = Classification.losses
    patch.setattr(Classification, "losses", lambda *args: real(*args) * factor)


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_small_gradients_of_float16_are_kept_by_the_scale(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_losses(monkeypatch, 1e-6)
    exact, rough = make(PLAIN), make(PLAIN, autocast=torch.float16)
    rough.scale = LossScale(scale)
    batch = make_batches(STILL)[0]
    expected, found = (trainer.step(0, batch, QUIET).norm for trainer in (exact, rough))
    assert (found == pytest.approx(expected, rel=0.01)) == (scale > 1)


def test_an_overflow_of_float16_takes_no_step_and_halves_the_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, batch = make(PLAIN, autocast=torch.float16), make_batches(STILL)[0]
    trainer.step(1, batch, QUIET)
    before = weights_of(trainer)
    trainer.scale = LossScale(2.0**30, calm=5)
    taken = trainer.step(1, batch, QUIET)
    assert taken.finite
    assert not math.isfinite(taken.norm)
    assert math.isfinite(taken.loss)
    assert trainer.scale.state() == {"value": 2.0**29, "calm": 0}
    for name, weight in weights_of(trainer).items():
        assert torch.equal(weight, before[name])
    scale_losses(monkeypatch, 1e30)  # what no scale helps against
    trainer.scale = LossScale(2.0)
    assert [trainer.step(1, batch, QUIET).finite for _ in range(2)] == [True, False]
    scale_losses(monkeypatch, math.nan)
    trainer.scale = LossScale()
    assert not trainer.step(1, batch, QUIET).finite


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_changes_no_bit(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, batches = make(NOISY, ema=True), make_batches(STRONG)
    for step in range(3):
        trainer.step(step, batches[step], QUIET)
    assert trainer.ema is not None
    weights = weights_of(trainer)
    average = {name: mean.clone() for name, mean in trainer.ema.state.items()}
    moments = [
        {key: value.clone() for key, value in state.items()}
        for state in trainer.optimizer.state.values()
    ]
    with monkeypatch.context() as patch:
        scale_losses(patch, value)
        taken = trainer.step(3, batches[3], QUIET)
    assert not taken.finite
    for name, weight in weights_of(trainer).items():
        assert torch.equal(weight, weights[name])
    for name, mean in trainer.ema.state.items():
        assert torch.equal(mean, average[name])
    for state, kept in zip(trainer.optimizer.state.values(), moments, strict=True):
        assert all(torch.equal(state[key], kept[key]) for key in kept)
    assert trainer.step(3, batches[3], QUIET).finite


def test_an_average_follows_the_weights() -> None:
    trainer, batches = make(PLAIN, ema=True), make_batches(STILL)
    assert trainer.ema is not None
    expected = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for step in range(STEPS):
        trainer.step(step, batches[step], QUIET)
        for name, parameter in trainer.model.named_parameters():
            expected[name] = 0.9 * expected[name] + 0.1 * parameter.detach()
    for name, mean in trainer.ema.state.items():
        assert torch.allclose(mean, expected[name], atol=1e-6)


def test_a_signal_in_any_process_asks_to_stop() -> None:
    trainer, batch = make(PLAIN), make_batches(STILL)[0]
    signals = Signals()
    signals.number = 15
    assert trainer.step(0, batch, signals).stop
    assert not trainer.step(0, batch, QUIET).stop


@pytest.mark.parametrize("step", [2**31, 2**33 + 1])
def test_steps_beyond_two_to_the_31_are_steps(step: int) -> None:
    trainer = make(NOISY)
    trainer.schedule = partial(rate_at, plan=LRSchedule(kind="cosine", total=2**40, warmup=0))
    one, other = (make_batches(STRONG)[number] for number in (step, step % 2**31))
    assert not torch.equal(one.indices, other.indices)
    taken = trainer.step(step, one, QUIET)
    assert taken.step == step + 1
    assert taken.finite


def test_a_small_set_is_learnt_by_heart() -> None:
    some = select(open_digits("train"), np.arange(32))
    trainer = make(PLAIN, OptimConfig(lr=3e-3), batch=32, micro_batch=32)
    trainer.schedule = partial(rate_at, plan=LRSchedule(kind="cosine", total=80, warmup=8))
    batches = TrainBatches(some, STILL, GRAY, batch=32, seed=0)
    loss = [trainer.step(step, batches[step], QUIET).loss for step in range(80)]
    found = measure_accuracy(trainer.model, [batches[0]], GRAY, device=CPU)
    assert (found.top1, found.images) == (1.0, 32)
    assert loss[-1] < 0.2 < 2 < loss[0]


class Pretended:
    """A trainer that takes no steps, and tells what was asked of a run."""

    scale: LossScale | None = None

    def __init__(self, *, stop_at: int = 0, bad_at: int = 0, late: bool = False) -> None:
        self.events: list[str] = []
        self._stop_at, self._bad_at, self._late = stop_at, bad_at, late

    def launch(
        self, step: int, batch: Batch, signals: Signals, save_due: bool = False
    ) -> LaunchedStep:
        number = step + 1
        bad, stop = number == self._bad_at, number == self._stop_at
        if self._late:
            self.events.append(f"launch {number}")
        numbers = torch.tensor([1.0, 1, bad, 0, stop, 0, math.inf if bad else 1, bad])
        return LaunchedStep(step, 1e-3, numbers, stop=stop and not self._late)

    def fit(
        self, rhythm: Intervals, *, start: int = 0, ahead: int = 0, **answers: Any
    ) -> tuple[str, int]:
        """Run; `answers` say at which steps an evaluation converges or is stopped."""

        def evaluate(step: int) -> bool:
            if step == answers.get("stopped"):
                raise StopRequested
            self.events.append(f"evaluate {step}")
            return step == answers.get("converged")

        def blame(step: int) -> str:
            self.events.append(f"blame {step}")
            return "look there"

        def batches() -> Iterator[Any]:
            while True:
                yield None

        return fit(
            cast(Trainer, self),
            batches(),
            rhythm,
            QUIET,
            start=start,
            ahead=ahead,
            record=lambda taken, batch: self.events.append(f"record {taken.step}"),
            evaluate=evaluate,
            save=lambda step: self.events.append(f"save {step}"),
            blame=blame,
        )


RHYTHM = Intervals(total=5, evaluate=2, save=3)


def test_a_run_evaluates_before_it_saves_and_does_all_at_the_end() -> None:
    run = Pretended()
    assert run.fit(RHYTHM) == ("finished", 5)
    first = "record 1, record 2, evaluate 2, record 3, save 3, record 4, evaluate 4"
    assert ", ".join(run.events) == f"{first}, record 5, evaluate 5, save 5"


def test_what_never_happens_does_not_happen_at_the_end_either() -> None:
    run = Pretended()
    assert run.fit(Intervals(total=2, evaluate=0, save=0)) == ("finished", 2)
    assert run.events == ["record 1", "record 2"]


def test_a_resumed_run_asks_first_for_the_evaluation_of_its_step() -> None:
    run = Pretended()
    assert run.fit(RHYTHM, start=4) == ("finished", 5)
    assert run.events == ["evaluate 4", "record 5", "evaluate 5", "save 5"]
    run = Pretended()
    assert run.fit(RHYTHM, start=3) == ("finished", 5)
    assert run.events[0] == "record 4"
    run = Pretended()
    assert run.fit(RHYTHM, start=5) == ("finished", 5)
    assert run.events == ["evaluate 5"]  # and it is not saved again


def test_a_run_that_rests_is_evaluated_and_saved_there() -> None:
    resting = replace(RHYTHM, pause=3)
    run = Pretended()
    assert run.fit(resting) == ("paused", 3)
    assert run.events[-3:] == ["record 3", "evaluate 3", "save 3"]
    run = Pretended()  # an evaluation that was put off is saved too
    assert run.fit(resting, start=3) == ("paused", 3)
    assert run.events == ["evaluate 3", "save 3"]
    run = Pretended()
    assert run.fit(replace(RHYTHM, pause=5), start=3) == ("finished", 5)
    run = Pretended(stop_at=3)
    assert run.fit(resting) == ("stopped", 3)


def test_a_stop_saves_at_once_and_leaves_the_evaluation() -> None:
    run = Pretended(stop_at=2)
    assert run.fit(RHYTHM) == ("stopped", 2)
    assert run.events == ["record 1", "record 2", "save 2"]
    run = Pretended()
    assert run.fit(RHYTHM, stopped=4) == ("stopped", 4)
    assert run.events[-2:] == ["record 4", "save 4"]
    run = Pretended()
    assert run.fit(RHYTHM, start=4, stopped=4) == ("stopped", 4)
    assert run.events == []


def test_a_run_that_gets_no_better_is_saved_and_ends() -> None:
    run = Pretended()
    assert run.fit(RHYTHM, converged=2) == ("converged", 2)
    assert run.events[-2:] == ["evaluate 2", "save 2"]
    run = Pretended()
    assert run.fit(RHYTHM, start=2, converged=2) == ("converged", 2)
    assert run.events == ["evaluate 2"]


@pytest.mark.parametrize(("bad", "saved"), [(1, []), (3, ["save 2"]), (4, [])])
def test_a_run_that_diverges_saves_the_step_before(bad: int, saved: list[str]) -> None:
    """Unless there is nothing new to save."""
    run = Pretended(bad_at=bad)
    with pytest.raises(
        DivergedError, match=rf"^the gradient is not finite at step {bad} \(.*inf, "
    ):
        run.fit(RHYTHM)


def test_float16_is_named_where_it_may_be_why() -> None:
    run = Pretended(bad_at=1)
    run.scale = LossScale()
    with pytest.raises(DivergedError, match=r"--optim\.clip 1; in float16 .* --precision float32$"):
        run.fit(RHYTHM)


def test_numbers_are_read_while_the_next_step_is_under_way() -> None:
    """But for what needs the weights as they are after a step, all before it is read first."""
    run = Pretended(late=True)
    assert run.fit(Intervals(total=6, evaluate=4, save=0), ahead=1) == ("finished", 6)
    expected = "launch 1, launch 2, record 1, launch 3, record 2, launch 4, record 3, record 4, "
    expected += "evaluate 4, launch 5, launch 6, record 5, record 6, evaluate 6"
    assert ", ".join(run.events) == expected


def test_a_stop_that_is_read_late_counts_after_the_step_that_is_under_way() -> None:
    run = Pretended(late=True, stop_at=2)
    assert run.fit(Intervals(total=9, evaluate=0, save=0), ahead=1) == ("stopped", 3)
    assert run.events[-4:] == ["launch 3", "record 2", "record 3", "save 3"]


def test_no_step_is_taken_after_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, batches = make(NOISY, ema=True), make_batches(STRONG)
    trainer.step(1, batches[1], QUIET)
    weights = weights_of(trainer)
    with monkeypatch.context() as patch:
        scale_losses(patch, math.nan)
        failed = trainer.launch(2, batches[2], QUIET)
    after = trainer.launch(3, batches[3], QUIET)  # whose own loss is finite
    assert [failed.read().finite, after.read().finite] == [False, False]
    for name, weight in weights_of(trainer).items():
        assert torch.equal(weight, weights[name])


class HostReads(TorchDispatchMode):
    """Counts what makes the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal)
        self.count += func.overloadpacket in waits
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_the_host_never_waits_before_a_step(
    kind: Literal["adamw", "sgd"], dtype: torch.dtype | None
) -> None:
    trainer = make(NOISY, OptimConfig(kind=kind), ema=True, micro_batch=5, autocast=dtype)
    batches = make_batches(STRONG)
    trainer.step(0, batches[0], QUIET)  # at the first step SGD has no momentum yet
    with HostReads() as reads:
        trainer.launch(1, batches[1], QUIET)
    assert reads.count == 0
    with HostReads() as reads:
        float(torch.ones(()))
    assert reads.count == 1  # so they are seen


def test_a_step_ends_when_it_is_computed_not_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last two are read at once, so that the last one seemed to have taken no time."""
    clock = iter((10.0, 14.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    numbers = torch.tensor([1.0, 1, 0, 0, 0, 0, 1, 0])
    launched = [LaunchedStep(step, 1e-3, numbers, stop=False) for step in range(2)]
    meter = ThroughputMeter()
    window = ThroughputWindow(meter)
    for each in launched:
        ended = each.read().ended
        assert ended is not None
        meter.step(ended, images=8, waited=0.0)
    speed = window.read()
    assert speed is not None
    assert speed.images == 2.0
