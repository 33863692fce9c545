"""Files that are whole or not there, and what killed processes leave behind."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shelf import refusal
from vitrail.config import InputError
from vitrail.files import check_writable, replacing, temporary_folder, write_whole

HOLD = """
import sys, time
from pathlib import Path
from vitrail.files import replacing
with replacing(Path(sys.argv[1])) as part:
    part.write_text("half")
    print(part.parent, flush=True)
    time.sleep(600)
"""


def write(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    out = tmp_path / "a.txt"
    command = [sys.executable, "-c", HOLD, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        write(out, "while it runs")
        assert folder.is_dir()
        process.send_signal(signal.SIGKILL)
    assert folder.is_dir()
    write(tmp_path / "b.txt", "the next")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "b.txt"}
    assert out.read_text() == "while it runs"


def test_folders_of_one_process_do_not_remove_each_other(tmp_path: Path) -> None:
    with temporary_folder("x-", tmp_path) as first, temporary_folder("x-", tmp_path) as second:
        assert first.is_dir()
        assert second.is_dir()
    assert not list(tmp_path.iterdir())


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    others = tmp_path / "others"
    (others / "inside").mkdir(parents=True)
    (tmp_path / "x-elsewher").symlink_to(others)
    (tmp_path / "x-original-data").mkdir()
    (tmp_path / "x-somefile").write_text("a file")
    with temporary_folder("x-", tmp_path):
        pass
    assert len(list(tmp_path.iterdir())) == 4
    assert (others / "inside").is_dir()


def test_errors_of_the_block_are_raised_and_nothing_stays(tmp_path: Path) -> None:
    def fail() -> None:
        with temporary_folder("x-", tmp_path):
            raise FileNotFoundError("of the block")

    with pytest.raises(FileNotFoundError, match="of the block"):
        fail()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert "cannot be written" in refusal(write, tmp_path / "file" / "a.txt", "text")


def test_written_files_have_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "folder") as part:
            part.mkdir(mode=0o700)
            (part / "file").touch(mode=0o600)
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "folder", tmp_path / "folder/file")
    ]
    assert modes == [0o750, 0o640]


@pytest.mark.parametrize(
    "way", [check_writable, lambda p: write_whole(p, "x"), lambda p: write(p, "x")]
)
def test_a_device_or_a_pipe_is_not_replaced_by_a_file(
    tmp_path: Path, way: Callable[[Path], None]
) -> None:
    """As /dev/null was, for root."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(InputError, match="is a device or a pipe"):
            way(path)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, pipe]
