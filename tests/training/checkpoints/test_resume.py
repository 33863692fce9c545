"""A run put back from its state goes on as if it had never stopped, to the last bit."""

import logging
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.training.trainers import ADAM, NOISY, PLAIN, QUIET, STRONG, make, make_batches
from vitrail.config import InputError
from vitrail.distributed import Processes
from vitrail.training.checkpoints.checkpoint_files import SavedCheckpoint, latest_checkpoint
from vitrail.training.checkpoints.resume import (
    TENSORS,
    check_datasets,
    load_checkpoint,
    save_checkpoint,
)
from vitrail.training.loop import Trainer
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.precision import LossScale

ALONE = Processes(0, 1, torch.device("cpu"))


def go(trainer: Trainer, first: int, last: int) -> list[float]:
    batches = make_batches(STRONG)
    return [trainer.step(step, batches[step], QUIET).loss for step in range(first, last)]


def saved_of(folder: Path) -> SavedCheckpoint:
    saved = latest_checkpoint(folder / "checkpoints")
    assert saved
    return saved


def all_of(trainer: Trainer) -> dict[str, Any]:
    """Flatten everything that a run is made of."""
    average = trainer.ema.state if trainer.ema is not None else {}
    states = trainer.optimizer.state_dict()["state"]
    moments = {f"{number}.{key}": x for number, state in states.items() for key, x in state.items()}
    return {**trainer.model.state_dict(), **{f"mean {k}": v for k, v in average.items()}, **moments}


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("ema", [True, False])
def test_a_loaded_run_takes_the_same_steps(
    tmp_path: Path, kind: Literal["adamw", "sgd", "muon"], ema: bool
) -> None:
    optim = OptimConfig(kind=kind, lr=1e-2, weight_decay=0.1)
    whole, other = (make(NOISY, optim, ema=ema) for _ in range(2))
    go(whole, 0, 3)
    save_checkpoint(tmp_path, 3, whole, lambda: {"mine": [1, None]}, ALONE)
    go(other, 2, 4)  # so that there is something to be overwritten
    saved = saved_of(tmp_path)
    assert (saved.step, saved.metadata["mine"]) == (3, [1, None])
    load_checkpoint(saved, other, micro_batch=None)
    assert go(other, 3, 6) == go(whole, 3, 6)
    expected, found = all_of(whole), all_of(other)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def test_a_loaded_run_has_its_scale(tmp_path: Path) -> None:
    whole, other = (make(NOISY, autocast=torch.float16) for _ in range(2))
    whole.scale = LossScale(2.0**26, calm=7)
    go(whole, 0, 3)
    assert whole.scale.factor < 2**26
    save_checkpoint(tmp_path, 3, whole, dict, ALONE)
    load_checkpoint(saved_of(tmp_path), other, micro_batch=None)
    assert go(other, 3, 6) == go(whole, 3, 6)
    assert other.scale is not None
    assert other.scale.state() == whole.scale.state()


def test_a_fresh_trainer_needs_no_steps_before_it_is_loaded(tmp_path: Path) -> None:
    """Optimizers make their moments at the first step, or take them from the state."""
    whole = make(NOISY, ema=True)
    go(whole, 0, 2)
    save_checkpoint(tmp_path, 2, whole, dict, ALONE)
    fresh = make(NOISY, ema=True)
    load_checkpoint(saved_of(tmp_path), fresh, micro_batch=None)
    assert go(fresh, 2, 4) == go(whole, 2, 4)


def test_a_state_is_the_same_bytes_when_the_run_is(tmp_path: Path) -> None:
    for name in "ab":
        trainer = make(NOISY, ema=True)
        go(trainer, 0, 2)
        save_checkpoint(tmp_path / name, 2, trainer, dict, ALONE)
    one, two = (saved_of(tmp_path / name).path / TENSORS for name in "ab")
    assert one.read_bytes() == two.read_bytes()


def test_the_newest_two_states_are_kept(tmp_path: Path) -> None:
    for step in (3, 5, 9):
        save_checkpoint(tmp_path, step, make(PLAIN), dict, ALONE)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000005", "step-00000009"]


@pytest.mark.parametrize(("given", "expected"), [(None, 5), (3, 3)])
def test_a_resumed_run_keeps_its_micro_batch_unless_given_one(
    tmp_path: Path, given: int | None, expected: int
) -> None:
    save_checkpoint(tmp_path, 1, make(PLAIN, micro_batch=5), dict, ALONE)
    trainer = make(PLAIN, micro_batch=given or 12)
    load_checkpoint(saved_of(tmp_path), trainer, micro_batch=given)
    assert trainer.micro_batch == expected


def test_another_torch_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.10.1")
        save_checkpoint(tmp_path, 1, make(PLAIN), dict, ALONE)
        load_checkpoint(saved_of(tmp_path), make(PLAIN), micro_batch=None)
    assert not caplog.messages
    load_checkpoint(saved_of(tmp_path), make(PLAIN), micro_batch=None)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == (
        f"saved by torch 2.10.1, resumed by {torch.__version__}: bits may differ"
    )


@pytest.mark.parametrize("other", [PLAIN.replace("32", "64"), PLAIN.replace("depth=2", "depth=3")])
def test_another_model_is_refused(tmp_path: Path, other: str) -> None:
    save_checkpoint(tmp_path, 1, make(PLAIN, ADAM), dict, ALONE)
    with pytest.raises(InputError, match=r"cannot resume: .*step-00000001 holds another model; "):
        load_checkpoint(saved_of(tmp_path), make(other, ADAM), micro_batch=None)


def test_other_images_are_refused_with_their_numbers() -> None:
    begun = {"train": {"name": "photos/train", "images": 1200, "hash": "a"}}
    check_datasets(begun, begun)
    for count, said in ((1188, "12 are gone"), (1201, "1 are new"), (1200, "others")):
        now = {"train": {"name": "photos/train", "images": count, "hash": "b"}}
        with pytest.raises(InputError) as caught:
            check_datasets(begun, now)
        assert str(caught.value) == (
            f"cannot resume: photos/train had 1,200 images when the run began and has {count:,} "
            f"now ({said}); put back what it had, or use --restart to begin again, or another --out"
        )
