"""One run a folder: a second is refused, and nothing that has died stops a third."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from vitrail.config import InputError
from vitrail.training.checkpoints.run_lock import run_lock

HOLD = """
import os, sys, time
from pathlib import Path
from vitrail.training.checkpoints.run_lock import run_lock

with run_lock(Path(sys.argv[1])):
    child = os.fork() if "fork" in sys.argv else 0
    if "fork" in sys.argv and not child:
        time.sleep(60)
    print(child, flush=True)
    sys.stdin.read()
    if "raise" in sys.argv:
        raise SystemExit(3)
"""


@contextmanager
def holder(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a process that holds the folder until its input ends; give it and its child's number."""
    run = [sys.executable, "-c", HOLD, str(folder), *words]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process, int(process.stdout.readline())


def test_a_new_folder_that_got_nothing_is_removed(tmp_path: Path) -> None:
    with run_lock(tmp_path / "new"):
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.lock"]
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with run_lock(tmp_path / "old"), run_lock(tmp_path / "used"):
        (tmp_path / "used" / "config.yaml").touch()
    assert (tmp_path / "old").exists()
    assert (tmp_path / "used" / "config.yaml").exists()


def test_a_folder_of_others_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with run_lock(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def is_free(folder: Path) -> bool:
    try:
        with run_lock(folder):
            return True
    except InputError:
        return False


def lock_fails(*_: object) -> NoReturn:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with holder(folder) as (process, _):
        with pytest.raises(InputError) as caught, run_lock(folder):
            pass
        said = str(caught.value)
        assert re.fullmatch(
            rf"{folder} is in use by process {process.pid} on {re.escape(socket.gethostname())} "
            r"since (\d{4}-\d\d-\d\d )?\d\d:\d\d; wait for it or choose another --out",
            said,
        )
        with pytest.raises(InputError, match=re.escape(said)), run_lock(folder):
            pass  # being refused has not changed who holds it
        assert is_free(tmp_path / "new" / "other")
    assert is_free(folder)


@pytest.mark.parametrize("end", ["", "raise"])
def test_the_end_of_a_run_frees_its_folder(tmp_path: Path, end: str) -> None:
    with holder(tmp_path, end) as (process, _):
        assert not is_free(tmp_path)
        process.communicate(timeout=30)
    assert process.returncode == (3 if end else 0)
    assert not (tmp_path / "run.lock").exists()
    assert is_free(tmp_path)


def test_a_killed_run_stops_nobody(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        process.kill()
    assert json.loads((tmp_path / "run.lock").read_bytes())["pid"] == process.pid
    assert is_free(tmp_path)


def test_a_worker_that_outlives_its_run_stops_nobody(tmp_path: Path) -> None:
    with holder(tmp_path, "fork") as (process, child):
        try:
            assert not is_free(tmp_path)  # which the child's closing has not changed
            process.kill()
            process.wait(timeout=30)
            os.kill(child, 0)  # it lives
            assert is_free(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_leaves_the_block_frees_nothing(tmp_path: Path) -> None:
    """Nor does it close or empty what has its parent's file number in it by then."""
    leave = "kept = open(sys.argv[1] + '/kept', 'w'); print('words', file=kept, flush=True)"
    code = HOLD.replace("time.sleep(60)", f"{leave}; sys.exit()")
    run = [sys.executable, "-c", code.replace("print(child", "os.waitpid(child, 0); print(child")]
    with subprocess.Popen(
        [*run, str(tmp_path), "fork"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert not is_free(tmp_path)
        assert json.loads((tmp_path / "run.lock").read_bytes())["pid"] == process.pid
    assert (tmp_path / "kept").read_text() == "words\n"


def test_one_process_holds_a_folder_once(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        assert not is_free(tmp_path)
        with run_lock(tmp_path / "other"):
            assert not is_free(tmp_path / "other")
        assert is_free(tmp_path / "other")
    assert is_free(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"pid": "x"}'])
def test_a_lock_with_any_text_is_understood(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.lock").write_text(text, encoding="latin-1")
    with (tmp_path / "run.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="in use by another process; wait"), run_lock(tmp_path):
            pass
    assert is_free(tmp_path)


@pytest.mark.parametrize("content", [b"[]", b"\xff", b"poetry 1.8\n", b'{"name": 1}'])
def test_a_strangers_lock_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.lock").write_bytes(content)
    with (
        pytest.raises(InputError, match=r"run\.lock was not written by vitrail; choose another"),
        run_lock(tmp_path),
    ):
        pass
    assert (tmp_path / "run.lock").read_bytes() == content


def test_a_run_of_another_day_has_its_date(tmp_path: Path) -> None:
    start = datetime(2020, 2, 29, 9, 12) + timedelta(seconds=5)
    note = {"pid": 812, "host": "a", "since": start.timestamp()}
    (tmp_path / "run.lock").write_text(json.dumps(note))
    with (tmp_path / "run.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = "in use by process 812 on a since 2020-02-29 09:12; wait"
        with pytest.raises(InputError, match=said), run_lock(tmp_path):
            pass


def test_a_folder_that_cannot_be_held_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: cannot hold a run"), run_lock(tmp_path / "file"):
        pass


class TestWithoutLocks:
    """Where the file system has none, process numbers tell."""

    @pytest.fixture(autouse=True)
    def _no_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fcntl, "flock", lock_fails)

    def note(self, folder: Path, pid: int, host: str | None = None) -> None:
        note = {"pid": pid, "host": host or socket.gethostname(), "since": 0.0}
        (folder / "run.lock").write_text(json.dumps(note))

    def test_it_is_said(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with run_lock(tmp_path):
            assert json.loads((tmp_path / "run.lock").read_bytes())["pid"] == os.getpid()
        (line,) = caplog.messages
        assert "no file locks here ([Errno 37] No locks available)" in line
        assert not (tmp_path / "run.lock").exists()

    def test_a_living_process_is_respected(self, tmp_path: Path) -> None:
        self.note(tmp_path, os.getppid())
        said = rf"process {os.getppid()} on .*; if it has ended, delete {tmp_path}/run\.lock"
        with pytest.raises(InputError, match=said), run_lock(tmp_path):
            pass

    def test_a_dead_process_is_not(self, tmp_path: Path) -> None:
        with subprocess.Popen([sys.executable, "-c", ""]) as process:
            pass
        self.note(tmp_path, process.pid)
        assert is_free(tmp_path)

    def test_our_own_number_is_a_dead_process(self, tmp_path: Path) -> None:
        self.note(tmp_path, os.getpid())
        assert is_free(tmp_path)

    def test_another_machine_is_respected(self, tmp_path: Path) -> None:
        self.note(tmp_path, 2**22, host="elsewhere")
        with pytest.raises(InputError, match="in use by process 4194304 on elsewhere since"):
            run_lock(tmp_path).__enter__()
