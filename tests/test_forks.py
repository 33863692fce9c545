"""What starts processes for other tests is clean, and never waits for ever."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests import forks
from tests.forks import Ended, in_processes


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_processes_begin_with_one_thread() -> None:
    assert in_processes(count_threads) == [Ended(0, 1), Ended(0, 1)]


def sleep_for_ever() -> None:
    time.sleep(1000)


def test_processes_that_hang_show_their_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "LIMIT", 2.0)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)process 0.*in sleep_for_ever.*process 1"):
        in_processes(sleep_for_ever)


def die_in_one() -> None:
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    sleep_for_ever()


def test_a_process_that_outlives_a_failure_shows_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "GRACE", 1.0)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)process 0, .*-9.*in sleep_for_ever"):
        in_processes(die_in_one)
