"""What a run tells: the same metrics however often it is killed, and nothing that stops it."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.material import ROOT
from tests.training.logging.outputs import (
    IMAGE,
    TOTAL,
    Gone,
    Terminal,
    file_limit,
    left_on,
    read_events,
    single,
    tell,
)
from vitrail.config import InputError
from vitrail.training.logging import metrics_logger as module
from vitrail.training.logging.metrics_logger import MetricsLogger

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.training.logging.outputs import TOTAL, tell
from vitrail.training.logging.metrics_logger import MetricsLogger

with MetricsLogger(Path(sys.argv[1]), total=TOTAL, every=5) as journal:
    tell(journal, range(1, 17))
    os.kill(os.getpid(), signal.SIGKILL)
"""

log = logging.getLogger("vitrail")


def run(folder: Path, first: int = 1, last: int = TOTAL, **options: Any) -> None:
    options = {"total": TOTAL, "every": 5, "loggers": (), **options}
    with MetricsLogger(folder, step=first - 1, **options) as journal:
        tell(journal, range(first, last + 1))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_are_those_of_the_very_step(tmp_path: Path) -> None:
    run(tmp_path)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 5, 7, 10, 14, 15, 20, 21, 23]
    assert rows[0] == {"step": 1, "epoch": 1 / 7, "train/loss": 1.0, "lr": 0.0005}
    assert rows[2] == {"step": 7, "val/top1": torch.tensor(7 / 30).item(), "val/images": 10_000}
    assert rows[3]["train/loss"] == "nan"
    assert rows[5]["train/loss"] == (torch.tensor(1.0) / 15).item()


@pytest.mark.parametrize("killed", range(1, TOTAL + 1))
def test_killed_anywhere_the_metrics_end_the_same(tmp_path: Path, killed: int) -> None:
    run(tmp_path / "whole")
    whole = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    for saved in range(killed + 1):
        folder = tmp_path / str(saved)
        run(folder, 1, killed)
        for name in ("metrics.jsonl", "speed.jsonl"):
            with (folder / name).open("a") as file:
                file.write('{"step": 2, "trai')  # a line that the kill has torn
        run(folder, saved + 1)
        assert (folder / "metrics.jsonl").read_bytes() == whole
        steps = [row["step"] for row in read_rows(folder / "speed.jsonl")]
        assert steps == sorted(set(steps))


def test_a_run_that_begins_again_begins_at_nothing(tmp_path: Path) -> None:
    for _ in range(2):  # killed before its first save
        with MetricsLogger(tmp_path, total=TOTAL, loggers=()) as journal:
            journal.evaluation(0, {"val/top1": 0.1})
            tell(journal, [1])
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [0, 1]


def test_a_killed_process_has_lost_no_line(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_killed = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    done = subprocess.run(run_killed, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert [row["step"] for row in read_rows(tmp_path / "killed" / "metrics.jsonl")][-1] == 15
    run(tmp_path / "killed", 13, loggers=("tensorboard",))
    run(tmp_path / "whole", loggers=("tensorboard",))
    killed, whole = (tmp_path / name / "metrics.jsonl" for name in ("killed", "whole"))
    assert killed.read_bytes() == whole.read_bytes()
    for name in ("killed", "whole"):
        events = read_events(tmp_path / name)
        for tag in ("epoch", "train/loss", "lr", "val/top1", "val/images"):
            read = [(event.step, str(event.value)) for event in events.Scalars(tag)]
            rows = [row for row in read_rows(whole) if tag in row]
            assert read == [(row["step"], str(single(float(row[tag])))) for row in rows]
        assert len(events.Scalars("speed/images_per_second")) >= 4


def test_other_processes_write_and_show_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = log.handlers[:]
    with MetricsLogger(tmp_path / "run", total=TOTAL, loggers=("nonsense",), quiet=True) as journal:
        tell(journal, range(1, TOTAL + 1))
        journal.note("unheard")
        journal.image(1, "x", IMAGE)
        assert log.handlers == handlers
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_lines_are_shown_at_times_and_at_each_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 4))  # a second look at it, after each evaluation, takes 4 s more
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(module, "peak_memory", lambda: 1_900_000_000)
    with MetricsLogger(tmp_path, total=TOTAL, every=0, loggers=()) as journal:
        journal.note("100 % of [bold]it[/bold]")
        tell(journal, range(1, TOTAL + 1))
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "100 % of [bold]it[/bold]",
        "step 1/23  epoch 0.1  loss 1.000  lr 5.0e-04  1.9 GB",
        "step 7/23  val top-1 23.33%  val images 10,000",
        "step 8/23  epoch 1.1  loss 0.2454  lr 1.1e-04  8.0 images/s  data 0 %  1.9 GB  "
        "ETA 0:01:09",
        "step 14/23  val top-1 46.67%  val images 10,000",
        "step 15/23  epoch 2.1  loss nan  lr 6.3e-05  8.0 images/s  data 0 %  1.9 GB  ETA 0:00:37",
        "step 21/23  val top-1 70.00%  val images 10,000",
        "step 22/23  epoch 3.1  loss 0.05323  lr 4.3e-05  8.0 images/s  data 0 %  1.9 GB  "
        "ETA 0:00:05",
        "step 23/23  epoch 3.3  loss 0.04348  lr 4.2e-05  8.0 images/s  data 0 %  1.9 GB  "
        "ETA 0:00:00",
    ]
    logged = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in logged] == [f"INFO {line}" for line in shown]
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [7, 14, 21]


def test_a_terminal_shows_a_bar_with_the_log_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with MetricsLogger(tmp_path, total=TOTAL, step=2, loggers=()) as journal:
        tell(journal, range(3, 8))
        log.warning("%s: a [red]image[/red] is bad", "a.jpg")
    assert sys.stderr is screen
    evaluation, warning, bar, _ = left_on(screen)
    assert evaluation == "step 7/23  val top-1 23.33%  val images 10,000"
    assert warning == "warning: a.jpg: a [red]image[/red] is bad"
    assert "━━━ step 3/23  epoch 0.4  loss 0.3333  lr 2.5e-04  " in bar


def test_the_log_goes_on_over_restarts(tmp_path: Path) -> None:
    for step in (0, 5):
        with MetricsLogger(tmp_path, total=TOTAL, step=step, loggers=()) as journal:
            journal.note(f"at step {step}")
    logged = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.partition(" INFO ")[2] for line in logged] == ["at step 0", "at step 5"]


def test_lines_are_on_disk_before_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(name_of(handle)))
    with MetricsLogger(tmp_path, total=TOTAL, loggers=()) as journal:
        tell(journal, [1])
        assert synced == []
        journal.sync()
    assert synced == ["metrics.jsonl", "speed.jsonl"]


def name_of(handle: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{handle}")).name


def test_speed_is_kept_apart(tmp_path: Path) -> None:
    run(tmp_path)
    rows = read_rows(tmp_path / "speed.jsonl")
    assert [row["step"] for row in rows] == [5, 10, 15, 20, 23]
    assert rows[0].keys() == {
        "step",
        "time",
        "speed/images_per_second",
        "speed/waiting_for_data",
        "speed/peak_memory",
    }
    assert all(row["speed/images_per_second"] > 0 for row in rows)


def test_an_exception_passes_and_all_is_closed(tmp_path: Path) -> None:
    before = log.handlers[:], log.level, len(os.listdir("/proc/self/fd"))
    error = ZeroDivisionError("a bug")
    journal = MetricsLogger(tmp_path, total=TOTAL, loggers=())
    with pytest.raises(ZeroDivisionError) as caught, journal:
        raise error
    assert caught.value is error
    assert (log.handlers, log.level, len(os.listdir("/proc/self/fd"))) == before
    assert "ERROR the run ends here: ZeroDivisionError a bug" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("name", ["metrics.jsonl", "speed.jsonl", "log.txt"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    before = log.handlers[:]
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: cannot be written: Is a directory"):
        MetricsLogger(tmp_path, total=TOTAL)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="x: cannot hold a run: Not a directory"):
        MetricsLogger(tmp_path / "file" / "x", total=TOTAL)
    assert log.handlers == before


def test_an_unknown_logger_leaves_nothing_open(tmp_path: Path) -> None:
    before = log.handlers[:], len(os.listdir("/proc/self/fd"))
    with pytest.raises(InputError, match="unknown logger"):
        MetricsLogger(tmp_path, total=TOTAL, loggers=("tensorboard", "nonsense"))
    assert (log.handlers, len(os.listdir("/proc/self/fd"))) == before


def test_a_full_disk_stops_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    with MetricsLogger(tmp_path, total=TOTAL, every=1) as journal:
        tell(journal, range(1, 4))
        with file_limit(10):
            tell(journal, range(4, TOTAL))
        tell(journal, [TOTAL])
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, TOTAL]
    said = capsys.readouterr().err
    for name in ("metrics.jsonl", "speed.jsonl", "log.txt"):
        assert said.count(f"warning: {tmp_path / name}: lines are missing") == 1
    assert said.count("warning: logger 'tensorboard' failed and is dropped") == 1
    assert said.count("warning: ") == 4


class Refusing:
    """A logger whose server has gone."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def log(self, step: int, values: object) -> None:
        self.calls.append(f"log {step}")
        if step > 1:
            raise ConnectionError("no route\nto host")

    def image(self, step: int, name: str, array: object) -> None:
        self.calls.append(f"image {step} {name}")

    def close(self, *, failed: bool = False) -> None:
        self.calls.append(f"close {failed}")
        raise ConnectionError


@pytest.mark.parametrize("last", [1, 7])
def test_a_logger_that_fails_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    last: int,
) -> None:
    caplog.set_level(logging.WARNING, "vitrail")
    logger = Refusing()
    monkeypatch.setattr(module, "open_logger", lambda name, folder, step, make: logger)
    with MetricsLogger(tmp_path, total=TOTAL, every=1, loggers=("wandb",)) as journal:
        tell(journal, [1])
        journal.image(1, "attention", IMAGE)
        tell(journal, range(2, last + 1))
        journal.image(last, "unsent", IMAGE) if last > 1 else None
    failed = last > 1
    calls = ["log 1", "image 1 attention", *["log 2"] * failed, f"close {failed}"]
    assert logger.calls[: len(calls)] == calls
    assert "image 7 unsent" not in logger.calls
    (said,) = caplog.messages
    why = "no route" if failed else "ConnectionError"
    assert said == f"logger 'wandb' failed and is dropped: {why}"


def test_a_terminal_that_goes_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Gone())
    run(tmp_path)
    assert read_rows(tmp_path / "metrics.jsonl")[-1]["step"] == TOTAL


def test_tensors_are_read_only_when_needed(tmp_path: Path) -> None:
    read: list[int] = []

    class Loss:
        def __init__(self, step: int) -> None:
            self.step = step

        def item(self) -> float:
            read.append(self.step)
            return 1.0

        def __radd__(self, other: float) -> "Loss":
            return self

        def __add__(self, other: "Loss") -> "Loss":
            return other

        __float__ = item

    with MetricsLogger(tmp_path, total=TOTAL, every=10, loggers=()) as journal:
        for step in range(1, TOTAL + 1):
            values: Any = {"train/loss": Loss(step)}
            journal.train(step, values, images=1, waited=0.0)
    assert sorted({*read}) == [1, 10, 20, TOTAL]


def test_steps_do_not_go_back(tmp_path: Path) -> None:
    with (
        MetricsLogger(tmp_path, total=TOTAL, step=7, loggers=()) as journal,
        pytest.raises(AssertionError, match="step 6 after step 7"),
    ):
        journal.evaluation(6, {"val/top1": 1.0})


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{}\n{", "has lost 2 bytes"), (b"{}\n{]\n", "was changed"), (None, "is gone")],
)
def test_metrics_that_were_changed_before_a_resume_are_said(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"{}\n{}\n")
    saved = {"bytes": 6, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with MetricsLogger(tmp_path, total=TOTAL, step=3, loggers=(), saved=saved):
        pass
    assert f"metrics.jsonl {said} since the run was saved" in (tmp_path / "log.txt").read_text()
