"""Faults that a run meets by itself: full disks, losses that are not finite, too little memory."""

import errno
import json
import logging
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.faults.disk import mounted
from tests.faults.toy import fail_at, in_child, print_of, steps, toy, train_in_child
from tests.runs import train
from vitrail.config import InputError
from vitrail.data.batches import TrainBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.loader import LoaderConfig
from vitrail.distributed import Processes
from vitrail.run import TrainConfig
from vitrail.tasks.classification import Classification
from vitrail.training.checkpoints import resume
from vitrail.training.checkpoints.checkpoint_files import SaveError, latest_checkpoint
from vitrail.training.checkpoints.run_lock import run_lock
from vitrail.training.loop import DivergedError, LaunchedStep, Trainer
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training_run import TrainingRun
from vitrail.weights.load import read_checkpoint

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def peace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a toy run that nobody disturbed."""
    out = tmp_path_factory.mktemp("peace") / "run"
    assert train_in_child(toy(out)).code == 0
    return out


def losses_of(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["train/loss"] for row in rows if "train/loss" in row]


def fail_saves(patch: pytest.MonkeyPatch, *which: int) -> None:
    """Let the disk be full at some of the saves, counted from 1."""
    real, calls = resume.save_tensors, 0

    def save(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls in which:
            raise FULL
        real(*args)

    patch.setattr(resume, "save_tensors", save)


def test_a_full_disk_in_a_run_is_warned_of(
    tmp_path: Path, peace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_saves(monkeypatch, 2, 3)
    train(toy(tmp_path / "run"))
    assert print_of(tmp_path / "run") == print_of(peace)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert re.search(
        r"step-00000006: checkpoint not written: No space left .* \(needs .* MB, has .* MB\); "
        r"older ones are kept; the last good one is of step 3$",
        warned[0],
    )


@pytest.mark.filterwarnings("ignore")
def test_a_full_disk_at_the_end_leaves_the_model_and_an_error(
    tmp_path: Path, peace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_saves(patch, 4)
        with pytest.raises(SaveError, match=r"step-00000010: .*; the model is in .*run/model$"):
            train(toy(out))
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (peace / weights).read_bytes()
    assert not (out / "result.json").exists()
    train(toy(out))  # the same call, once there is room
    assert print_of(out) == print_of(peace)


def test_a_stop_that_could_not_be_saved_says_so(tmp_path: Path) -> None:
    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            fail_saves(patch, 2)
            real = Trainer.launch

            def step(self: Trainer, step: int, *rest: Any) -> LaunchedStep:
                if step == 1:
                    signal.raise_signal(signal.SIGTERM)
                return real(self, step, *rest)

            patch.setattr(Trainer, "launch", step)
            train(toy(tmp_path / "run", save_every=steps(1), eval_every=steps(0)))

    ended = in_child(work)
    assert ended.code == 1
    assert re.match(r"SaveError: .*step-00000002: checkpoint not written", ended.error)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk that holds a state of the toy, but not two."""
    with mounted(tmp_path / "disk", "580k") as place:
        yield place


def test_a_run_on_a_small_disk_ends_with_its_model(small_disk: Path, peace: Path) -> None:
    out = small_disk / "run"
    with pytest.raises(SaveError, match=r"step-00000010: checkpoint not written: No space left"):
        train(toy(out))
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (peace / weights).read_bytes()
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000003"]
    assert losses_of(out) == losses_of(peace)


def spoil(patch: pytest.MonkeyPatch, nth: int, value: float) -> None:
    """Multiply the losses of the n-th micro-batch."""
    real, calls = Classification.losses, 0

    def losses(self: Classification, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        found = real(self, *args)
        return found * value if calls == nth else found

    patch.setattr(Classification, "losses", losses)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_changes_nothing(
    tmp_path: Path, peace: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    config = toy(tmp_path / "run")
    with monkeypatch.context() as patch:
        spoil(patch, 5, value)
        with pytest.raises(
            DivergedError,
            match=rf"^the loss is not finite at step 5 \(loss {value}, gradient norm nan, lr "
            r"2\.\de-03\); the weights of step 4 are kept, and its images are listed in "
            r".*bad_batch_5\.txt; try a lower --lr, a longer warm-up or --optim\.clip 1$",
        ):
            train(config)
    assert blamed(config, 5) == names_of(config, 5)
    saved = latest_checkpoint(config.out / "checkpoints")
    assert saved
    assert saved.step == 4
    train(config)  # from the weights of step 4, which the bad batch has not touched
    assert print_of(config.out) == print_of(peace)


def blamed(config: TrainConfig, step: int) -> list[str]:
    return (config.out / f"bad_batch_{step}.txt").read_text().splitlines()


def names_of(config: TrainConfig, step: int) -> list[str]:
    """Name the images of a step, counted from 1."""
    training = TrainingRun(config, Processes(0, 1, torch.device("cpu")))
    assert isinstance(training.train_set, ImageDataset)
    batches = TrainBatches(
        training.train_set,
        config.augment,
        training.task.preprocess,
        batch=config.batch,
        seed=config.seed,
        mixed=False,
    )
    indices = batches[step - 1].indices.tolist()  # the first, partner of the second, is last
    return [training.train_set.where(index) for index in [indices[-1], *indices[1:-1]]]


def test_a_rate_that_is_far_too_high_is_said(tmp_path: Path) -> None:
    optim = OptimConfig(kind="sgd", lr=1e20, clip=None)
    config = toy(tmp_path / "run", optim=optim, ema=0.0)
    with pytest.raises(DivergedError, match=r"gradient is not finite at step 2 .* lr 9\.\de\+19"):
        train(config)
    saved = latest_checkpoint(config.out / "checkpoints")
    assert saved
    assert saved.step == 1


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("can't allocate memory: 9 GB")]
)
def test_a_run_short_of_memory_goes_on_with_the_same_losses(
    tmp_path: Path, peace: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    tried = limit_memory(monkeypatch, 5, 4, error)
    out = tmp_path / "run"
    train(toy(out))
    assert losses_of(out) == pytest.approx(losses_of(peace), abs=1e-5)
    assert tried == [16] * 5 + [8] + [4] * 4 * 6  # step 5 is begun again, and five follow
    said = (out / "log.txt").read_text()
    for micro, smaller in ((16, 8), (8, 4)):
        assert f"memory with {micro} of 16 images at a time; going on with {smaller}, same" in said
    saved = latest_checkpoint(out / "checkpoints")
    assert saved
    assert saved.metadata["micro_batch"] == 4


def limit_memory(patch: pytest.MonkeyPatch, step: int, most: int, error: Exception) -> list[int]:
    """Let no more than some images fit into memory from a step on; list how many are tried."""
    real, tried = Classification.losses, list[int]()

    def losses(self: Classification, model: torch.nn.Module, example: Any) -> torch.Tensor:
        tried.append(len(example.inputs))
        if len(tried) >= step and tried[-1] > most:
            raise error
        return real(self, model, example)

    patch.setattr(Classification, "losses", losses)
    return tried


def test_a_model_that_does_not_fit_at_all_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 3, 0, MemoryError())
    with pytest.raises(
        InputError,
        match=r"^out of memory with 1 of 16 images at a time in ViT/4@8,.*; try a smaller one, "
        r"or --checkpointing$",
    ):
        train(toy(tmp_path / "run"))


def test_other_errors_are_not_taken_for_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 3, 0, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        train(toy(tmp_path / "run"))


def test_a_resumed_run_keeps_the_micro_batch_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What memory is free when a run goes on must not change its bits."""
    chosen = iter([4, 16])
    monkeypatch.setattr(
        "vitrail.training.trainer_setup.choose_micro", lambda *_, **__: next(chosen)
    )
    whole, config = toy(tmp_path / "whole", micro_batch=4), toy(tmp_path / "run")
    train(whole)
    with monkeypatch.context() as patch:
        spoil(patch, 17, float("nan"))  # of step 5: there are four a step
        with pytest.raises(DivergedError):
            train(config)
    train(config)
    assert print_of(config.out) == print_of(whole.out)


def test_a_run_resumes_in_a_folder_whose_name_is_not_utf8(tmp_path: Path, peace: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 7)
        with pytest.raises(ZeroDivisionError):
            train(toy(folder))
    train(toy(folder))
    assert print_of(folder) == print_of(peace)
    assert "resuming" in (folder / "log.txt").read_text()
    assert read_checkpoint(str(folder)).classes is not None


def test_a_run_whose_folder_is_deleted_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, real = tmp_path / "run", Trainer.launch

    def step(self: Trainer, number: int, *rest: Any) -> Any:
        if number == 4:
            shutil.rmtree(folder)
        return real(self, number, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "launch", step)
        with pytest.raises(InputError, match="run was deleted or emptied during its run"):
            train(toy(folder))
    assert "run was deleted or emptied" in caplog.text
    assert not (folder / "checkpoints").exists()


def test_one_folder_takes_one_run_at_a_time(tmp_path: Path, peace: Path) -> None:
    config = toy(tmp_path / "run")
    with (
        run_lock(config.out),
        pytest.raises(
            InputError, match=r"run is in use by process \d+ on .* since \d\d:\d\d; wait"
        ),
    ):
        train(config)
    train(config)
    assert print_of(config.out) == print_of(peace)


def test_a_damaged_state_is_passed_over(
    tmp_path: Path, peace: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy(tmp_path / "run")
    with monkeypatch.context() as patch:
        spoil(patch, 9, float("nan"))
        with pytest.raises(DivergedError):
            train(config)
    tensors = config.out / "checkpoints" / "step-00000008" / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    train(config)
    damage = "checkpoint step 8 is damaged (checksum of tensors.safetensors), using step 6"
    assert damage in caplog.messages
    assert print_of(config.out) == print_of(peace)


def test_the_same_call_twice_gives_the_same_bytes(tmp_path: Path, peace: Path) -> None:
    """Whatever was drawn before from torch's and NumPy's generators, which stay as they are."""
    torch.manual_seed(123)
    np.random.seed(123)
    train(toy(tmp_path / "run", loader=LoaderConfig(workers=0)))
    drawn = torch.rand(1)
    assert print_of(tmp_path / "run") == print_of(peace)
    torch.manual_seed(123)
    assert torch.equal(drawn, torch.rand(1))
