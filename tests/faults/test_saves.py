"""Saves that are killed at every system call, or run into a full disk: no state is ever lost."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.faults.disk import mounted
from vitrail.training.checkpoints.checkpoint_files import (
    SaveError,
    clean_checkpoints,
    latest_checkpoint,
    write_checkpoint,
)
from vitrail.training.checkpoints.state_dicts import save_tensors

CALLS = "write fsync ftruncate rename renameat renameat2 unlink unlinkat rmdir mkdir mkdirat openat"
"""What changes a disk; by strace's names, of which not all machines have all."""

Points = list[tuple[str, int]]
"""System calls, by name and number."""

SAVER = """
import os, sys
from pathlib import Path
from vitrail.training.checkpoints.checkpoint_files import (
    SaveError, clean_checkpoints, prune_checkpoints, write_checkpoint)

folder, case = Path(sys.argv[1]), sys.argv[2]

def write(new):
    (new / "part").mkdir()
    for name in ("a.bin", "part/b.bin"):
        (new / name).write_text("new " * 3000)

try:
    if case == "next":
        write_checkpoint(folder, 2, {"text": "new "}, write)
        prune_checkpoints(folder, keep=2)
    elif case == "replace":
        write_checkpoint(folder, 1, {"text": "new "}, write)
    else:
        clean_checkpoints(folder)
except SaveError as error:
    os.writev(1, [str(error).encode()])  # no write(), which may be made to fail here
    sys.exit(5)
"""


@functools.cache
def can_trace() -> bool:
    """Tell whether there is strace, and the right to use it."""
    if not shutil.which("strace"):
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True).returncode == 0


needs_strace = pytest.mark.skipif(
    not can_trace(), reason="strace is not installed, or may not trace here"
)


def save_with(text: str) -> Callable[[Path], None]:
    def write(new: Path) -> None:
        (new / "part").mkdir()
        for name in ("a.bin", "part/b.bin"):
            (new / name).write_text(text * 3000)

    return write


def prepare(folder: Path, case: str) -> Path:
    """Make a folder as it stands before the case: "next", "replace" or "clean"."""
    for step in {"next": (0, 1), "replace": (1,), "clean": (1,)}[case]:
        write_checkpoint(folder, step, {"text": "old "}, save_with("old "))
    if case == "clean":  # stopped between the renames of a save, after a stopped first write
        (folder / "step-00000001").rename(folder / ".step-00000001.old-01234567")
        new = write_checkpoint(folder / "other", 1, {"text": "new "}, save_with("new ")).path
        new.rename(folder / ".step-00000001.new-01234567")
        (folder / "other").rmdir()
        (folder / ".step-00000002.new-89abcdef").mkdir()
        (folder / ".step-00000002.new-89abcdef" / "a.bin").write_text("new")
    return folder


def trace(folder: Path, case: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the saver under strace, which writes its log beside the folder."""
    run = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-o", f"{folder}.log", *options]
    return subprocess.run(
        [*run, sys.executable, "-c", SAVER, str(folder), case],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
    )


def find_points(folder: Path, case: str) -> Points:
    """List every system call of the case that changes the folder, as its name and number."""
    prepare(folder, case)
    wanted = ",".join(f"?{call}" for call in CALLS.split())
    assert trace(folder, case, f"--trace={wanted}").returncode == 0
    counts: Counter[str] = Counter()
    points = []
    for line in Path(f"{folder}.log").read_text().splitlines():
        if match := re.match(r"\d+ +(\w+)\(", line):
            call = match[1]
            counts[call] += 1
            if str(folder) in line and (call != "openat" or "O_CREAT" in line):
                points.append((call, counts[call]))
    return points


def check(folder: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Hold a folder after a fault against what must be true of it, before and after cleaning."""
    for cleaned in (False, True):
        if cleaned:
            clean_checkpoints(folder)
            assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        found = latest_checkpoint(folder)
        assert found
        assert found.step in {"next": (1, 2), "replace": (1,), "clean": (1,)}[case]
        text = found.metadata["text"]
        assert case != "clean" or text == "new "
        assert case != "next" or text == {1: "old ", 2: "new "}[found.step]
        for name in ("a.bin", "part/b.bin"):
            assert (found.path / name).read_text() == text * 3000
    if case == "next":  # there were two whole ones before, and are two whole ones at all times
        shutil.rmtree(found.path)
        assert latest_checkpoint(folder)
    assert not caplog.messages, "damage under a final name"


def last_of_each(points: Points) -> Points:
    """Keep the last point of each call."""
    return list(dict(points).items())


@needs_strace
@pytest.mark.parametrize("case", ["next", "replace", "clean"])
@pytest.mark.parametrize("some", [last_of_each, pytest.param(list, marks=pytest.mark.slow)])
def test_a_kill_at_any_call_loses_nothing(
    tmp_path: Path, case: str, some: Callable[..., Points], caplog: pytest.LogCaptureFixture
) -> None:
    points = find_points(tmp_path / "first", case)
    renames = sum(call.startswith("rename") for call, _ in points)
    assert renames == {"next": 2, "replace": 2, "clean": 1}[case]
    assert len(points) > {"next": 20, "replace": 20, "clean": 8}[case]
    for call, number in some(points):
        folder = prepare(tmp_path / f"{call}-{number}", case)
        done = trace(folder, case, f"--inject={call}:signal=KILL:when={number}")
        assert done.returncode == -9, (call, number, done)
        check(folder, case, caplog)


@needs_strace
@pytest.mark.parametrize("case", ["next", "replace"])
@pytest.mark.parametrize("some", [last_of_each, pytest.param(list, marks=pytest.mark.slow)])
def test_a_full_disk_at_any_call_loses_nothing(
    tmp_path: Path, case: str, some: Callable[..., Points], caplog: pytest.LogCaptureFixture
) -> None:
    failures = 0
    for call, number in some(find_points(tmp_path / "first", case)):
        folder = prepare(tmp_path / f"{call}-{number}", case)
        span = "" if call == "openat" else "+"  # reading works on a full disk
        done = trace(folder, case, f"--inject={call}:error=ENOSPC:when={number}{span}")
        assert done.returncode in (0, 5), (call, number, done)
        if done.returncode:
            failures += 1
            step = folder / f"step-0000000{2 if case == 'next' else 1}"
            assert done.stdout.startswith(
                f"{step}: checkpoint not written: No space left on device (needs more than 0.0 MB, "
            )
            assert re.search(r", has [\d,.]+ MB\); older ones are kept$", done.stdout)
        check(folder, case, caplog)
    assert failures >= (11 if some is list else 4)


@needs_strace
@pytest.mark.parametrize("case", ["next", "replace"])
def test_all_is_on_disk_before_it_has_its_name(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "checkpoints"
    find_points(folder, case)
    lines = Path(f"{folder}.log").read_text().splitlines()
    named = next(i for i, line in enumerate(lines) if re.search(r" rename(?:at2?)?\(.*new-", line))
    new = re.findall(r'"(.*?)"', lines[named])[0]
    synced = [re.findall(r" fsync\(\d+<(.*)>", line) for line in lines]
    before = {path for found in synced[:named] for path in found}
    files = {f"{new}/{name}" for name in ("manifest.json", "a.bin", "part", "part/b.bin")}
    assert before == {new, *files} | ({str(folder)} if case == "replace" else set())
    assert next(found for found in synced[named:] if found) == [str(folder)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 300 kB."""
    with mounted(tmp_path / "disk", "300k") as place:
        yield place


NUMBERS = torch.ones(50_000)
WRITERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "safetensors": (lambda new: save_tensors(new / "t", {"a": NUMBERS}), "No space left on device"),
    "torch": (lambda new: torch.save(NUMBERS, new / "t.pt"), "unexpected pos"),
    "python": (lambda new: (new / "t").write_bytes(bytes(200_000)), "No space left on device"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_keeps_the_last_state(small_disk: Path, kind: str) -> None:
    write, said = WRITERS[kind]
    first = write_checkpoint(small_disk, 1, {}, lambda new: void(write(new)), needs=200_000)
    for step in (1, 2):
        with pytest.raises(SaveError, match=rf"{said}.*\(needs more than .*, has 0\.1 MB\)"):
            write_checkpoint(small_disk, step, {}, lambda new: void(write(new)))
        with pytest.raises(SaveError, match=r"No space .*\(needs 0\.2 MB, has 0\.1 MB\)"):
            write_checkpoint(small_disk, step, {}, lambda new: void(write(new)), needs=200_000)
        assert latest_checkpoint(small_disk) == first
        assert list(small_disk.iterdir()) == [first.path]


def void(_: object) -> None:
    """Take a value that is not needed."""
