"""A disk that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk of a size such as 300k in a new folder; skip the test where that can't be."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only, and not everywhere")
    try:
        yield folder
    finally:
        # Lazily, because what a failed test still holds open must not leave the disk behind.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
