"""What parts of one's own keep and draw: saved, resumed, seeded, and untouched by trial batches."""

import random
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.toy import fail_at, print_of, steps, toy
from tests.runs import train
from tests.training.tasks_of import images_of
from vitrail.config import InputError
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import build
from vitrail.run import TrainConfig
from vitrail.training.callbacks import Callback
from vitrail.training.task import DeviceBatch, Task
from vitrail.training.trainer_setup import check_losses
from vitrail.weights.checkpoint import Checkpoint


def own(out: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "length": steps(5),
        "save_every": steps(2),
        "eval_every": steps(5),
        "augment": toy(out).augment.__class__(),
        "loader": LoaderConfig(workers=0),
        "ema": 0.0,
    }
    return toy(out, **{**settings, **changes})


class Forgetful(Task):
    """Self-distillation: agree with a moving average of the model's own weights."""

    def build(self, checkpoint: Checkpoint) -> Any:
        model = super().build(checkpoint)
        self.teacher = deepcopy(model).requires_grad_(False)
        self.queue: list[Tensor] = []
        return model

    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        logits = model(batch.inputs)
        with torch.no_grad():
            taught = self.teacher.eval()(batch.inputs).softmax(-1)
        if model.training:
            self.queue = [*self.queue, logits.detach().mean(0)][-2:]
        drift = sum(((each - logits) ** 2).mean(-1) for each in self.queue)
        labels = F.cross_entropy(logits, batch.targets, reduction="none")
        return labels + F.cross_entropy(logits, taught, reduction="none") + 0.1 * drift

    def after_step(self, model: nn.Module) -> None:
        weights = dict(model.named_parameters())
        with torch.no_grad():
            for name, average in self.teacher.named_parameters():
                if name in weights:
                    average.lerp_(weights[name], 0.2)


class SelfDistillation(Forgetful):
    def state_dict(self) -> dict[str, Any]:
        return {"teacher": self.teacher.state_dict(), "queue": self.queue, "steps": (1, None)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["steps"] == (1, None)
        self.teacher.load_state_dict(state["teacher"])
        self.queue = state["queue"]


class Counter(Callback):
    """Lower the loss of classes by what it has seen, so that a lost count changes the weights."""

    def __init__(self) -> None:
        self.seen = torch.zeros(2)
        self.draws: list[float] = []

    def on_step(self, run: Any, result: Any) -> None:
        self.seen += torch.tensor([1.0, result.loss])
        self.draws.append(torch.rand(()).item() + random.random() + np.random.rand())
        with torch.no_grad():
            run.model.head.output.bias += 1e-3 * self.seen[1] + 1e-3 * self.draws[-1]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.draws = state["seen"], state["draws"]


def drop_and_norm(model: Any) -> Any:
    """Put torch's own dropout and a batch norm into the first block."""
    width = model.spec.width
    inner = model.blocks[0].mlp

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop, self.norm = inner, nn.Dropout(0.3), nn.BatchNorm1d(width)
            self.gain = nn.Parameter(torch.randn(()) * 0.1 + np.random.rand() + random.random())

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * self.drop(self.norm(self.inner(x).mT).mT)

    model.blocks[0].mlp = Noisy()
    return model


def run(out: Path, **changes: Any) -> None:
    parts = {"task": SelfDistillation, "model": drop_and_norm, "callbacks": [Counter()]}
    train(own(out, **changes), **parts)


def tangle() -> None:
    """Leave the process's generators as nobody expects."""
    torch.rand(7)
    np.random.rand(3)
    random.random()


def settle() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


@pytest.fixture(scope="module")
def peace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("peace") / "run"
    run(out)
    return print_of(out)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_resumed_run_ends_with_the_same_bytes(
    tmp_path: Path, peace: dict[str, str], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Teacher, queue, counts and all that torch, NumPy and Python draw."""
    tangle()
    with monkeypatch.context() as patch:
        fail_at(patch, step)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path / "run")
    tangle()
    run(tmp_path / "run")
    assert print_of(tmp_path / "run") == peace


def test_another_seed_draws_otherwise(tmp_path: Path, peace: dict[str, str]) -> None:
    run(tmp_path / "run", seed=6)
    assert print_of(tmp_path / "run")["model.safetensors"] != peace["model.safetensors"]


def test_the_users_generators_are_left_as_they_were(tmp_path: Path) -> None:
    settle()
    expected = torch.rand(3), np.random.rand(3), random.random()
    settle()
    run(tmp_path / "run", length=steps(1))
    found = torch.rand(3), np.random.rand(3), random.random()
    assert torch.equal(found[0], expected[0])
    assert (found[1] == expected[1]).all()
    assert found[2] == expected[2]


def test_a_task_that_keeps_tensors_without_a_state_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(own(tmp_path / "a"), task=Forgetful)
    assert caplog.text.count("Forgetful keeps tensors (teacher, queue)") == 0
    assert caplog.text.count("Forgetful keeps tensors (teacher) that no checkpoint holds") == 1
    caplog.clear()
    run(tmp_path / "b", length=steps(2))
    train(own(tmp_path / "c", length=steps(2)))
    assert "no checkpoint" not in caplog.text


class Half(Task):
    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def state_dict(self) -> dict[str, Any]:
        return {"x": 1}


class Unsaved(Half):
    def state_dict(self) -> dict[str, Any]:
        return {"place": Path()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("task", "said"),
    [(Half, "Half has state_dict but not load_state_dict"), (Unsaved, "which a checkpoint can't")],
)
def test_a_state_that_cannot_be_kept_is_refused_before_the_first_step(
    tmp_path: Path, task: type[Task], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        train(own(tmp_path / "run"), task=task)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_before_there_was_a_state_is_resumed_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Later(SelfDistillation):
        pass

    with monkeypatch.context() as patch:
        fail_at(patch, 3)
        patch.setattr(Later, "state_dict", Task.state_dict)
        patch.setattr(Later, "load_state_dict", Task.load_state_dict)
        with pytest.raises(ZeroDivisionError):
            train(own(tmp_path / "run"), task=Later)
    train(own(tmp_path / "run"), task=Later)
    assert "the checkpoint holds no state of Later" in caplog.text


def test_blank_images_leave_no_trace(tmp_path: Path) -> None:
    """Neither in the task nor in a batch norm of the model."""
    config = own(tmp_path)
    task = SelfDistillation(config, images_of(10))
    gray = Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,), interpolation="bilinear", fit="stretch")
    fresh = build(config.model, classes=10)
    model = drop_and_norm(task.build(Checkpoint(spec=fresh.spec, tensors=fresh.state_dict())))
    task.setup(gray, torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_losses(model, task)
    assert task.queue == []
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_after_step_comes_once_for_each_step(tmp_path: Path) -> None:
    """The teacher moves once a step, however often `losses` was called."""
    moved: list[int] = []

    class Moves(SelfDistillation):
        def after_step(self, model: nn.Module) -> None:
            moved.append(1)
            super().after_step(model)

    train(own(tmp_path / "run", micro_batch=5), task=Moves)
    assert len(moved) == 5


def in_threads(work: list[Any]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("parts", ["ours", "own"])
def test_runs_in_threads_of_one_process_end_with_the_same_bytes(
    tmp_path: Path, peace: dict[str, str], parts: str
) -> None:
    """They share torch's generators, which weights and dropout of one's own are drawn from."""

    def work(name: str) -> Any:
        out = tmp_path / name
        return lambda: run(out) if parts == "own" else train(own(out, length=steps(1)))

    work("alone")()
    in_threads([work(f"{number}") for number in range(4)])
    expected = print_of(tmp_path / "alone")
    assert parts == "ours" or expected == peace
    for number in range(4):
        assert print_of(tmp_path / f"{number}") == expected
