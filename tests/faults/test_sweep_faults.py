"""A sweep that is killed goes on with the same command, and ends with the same bytes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.material import ROOT
from vitrail.studies.engine.sweep import sweep

MODEL = "ViT/4@8,depth=1,width=16,heads=2,mlp=32,channels=1"
BASE = {
    "data": "digits", "model": MODEL, "batch": 16, "steps": 600, "eval_every": "100 %",
    "save_every": "40 steps", "log_every": 10,
}  # fmt: skip


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    words = [
        f"--{name.replace('_', '-')}={value}" for name, value in BASE.items() if name != "data"
    ]
    command = [sys.executable, "-m", "vitrail", "sweep", "digits", *words, "--vary", "lr=1e-3,2e-3"]
    return subprocess.Popen(
        [*command, "--parallel", "2", "--out", str(out), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def saved(out: Path) -> set[Path]:
    return {path for path in out.glob("runs/*/checkpoints/*") if path.name[0] != "."}


def wait_for_progress(out: Path, process: subprocess.Popen[str], known: set[Path]) -> None:
    """Wait until a run has saved something that is not known."""
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        if saved(out) - known:
            return
        time.sleep(0.01)
    raise AssertionError(f"no run of {out} has got on: {process.communicate()}")


@pytest.mark.slow
def test_killed_and_stopped_a_sweep_ends_with_the_same_table(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = start(out)
    wait_for_progress(out, process, set())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(1)  # for its workers, who learn of it
    seen = saved(out)
    assert not (out / "table.csv").exists()

    process = start(out)
    wait_for_progress(out, process, seen)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == (
        "vitrail: stopped; its runs are saved: run the same command again to resume"
    )

    process = start(out)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert any("resuming" in path.read_text() for path in out.glob("runs/*/log.txt"))
    whole = sweep(BASE, vary={"lr": [1e-3, 2e-3]}, out=tmp_path / "whole", parallel=1)
    assert (out / "table.csv").read_bytes() == (tmp_path / "whole" / "table.csv").read_bytes()
    assert whole.failed == 0


def test_a_worker_that_dies_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell's process is killed, as by the system for want of memory; the other one goes on."""
    (tmp_path / "deadly.py").write_text(
        "import os, signal, pathlib\n"
        "def measure(run):\n"
        "    if 'lr=0.001' in str(run) and not pathlib.Path('again').exists():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 1.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT / 'src'}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = {"vary": {"lr": [1e-3, 2e-3]}, "measures": ["deadly:measure"], "parallel": 2}
    base = {**BASE, "steps": 2}
    result = sweep(base, **words, out=tmp_path / "sweep")
    assert [row["state"] for row in result.rows] == ["failed", "done"]
    assert result.rows[0]["error"] == "its process ended: SIGKILL (perhaps out of memory)"
    Path("again").touch()
    again = sweep(base, **words, out=tmp_path / "sweep")
    assert [row["measure"] for row in again.rows] == [1.0, 1.0]
