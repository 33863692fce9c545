"""The viewers: what TensorBoard reads back, what W&B and MLflow are sent, what is missing."""

import io
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
from PIL import Image

from tests.training.logging.outputs import IMAGE, file_limit, read_events, single
from vitrail.config import InputError
from vitrail.training.logging.loggers import TensorBoard, check_loggers, open_logger


def send(folder: Path, step: int, *steps: int, scale: float = 1.0) -> None:
    logger = TensorBoard(folder, step)
    for step in steps:
        logger.log(step, {"train/loss": scale / step, "lr": 1e-3 * step})
    logger.close()


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorBoard(tmp_path, 0)
    logger.log(1, {"train/loss": 1 / 3, "lr": 1e-3})
    logger.log(10, {"train/loss": float("nan")})
    logger.image(10, "attention", IMAGE)
    events = read_events(tmp_path)  # before it is closed: all is flushed
    logger.close()
    first, second = events.Scalars("train/loss")
    assert (first.step, first.value, second.step) == (1, single(1 / 3), 10)
    assert np.isnan(second.value)
    assert [(event.step, event.value) for event in events.Scalars("lr")] == [(1, single(1e-3))]
    (image,) = events.Images("attention")
    assert (image.step, image.height, image.width) == (10, 2, 4)
    decoded = Image.open(io.BytesIO(image.encoded_image_string))
    assert np.array_equal(np.array(decoded), IMAGE)
    assert {path.parent.name for path in tmp_path.rglob("*tfevents*")} == {"tensorboard"}


@pytest.mark.parametrize(("resumed", "kept"), [(3, [1, 2, 3]), (2, [1, 2]), (0, [])])
def test_tensorboard_forgets_what_a_killed_run_did_later(
    tmp_path: Path, resumed: int, kept: list[int]
) -> None:
    pytest.importorskip("tensorboard")
    send(tmp_path, 0, 1, 2, 3, 4)
    send(tmp_path, resumed, 5, 6, scale=7.0)
    read = [(event.step, event.value) for event in read_events(tmp_path).Scalars("train/loss")]
    assert read == [(step, single(1 / step)) for step in kept] + [
        (5, single(1.4)),
        (6, single(7 / 6)),
    ]


def test_event_files_sort_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    for now in (5e9, 5e9, 4e9, 6e9):  # two in a second, then a clock set back
        monkeypatch.setattr("time.time", lambda now=now: now)
        TensorBoard(tmp_path, 0).close()
    names = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    numbers = (5_000_000_000, 5_000_000_001, 5_000_000_002, 6_000_000_000)
    assert names == [f"events.out.tfevents.{number}.vitrail" for number in numbers]


def test_without_tensorboard_a_run_says_nothing_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vitrail")
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert open_logger("tensorboard", tmp_path, 0) is None
    assert caplog.messages == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"^logger tensorboard: not installed; .*'vitrail\[tb\]'$"):
        check_loggers(["tensorboard"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    told = r"^loggers wandb, tensorboard: not installed; pip install wandb 'vitrail\[tb\]'$"
    with pytest.raises(InputError, match=told):
        check_loggers(iter(["wandb", "tensorboard"]))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("a file")
    with pytest.raises(InputError, match="tensorboard: cannot be written: File exists"):
        open_logger("tensorboard", tmp_path, 0)
    (tmp_path / "tensorboard").unlink()
    full = pytest.raises(InputError, match="tensorboard: cannot be written: File too large")
    with file_limit(0), full:
        open_logger("tensorboard", tmp_path, 0)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"'{name}' cannot be .*; pip install {name}$"):
        open_logger(name, tmp_path, 0)


def test_an_unknown_logger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown logger 'wanbd'; did you mean 'wandb'"):
        open_logger("wanbd", tmp_path, 0)
    with pytest.raises(InputError, match="there are: tensorboard, wandb, mlflow, trackio"):
        open_logger("x", tmp_path, 0)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("wandb")
    module.run = Mock(id="abc", step=0)
    module.init = Mock(return_value=module.run)
    module.Settings = SimpleNamespace
    module.Image = lambda array: ("image", array.tobytes())
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return module


def test_wandb_is_sent_all(tmp_path: Path, wandb: Any) -> None:
    logger = open_logger("wandb", tmp_path, 0)
    assert logger
    logger.log(1, {"train/loss": 0.5})
    logger.image(1, "attention", IMAGE)
    logger.close()
    given = wandb.init.call_args.kwargs
    assert (given["project"], given["name"], given["id"]) == ("vitrail", tmp_path.name, None)
    assert wandb.run.log.mock_calls == [
        call({"train/loss": 0.5}, step=1),
        call({"attention": ("image", IMAGE.tobytes())}, step=1),
    ]
    wandb.run.finish.assert_called_once_with(exit_code=0)


def test_wandb_goes_on_in_the_same_run(
    tmp_path: Path, wandb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    open_logger("wandb", tmp_path, 0)
    wandb.run.step = 21  # it has been sent 20 steps, of which 10 are computed again
    logger = open_logger("wandb", tmp_path, 10)
    assert logger
    logger.log(20, {"lr": 1.0})
    logger.image(20, "attention", IMAGE)
    logger.log(30, {"lr": 2.0})
    logger.close(failed=True)
    given = wandb.init.call_args.kwargs
    assert (given["project"], given["id"], given["resume"]) == ("mine", "abc", "allow")
    assert wandb.run.log.mock_calls == [call({"lr": 2.0}, step=30)]
    wandb.run.finish.assert_called_once_with(exit_code=1)
    open_logger("wandb", tmp_path, 0)
    assert wandb.init.call_args.kwargs["id"] is None  # begun anew


def test_a_logger_without_a_key_is_one_line(tmp_path: Path, wandb: Any) -> None:
    wandb.init.side_effect = RuntimeError("No API key configured.\nmore")
    with pytest.raises(InputError) as caught:
        open_logger("wandb", tmp_path, 0)
    assert str(caught.value) == "logger 'wandb' cannot be opened: No API key configured."


def test_mlflow_is_sent_all_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Mock()
    mlflow.start_run.return_value.info.run_id = "r1"
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for step, failed in ((0, True), (10, False)):
        logger = open_logger("mlflow", tmp_path, step)
        assert logger
        logger.log(step + 1, {"lr": 0.5})
        logger.image(step + 1, "attention", IMAGE)
        logger.close(failed=failed)
    assert mlflow.mock_calls == [
        call.start_run(run_id=None, run_name=tmp_path.name),
        call.log_metrics({"lr": 0.5}, step=1),
        call.log_image(IMAGE, key="attention", step=1),
        call.end_run(status="FAILED"),
        call.start_run(run_id="r1", run_name=tmp_path.name),
        call.log_metrics({"lr": 0.5}, step=11),
        call.log_image(IMAGE, key="attention", step=11),
        call.end_run(status="FINISHED"),
    ]


def test_trackio_is_sent_all_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = Mock()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    pixels = np.zeros((2, 2, 3), np.uint8)
    for step in (0, 3):
        logger = open_logger("trackio", tmp_path, step)
        assert logger is not None
        logger.log(step + 1, {"train/loss": 0.5})
        logger.image(step + 1, "val/predictions", pixels)
        logger.close()
    name = tmp_path.name
    assert [each.kwargs for each in trackio.init.mock_calls if each[0] == ""] == [
        {"project": "vitrail", "name": name, "resume": "never"},
        {"project": "vitrail", "name": name, "resume": "allow"},
    ]
    run, image = trackio.init.return_value, trackio.Image.return_value
    assert [each.args[0] for each in run.log.mock_calls] == 2 * [
        {"train/loss": 0.5},
        {"val/predictions": image},
    ]
    assert [each.kwargs["step"] for each in run.log.mock_calls] == [1, 1, 4, 4]
    assert run.finish.call_count == 2
