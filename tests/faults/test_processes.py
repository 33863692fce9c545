"""Several processes train as one does; one that dies or hangs spoils nothing, and ends the rest."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from tests.cases import slow
from tests.faults.toy import leftovers, steps
from tests.faults.worker import group
from tests.forks import Ended, in_processes
from tests.material import ROOT
from tests.runs import read_repeatable, train
from vitrail.run import Run, TrainConfig
from vitrail.training.checkpoints import resume, sharding
from vitrail.training.checkpoints.run_lock import run_lock
from vitrail.training.checkpoints.sharding import load_shards
from vitrail.training.loop import Trainer
from vitrail.training.optimization.optim import OptimConfig

FULL = {"sharding": "full"}
GOOD = (0, 0)
LONG = {"length": steps(20), "eval_every": steps(10), "save_every": steps(10)}


def run(config: TrainConfig, count: int = 2, before: Callable[[int], None] | None = None) -> Any:
    """Train in so many processes; `before` gets the number of each step before it is taken."""

    def work() -> Run:
        real = Trainer.launch

        def step(self: Trainer, number: int, *args: Any) -> Any:
            if before is not None:
                before(number)
            return real(self, number, *args)

        pytest.MonkeyPatch().setattr(Trainer, "launch", step)  # of this process only
        return train(config)

    return in_processes(work, count)


def stop_at(step: int) -> Callable[[int], None]:
    return lambda number: os.kill(os.getpid(), signal.SIGTERM) if number == step else None


def codes(ended: list[Ended]) -> tuple[int | str, ...]:
    """Give the exit codes, or what else there was to say."""
    return tuple(each.error if each.code == 1 else each.code for each in ended)


def rows_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def print_of(out: Path) -> dict[str, str]:
    """Hash what a run computed: model, metrics, result, and its last state's tensors."""
    files = [out / "model" / "model.safetensors", out / "metrics.jsonl", out / "result.json"]
    (*_, state) = sorted(out.glob("checkpoints/step-*"))
    tensors = load_shards(state, lambda name, shape, dtype: torch.zeros(shape, dtype=dtype))
    contents = {path.name: read_repeatable(path) for path in files}
    contents |= {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def state_of(out: Path) -> dict[str, str]:
    """Hash the newest state."""
    (*_, state) = sorted(out.glob("checkpoints/step-*"))
    files = sorted(state.iterdir())
    return {
        f"{state.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


PEACEFUL: dict[str, tuple[int, dict[str, Any]]] = {
    "long-1": (1, LONG),
    "long-2": (2, LONG),
    "long-full": (2, {**LONG, **FULL}),
    "none": (2, {}),
    "full": (2, FULL),
}


@pytest.fixture(scope="module")
def peace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Train undisturbed: alone, in two processes, or in two that share the weights."""
    folder = tmp_path_factory.mktemp("peace")

    @cache
    def train_in_peace(name: str) -> Path:
        count, settings = PEACEFUL[name]
        assert codes(run(group(folder / name, **settings), count)) == (0,) * count
        return folder / name

    return train_in_peace


def assert_close(
    rows: list[dict[str, float]], expected: list[dict[str, float]], rtol: float
) -> None:
    assert [row.keys() for row in rows] == [row.keys() for row in expected]
    for row, other in zip(rows, expected, strict=True):
        for name, value in row.items():
            assert value == pytest.approx(other[name], rel=rtol), (row, other)


@pytest.mark.parametrize("many", ["long-2", slow("long-full")])
def test_two_processes_train_as_one_does(peace: Callable[[str], Path], many: str) -> None:
    one, two = rows_of(peace("long-1")), rows_of(peace(many))
    assert_close(two[:1], one[:1], 1e-6)
    assert_close(two, one, 1e-4)
    results = [json.loads((peace(out) / "result.json").read_text()) for out in ("long-1", many)]
    assert [each["images"] for each in results] == [355, 355]  # each one once


def test_the_first_process_alone_writes(peace: Callable[[str], Path]) -> None:
    def names(out: str) -> set[str]:
        return {str(path.relative_to(peace(out))) for path in (peace(out)).rglob("*")}

    assert names("long-1") == names("long-2")
    logs = [(peace(out) / "log.txt").read_text().splitlines() for out in ("long-1", "long-2")]
    assert len(logs[0]) == len(logs[1])


@pytest.mark.parametrize("sharding", ["none", slow("full")])
def test_the_number_of_processes_may_change(
    peace: Callable[[str], Path], tmp_path: Path, sharding: str
) -> None:
    out = tmp_path / "run"
    settings = {**LONG, "sharding": sharding}

    assert codes(run(group(out, **settings), 2, stop_at(6))) == (143, 143)
    assert codes(run(group(out, **LONG), 1, stop_at(13))) == (143,)
    assert codes(run(group(out, **settings), 2)) == GOOD
    assert_close(rows_of(out), rows_of(peace("long-2")), 1e-5)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    for each in run(group(tmp_path / "run", batch=18), 4):
        assert each.error == (
            "InputError: a global batch of 18 on 4 processes; it can be shared by 1, 2, 3, 6, 9, 18"
        )
    assert not (tmp_path / "run").exists()


def test_other_settings_in_a_process_are_found(tmp_path: Path) -> None:
    def work() -> None:
        lr = 1e-3 * (1 + int(os.environ["RANK"]))
        train(group(tmp_path / "run", optim=OptimConfig(lr=lr)))

    for each in in_processes(work):
        assert "process 1 has settings.optim.lr 0.002" in each.error
        assert "process 0 has settings.optim.lr 0.001" in each.error


def test_other_images_in_a_process_are_found(tmp_path: Path) -> None:
    for name in ("0", "1"):
        for split, label in (("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")):
            folder = tmp_path / name / split / label
            folder.mkdir(parents=True)
            for number in range(4):
                Image.new("L", (8, 8), number).save(folder / f"{number}.png")
    (tmp_path / "1" / "train" / "a" / "3.png").unlink()

    def work() -> None:
        os.chdir(tmp_path / os.environ["RANK"])
        train(group(tmp_path / "run", data="folder:."))

    for each in in_processes(work):
        assert "process 1 has data.train.images 7" in each.error
        assert "process 0 has data.train.images 8" in each.error


def test_three_processes_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    """Sums of three round by their order, which is another one in DDP's first step."""
    whole, halves = (group(tmp_path / name, batch=18) for name in ("whole", "halves"))
    assert codes(run(whole, 3)) == (0, 0, 0)
    assert codes(run(halves, 3, stop_at(4))) == (143, 143, 143)
    assert codes(run(halves, 3)) == (0, 0, 0)
    assert print_of(halves.out) == print_of(whole.out)


@pytest.mark.parametrize(
    ("sharding", "rank"), [("full", 1), slow("none", 0), slow("none", 1), slow("full", 0)]
)
def test_a_signal_to_one_process_stops_all(
    peace: Callable[[str], Path], tmp_path: Path, sharding: str, rank: int
) -> None:
    config = group(tmp_path / "run", sharding=sharding)

    def stop(number: int) -> None:
        if number == 4 and os.environ["RANK"] == str(rank):
            os.kill(os.getpid(), signal.SIGTERM)

    for each in run(config, 2, stop):
        # Read while the next step is under way, which all processes still take.
        assert (each.code, each.error) == (143, "SIGTERM: saved step 6")
    assert codes(run(config)) == GOOD
    assert print_of(config.out) == print_of(peace(sharding))


@pytest.mark.parametrize(
    ("sharding", "rank"), [("full", 0), slow("none", 1), slow("none", 0), slow("full", 1)]
)
def test_a_killed_process_ends_the_others_and_changes_no_byte(
    peace: Callable[[str], Path], tmp_path: Path, sharding: str, rank: int
) -> None:
    config = group(tmp_path / "run", sharding=sharding)

    def kill(number: int) -> None:
        if number == 7 and os.environ["RANK"] == str(rank):
            (tmp_path / "state.json").write_text(json.dumps(state_of(config.out)))
            os.kill(os.getpid(), signal.SIGKILL)

    ended = run(config, 2, kill)
    assert ended.pop(rank).code == -signal.SIGKILL
    assert "lost another one, which has ended" in ended[0].error
    states = json.loads((tmp_path / "state.json").read_text())
    assert state_of(config.out) == states  # no half-done step was saved
    assert "step-00000006/manifest.json" in states
    assert codes(run(config)) == GOOD
    assert print_of(config.out) == print_of(peace(sharding))


@pytest.mark.parametrize("rank", [1, slow(0)])
def test_a_process_killed_in_a_save_changes_no_byte(
    peace: Callable[[str], Path], tmp_path: Path, rank: int
) -> None:
    config = group(tmp_path / "run", **FULL)

    def work() -> None:
        real, calls = sharding.save_shards, 0

        def save(*args: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2 and os.environ["RANK"] == str(rank):
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args)

        pytest.MonkeyPatch().setattr(resume, "save_shards", save)
        train(config)

    ended = in_processes(work)
    assert ended.pop(rank).code == -signal.SIGKILL
    assert "LostError" in ended[0].error
    assert "step-00000003/manifest.json" in state_of(config.out)
    assert codes(run(config)) == GOOD
    assert print_of(config.out) == print_of(peace("full"))
    assert not leftovers(config.out)


def test_a_full_disk_in_one_process_stops_no_run(tmp_path: Path) -> None:
    config = group(tmp_path / "run", **FULL)

    def work() -> None:
        real, calls = HuggingFaceStorageWriter.write_data, 0

        def write(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2 and os.environ["RANK"] == "1":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        pytest.MonkeyPatch().setattr(HuggingFaceStorageWriter, "write_data", write)
        train(config)

    assert codes(in_processes(work)) == GOOD
    said = (config.out / "log.txt").read_text()
    assert "step-00000006: checkpoint not written: process 1: [Errno 28] No space left" in said
    assert "the last good one is of step 3" in said
    assert not leftovers(config.out)


def test_all_processes_learn_that_a_folder_is_in_use(tmp_path: Path) -> None:
    with run_lock(tmp_path / "run"):
        for each in run(group(tmp_path / "run")):
            assert each.error.startswith(f"InputError: {tmp_path / 'run'} is in use by process")


def launch(
    out: Path, sharding: str, rank: int, number: int, *options: str
) -> subprocess.Popen[str]:
    """Start two processes by torchrun, of which one gets a signal before its eighth step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    command += ["--nproc-per-node", "2", "-m", "tests.faults.worker", str(out), sharding]
    return subprocess.Popen(
        [*command, str(rank), "7", str(int(number))],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("sharding", "rank"), [("none", 1), ("none", 0), ("full", 1)])
def test_torchrun_restarts_a_killed_process(
    peace: Callable[[str], Path], tmp_path: Path, sharding: str, rank: int
) -> None:
    out = tmp_path / "run"
    with launch(out, sharding, rank, signal.SIGKILL, "--max-restarts", "1") as started:
        _, said = started.communicate()
    assert started.returncode == 0, said
    assert said.count("resuming") == 1
    assert f"resuming {out} at step 6 of 10" in said
    assert print_of(out) == print_of(peace(sharding))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_ends_with_a_killed_process(
    peace: Callable[[str], Path], tmp_path: Path, rank: int
) -> None:
    out = tmp_path / "run"
    with launch(out, "none", rank, signal.SIGKILL) as started:
        _, said = started.communicate()
    assert started.returncode != 0
    assert f"rank      : {rank} (local_rank: {rank})" in said
    assert "Signal 9 (SIGKILL)" in said
    assert "step-00000006/manifest.json" in state_of(out)
    assert codes(run(group(out))) == GOOD
    assert print_of(out) == print_of(peace("none"))


def note_hang(line: str, out: Path) -> bool:
    """Spare the 30 seconds that torchrun gives a process which can't even hear it."""
    noted = "those that hang" in line
    if noted:
        os.kill(int((out / "struck").read_text().split()[0]), signal.SIGKILL)
    return noted


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_ends_with_a_process_that_hangs(
    peace: Callable[[str], Path], tmp_path: Path, rank: int
) -> None:
    out = tmp_path / "run"
    with launch(out, "none", rank, signal.SIGSTOP) as started:
        assert started.stderr is not None
        said = [line for line in started.stderr if note_hang(line, out)]
    assert started.returncode != 0
    assert f"those that hang: {rank}" in said[0]
    assert codes(run(group(out))) == GOOD
    assert print_of(out) == print_of(peace("none"))


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_the_run(peace: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    with launch(out, "none", 0, signal.SIGTERM) as started:
        _, said = started.communicate()
    assert started.returncode != 0
    assert said.count("stopped at step 8") == 1
    assert "step-00000008/manifest.json" in state_of(out)
    assert codes(run(group(out))) == GOOD
    assert print_of(out) == print_of(peace("none"))
