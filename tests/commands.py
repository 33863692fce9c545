"""Calling the command, and code in a fresh interpreter."""

import subprocess
import sys

import pytest

from vitrail.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Call the command in this process: its exit code, and what it printed to where."""
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def loaded_after(code: str) -> set[str]:
    """Run code in a fresh interpreter and name the top-level modules it leaves loaded."""
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())
