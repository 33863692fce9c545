"""Runs that are killed or stopped at any moment end with the bytes of a run left in peace."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from select import select
from typing import Any

import pytest

import vitrail.tasks.classification
import vitrail.training_run
from tests.faults.toy import in_child, leftovers, print_of, steps, toy, train_in_child
from tests.forks import Ended
from tests.runs import train
from vitrail.data.batches import Batch, EvalBatches
from vitrail.data.loader import LoaderConfig
from vitrail.run import TrainConfig
from vitrail.signals import Signals
from vitrail.training.checkpoints import resume
from vitrail.training.checkpoints.checkpoint_files import latest_checkpoint
from vitrail.training.loop import LaunchedStep, Trainer
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training_run import TrainingRun


@pytest.fixture(scope="module")
def peace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hash what the toy computes when nobody disturbs it."""
    out = tmp_path_factory.mktemp("peace") / "run"
    assert train_in_child(toy(out)).code == 0
    return print_of(out)


def kill_often(folder: Path, kills: int, seed: int) -> None:
    """Kill runs at random moments and start them again, until so many kills have hit."""
    draw = random.Random(seed)
    longer: dict[str, Any] = {"length": steps(40), "eval_every": steps(15)}
    began = time.perf_counter()  # kills are spread over what a run takes here
    assert train_in_child(toy(folder / "peace", **longer)).code == 0
    whole = time.perf_counter() - began
    number = hits = 0
    while hits < kills:
        number += 1
        out = folder / str(number)
        while (ended := _try(out, draw.uniform(0, whole), longer)).code == -signal.SIGKILL:
            hits += 1
            if hits == kills:
                ended = train_in_child(toy(out, **longer))
                break
        assert ended == Ended(0)
        assert print_of(out) == print_of(folder / "peace")
        assert not leftovers(out)


def _try(out: Path, seconds: float, settings: dict[str, Any]) -> Ended:
    return train_in_child(toy(out, **settings), kill_after=seconds)


@pytest.mark.slow
@pytest.mark.usefixtures("peace")
def test_twenty_kills_change_no_byte(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=20, seed=2)


MOMENTS: dict[str, tuple[object, str, int]] = {
    "settings": (os, "fsync", 1),
    "first step": (Trainer, "launch", 1),
    "save": (resume, "save_tensors", 2),
    "prune": (resume, "prune_checkpoints", 3),
    "evaluation": (vitrail.tasks.classification, "measure_accuracy", 2),
    "last evaluation": (vitrail.tasks.classification, "measure_accuracy", 3),
    "after the last state": (TrainingRun, "_finish", 1),
    "model": (vitrail.training_run, "save_folder", 1),
    "result": (vitrail.training_run, "write_result", 1),
}
"""What is called, and at which call."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_a_chosen_moment_changes_no_byte(
    tmp_path: Path, peace: dict[str, str], moment: str
) -> None:
    out = tmp_path / "run"
    assert disturb(toy(out), *MOMENTS[moment], signal.SIGKILL).code == -signal.SIGKILL
    assert train_in_child(toy(out)) == Ended(0)
    assert print_of(out) == peace
    assert not leftovers(out)


def disturb(config: TrainConfig, owner: object, name: str, nth: int, *numbers: int) -> Ended:
    """Train in a child that sends itself signals just before the n-th call of a function."""
    real, calls = getattr(owner, name), 0

    def called(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            for number in numbers:
                os.kill(os.getpid(), number)
        return real(*args, **options)

    def work() -> None:
        setattr(owner, name, called)  # of the child only
        train(config)

    return in_child(work)


STOPS: dict[str, tuple[tuple[object, str, int], int]] = {
    "between batches": ((TrainingRun, "_record", 5), 7),
    "in a step": ((Trainer, "_try_accumulate", 5), 5),
    "in the last step": ((Trainer, "_try_accumulate", 10), 10),
    "before an evaluation": ((vitrail.tasks.classification, "measure_accuracy", 1), 4),
    "in an evaluation": ((EvalBatches, "__getitem__", 2), 4),
    "in the last evaluation": ((vitrail.tasks.classification, "measure_accuracy", 3), 10),
    "in a save": ((resume, "save_tensors", 2), 7),
}
"""Where a signal comes, and the step that is saved."""


@pytest.mark.parametrize(
    ("where", "number"),
    [*((where, signal.SIGTERM) for where in STOPS), ("in a step", signal.SIGINT)],
)
def test_a_signal_saves_the_current_step(
    tmp_path: Path, peace: dict[str, str], where: str, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    place, step = STOPS[where]
    ended = disturb(toy(out), *place, number)
    assert ended == Ended(128 + number, None, f"{number.name}: saved step {step}")
    saved = latest_checkpoint(out / "checkpoints")
    assert saved
    assert saved.step == step
    said = (out / "log.txt").read_text()
    assert f"stopped at step {step} of 10; run the same command again" in said
    assert "Traceback" not in said
    assert train_in_child(toy(out)) == Ended(0)
    assert print_of(out) == peace


def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(
    tmp_path: Path, peace: dict[str, str]
) -> None:
    """The evaluation that was put off is made up for once, whatever happens then."""
    out = tmp_path / "run"
    assert disturb(toy(out), EvalBatches, "__getitem__", 2, signal.SIGTERM).code == 143
    assert [row["step"] for row in rows_of(out)] == [1, 3]
    again = disturb(toy(out), Trainer, "launch", 1, signal.SIGKILL)
    assert again.code == -signal.SIGKILL
    assert [row["step"] for row in rows_of(out)] == [1, 3, 4]
    assert train_in_child(toy(out)).code == 0
    assert [row["step"] for row in rows_of(out) if "val/top1" in row] == [4, 8, 10]
    assert print_of(out) == peace


def rows_of(out: Path) -> list[dict[str, float]]:
    """Read what a run has measured so far."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


PAIRS = [
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGINT, signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_second_signal_ends_at_once(
    tmp_path: Path, peace: dict[str, str], pair: tuple[signal.Signals, signal.Signals]
) -> None:
    out = tmp_path / "run"
    ended = disturb(toy(out), resume, "save_tensors", 2, *pair)
    killed = pair[1] == signal.SIGTERM
    assert ended == (Ended(-signal.SIGTERM) if killed else Ended(1, None, "KeyboardInterrupt: "))
    saved = latest_checkpoint(out / "checkpoints")
    assert saved
    assert saved.step == 3
    assert train_in_child(toy(out)) == Ended(0)
    assert print_of(out) == peace
    assert not leftovers(out)


def test_a_signal_after_the_last_step_lets_the_run_finish(
    tmp_path: Path, peace: dict[str, str]
) -> None:
    """The model is written with each of the four checkpoints, and once more at the end."""
    out = tmp_path / "run"
    assert disturb(toy(out), vitrail.training_run, "save_folder", 5, signal.SIGTERM) == Ended(0)
    assert print_of(out) == peace


def test_a_converged_run_that_is_killed_before_its_end_stays_converged(tmp_path: Path) -> None:
    """With a rate of 0 no evaluation is better than the first."""
    still = OptimConfig(lr=0.0)
    settings: dict[str, Any] = {"patience": 2, "eval_every": steps(3), "optim": still}
    peaceful = toy(tmp_path / "peace", **settings)
    assert train_in_child(peaceful).code == 0
    disturbed = toy(tmp_path / "run", **settings)
    assert disturb(disturbed, TrainingRun, "_finish", 1, signal.SIGKILL).code == -signal.SIGKILL
    assert train_in_child(disturbed).code == 0
    assert print_of(disturbed.out) == print_of(peaceful.out)
    result = train(disturbed)
    assert (result.ending, result.steps) == ("converged", 9)


CREWS = [
    LoaderConfig(workers=0),
    LoaderConfig(workers=3, prefetch=1),
    LoaderConfig(workers=1, kind="processes"),
    LoaderConfig(workers=3, kind="processes"),
]


@pytest.mark.parametrize("crew", CREWS, ids=lambda crew: f"{crew.workers}-{crew.kind}")
def test_who_makes_the_batches_changes_no_byte(
    tmp_path: Path, peace: dict[str, str], crew: LoaderConfig
) -> None:
    assert train_in_child(toy(tmp_path / "run", loader=crew)) == Ended(0)
    assert print_of(tmp_path / "run") == peace


def test_a_killed_data_worker_changes_no_byte(tmp_path: Path, peace: dict[str, str]) -> None:
    config = toy(tmp_path / "run", loader=LoaderConfig(workers=2, kind="processes"))
    real = Trainer.launch

    def step(
        self: Trainer, step: int, batch: Batch, signals: Signals, save_due: bool = False
    ) -> LaunchedStep:
        if step == 1:  # when not all batches are made, or even asked for
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
        return real(self, step, batch, signals, save_due)

    def work() -> None:
        Trainer.launch = step  # of the child only
        train(config)
        assert not multiprocessing.active_children()

    assert in_child(work) == Ended(0)
    assert print_of(config.out) == peace
    said = (config.out / "log.txt").read_text()
    assert "was ended by signal 9 (out of memory?); its batches are made again" in said


def test_a_killed_run_leaves_no_worker(tmp_path: Path, peace: dict[str, str]) -> None:
    """All processes of a run hold a pipe open, which is at its end when the last has gone."""
    config = toy(tmp_path / "run", loader=LoaderConfig(workers=2, kind="processes"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def kill(*_: object) -> None:
        assert len(multiprocessing.active_children()) == 2
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        os.open(pipe, os.O_WRONLY)
        pytest.MonkeyPatch().setattr(Trainer, "launch", kill)  # of the child only
        train(config)

    assert in_child(work).code == -signal.SIGKILL
    assert select([reading], [], [], 10)[0], "a worker is still there after 10 seconds"
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert train_in_child(config) == Ended(0)
    assert print_of(config.out) == peace


def test_the_clock_changes_no_byte(tmp_path: Path, peace: dict[str, str]) -> None:
    config = toy(tmp_path / "run")
    days = itertools.cycle([0.0, 1e5, -1e5, 3e9])

    def work() -> None:
        real = time.time
        time.time = lambda: real() + next(days)
        os.environ["TZ"] = "Pacific/Kiritimati"
        time.tzset()
        train(config)

    assert in_child(work) == Ended(0)
    assert print_of(config.out) == peace
