"""The log during a run: who hears it, and that all is as before at its end."""

import logging
import re
import sys

import pytest

from tests.training.logging.outputs import Gone
from vitrail.config import InputError
from vitrail.training.logging.log_setup import log_to, show_log

log = logging.getLogger("vitrail")


def test_lines_go_to_the_file_and_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with log_to(lines.append):
        log.info("resuming at step %d", 57)
        log.warning("100 %")
        log.debug("unseen")
        logging.getLogger("vitrail.deeper").info("too")
        logging.getLogger("other").warning("not ours")
    log.warning("after")
    stamp = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
    assert [re.sub(stamp, "T", line) for line in lines] == [
        "T INFO resuming at step 57",
        "T WARNING 100 %",
        "T INFO too",
    ]
    shown = capsys.readouterr().err
    assert shown.startswith("resuming at step 57\nwarning: 100 %\ntoo\n")
    assert "after" not in lines


def test_handlers_and_level_are_restored() -> None:
    before = log.handlers[:], logging.NOTSET
    with log_to(lambda line: None):
        assert log.level == logging.INFO
        assert len(log.handlers) == len(before[0]) + 2
    assert (log.handlers, log.level) == before
    log.setLevel(logging.ERROR)
    try:
        with log_to(lambda line: None):
            assert log.level == logging.ERROR  # somebody's choice
        assert log.level == logging.ERROR
    finally:
        log.setLevel(logging.NOTSET)


def test_the_level_is_restored_where_runs_overlap() -> None:
    """As two do in threads, of which the first one ends first."""
    first, second = show_log(), show_log()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert log.level == logging.INFO
    second.__exit__(None, None, None)
    assert log.level == logging.NOTSET


@pytest.mark.parametrize("where", ["", "vitrail"])
def test_who_shows_the_log_already_does_not_see_it_twice(
    capsys: pytest.CaptureFixture[str], where: str
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger(where).addHandler(handler)
    try:
        with log_to(lambda line: None):
            log.warning("once")
    finally:
        logging.getLogger(where).removeHandler(handler)
    assert capsys.readouterr().err == "once\n"


def test_a_terminal_that_has_gone_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("sys.stderr", Gone())
    with log_to(lines.append):
        log.warning("still kept")
    assert lines[0].endswith("WARNING still kept")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ZeroDivisionError("a bug"), "Traceback"),
        (InputError("a mistake"), None),
        (KeyboardInterrupt(), None),
        (SystemExit(143), None),
    ],
)
def test_how_a_run_ended_is_kept(
    error: BaseException, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    with pytest.raises(type(error)) as caught, log_to(lines.append):
        raise error
    assert caught.value is error
    first, *rest = lines[0].splitlines()
    assert first.endswith(f"ERROR the run ends here: {type(error).__name__} {error}".rstrip())
    assert bool(rest) == bool(told)
    assert told is None or rest[0].startswith(told)
    assert capsys.readouterr().err == ""  # who catches it shows it
