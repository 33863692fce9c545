"""Saved states: whole or not there, every damage found, none lost for clocks or deletes."""

import hashlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from vitrail.config import InputError
from vitrail.training.checkpoints import checkpoint_files as state
from vitrail.training.checkpoints.checkpoint_files import (
    SavedCheckpoint,
    SaveError,
    clean_checkpoints,
    latest_checkpoint,
    prune_checkpoints,
    write_checkpoint,
)

FACTS = {"epoch": 3, "lr": 1e-3, "name": 'a "quoted" é猫\n', "list": [1, None, True, {"a": 0.1}]}


def files(*names: str, text: str = "content") -> Callable[[Path], None]:
    """Make a writer of small files, each with the text and its own name in it."""

    def write(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text} {name}")

    return write


def save(folder: Path, *steps: int, text: str = "content") -> list[SavedCheckpoint]:
    write = files("a.bin", "part/.b", text=text)
    return [write_checkpoint(folder, step, FACTS, write) for step in steps]


def newest_step(folder: Path) -> int | None:
    saved = latest_checkpoint(folder)
    return saved.step if saved else None


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refuse(*_: object, **__: object) -> NoReturn:
    raise PermissionError(13, "Permission denied")


def test_what_was_saved_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    assert latest_checkpoint(folder) is None
    first, second = save(folder, 1, 57)
    assert (
        latest_checkpoint(folder) == second == SavedCheckpoint(57, folder / "step-00000057", FACTS)
    )
    assert first.path.is_dir()
    assert (second.path / "a.bin").read_text() == "content a.bin"
    assert (second.path / "part" / ".b").read_text() == "content part/.b"
    assert names(folder) == ["step-00000001", "step-00000057"]


def test_a_folder_without_states_has_none(tmp_path: Path) -> None:
    for name in ("step-7", "step-000000057", "step-0000000x", ".step-00000001.new-01234567"):
        (tmp_path / name).mkdir()
    (tmp_path / "run.lock").touch()
    assert latest_checkpoint(tmp_path) is None


def test_the_manifest_says_what_there_is(tmp_path: Path) -> None:
    (saved,) = save(tmp_path, 57)
    manifest = json.loads((saved.path / "manifest.json").read_bytes())
    assert manifest.keys() == {"version", "step", "metadata", "files", "checksum"}
    digest = hashlib.sha256(b"content a.bin").hexdigest()
    assert manifest["files"].keys() == {"a.bin", "part/.b"}
    assert manifest["files"]["a.bin"] == {"bytes": 13, "sha256": digest}


def test_files_are_for_all_that_may_read_the_users(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        (saved,) = save(tmp_path, 1)
    finally:
        os.umask(mask)
    assert saved.path.stat().st_mode & 0o777 == 0o750
    assert (saved.path / "manifest.json").stat().st_mode & 0o777 == 0o640


def test_a_state_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    (saved,) = save(tmp_path, 2, text="other")
    assert latest_checkpoint(tmp_path) == saved
    assert (saved.path / "a.bin").read_text() == "other a.bin"
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_what_stands_in_the_place_of_a_state_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "step-00000002").write_text("a file")
    save(tmp_path, 2)
    assert newest_step(tmp_path) == 2
    assert names(tmp_path) == ["step-00000002"]


def test_a_flipped_bit_in_any_byte_is_found(tmp_path: Path) -> None:
    _, newest = save(tmp_path, 1, 2)
    draw = random.Random(0)
    for path in newest.path.rglob("*"):
        if path.is_file():
            right = path.read_bytes()
            for place in range(len(right)):
                wrong = bytearray(right)
                wrong[place] ^= 1 << draw.randrange(8)
                path.write_bytes(wrong)
                assert newest_step(tmp_path) == 1, (path.name, place, wrong[place])
            path.write_bytes(right)
    assert newest_step(tmp_path) == 2


def test_flipped_bits_of_many_bytes_are_found(tmp_path: Path) -> None:
    draw = random.Random(0)
    write_checkpoint(tmp_path, 1, {}, files("a"))
    content = draw.randbytes(1 << 18)
    big = write_checkpoint(tmp_path, 2, {}, lambda new: void((new / "t").write_bytes(content)))
    for _ in range(200):
        bit = draw.randrange(len(content) * 8)
        with (big.path / "t").open("r+b") as file:
            file.seek(bit // 8)
            file.write(bytes([content[bit // 8] ^ 1 << bit % 8]))
            file.flush()
            assert newest_step(tmp_path) == 1, bit
            file.seek(bit // 8)
            file.write(content[bit // 8 : bit // 8 + 1])
    assert newest_step(tmp_path) == 2


def void(_: object) -> None:
    """Take a value that is not needed."""


def seal(path: Path, **changes: object) -> None:
    """Change a manifest and make its checksum right again."""
    data = {**json.loads((path / "manifest.json").read_bytes()), **changes}
    del data["checksum"]
    body = json.dumps(data, indent=2).removesuffix("\n}").encode() + b",\n"
    digest = hashlib.sha256(body).hexdigest()
    (path / "manifest.json").write_bytes(body + f'  "checksum": "{digest}"\n}}\n'.encode())


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("content")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda p: os.truncate(p / "a.bin", 5), "a.bin has 5 bytes, not 13"),
    "longer": (lambda p: os.truncate(p / "a.bin", 14), "a.bin has 14 bytes, not 13"),
    "empty": (lambda p: os.truncate(p / "a.bin", 0), "a.bin has 0 bytes, not 13"),
    "changed": (lambda p: (p / "a.bin").write_text("content b.bin"), "checksum of a.bin"),
    "deleted": (lambda p: (p / "a.bin").unlink(), "a.bin is missing"),
    "nested": (lambda p: shutil.rmtree(p / "part"), "part/.b is missing"),
    "folder for file": (lambda p: replace_by_folder(p / "a.bin"), "a.bin is not a file"),
    "pipe for file": (
        lambda p: ((p / "a.bin").unlink(), os.mkfifo(p / "a.bin")),
        "a.bin is not a file",
    ),
    "file for state": (replace_by_file, "is not a folder"),
    "empty state": (lambda p: (shutil.rmtree(p), p.mkdir()), "manifest.json is missing"),
    "broken link": (lambda p: (shutil.rmtree(p), p.symlink_to("nowhere")), "is not a folder"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
    "empty manifest": (lambda p: os.truncate(p / "manifest.json", 0), "checksum of manifest.json"),
    "short manifest": (lambda p: os.truncate(p / "manifest.json", 99), "checksum of manifest.json"),
    "no JSON": (lambda p: (p / "manifest.json").write_bytes(b"\xff" * 200), "checksum of manifest"),
    "folder for manifest": (lambda p: replace_by_folder(p / "manifest.json"), "json is not a file"),
    "other version": (lambda p: seal(p, version=2), "version 2, this vitrail reads 1"),
    "other step": (lambda p: seal(p, step=3500), "holds step 3500"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_passed_over(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 3500, 4000)
    break_it, said = DAMAGES[damage]
    break_it(tmp_path / "step-00004000")
    assert newest_step(tmp_path) == 3500
    (line,) = caplog.messages
    assert line.startswith("checkpoint step 4000 is damaged (")
    assert said in line
    assert line.endswith("), using step 3500")


def test_an_unreadable_state_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, newest = save(tmp_path, 3500, 4000)
    if os.geteuid():
        (newest.path / "a.bin").chmod(0)
    else:  # nothing is unreadable to root
        read = state._hash
        unreadable = newest.path / "a.bin"
        monkeypatch.setattr(state, "_hash", lambda p: refuse() if p == unreadable else read(p))
    assert newest_step(tmp_path) == 3500
    said = "(cannot be read: Permission denied), using step 3500"
    assert caplog.messages == [f"checkpoint step 4000 is damaged {said}"]


def test_only_damaged_states_are_an_error(tmp_path: Path) -> None:
    for saved in save(tmp_path, 1, 2, 3, 4):
        (saved.path / "a.bin").unlink()
    with pytest.raises(InputError) as caught:
        latest_checkpoint(tmp_path)
    said = "; ".join(f"step {step}: a.bin is missing" for step in (4, 3, 2))
    assert str(caught.value) == (
        f"no usable checkpoint in {tmp_path}: 4 damaged ({said}; …); use --restart to begin again"
    )


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: cannot be read: Not a directory"):
        latest_checkpoint(tmp_path / "file")


def test_order_is_by_step_and_not_by_clock(tmp_path: Path) -> None:
    steps = [9, 10, 99_999_999, 100_000_000, 2**31 - 1, 2**31, 2**40]
    for step in random.Random(0).sample(steps, len(steps)):
        save(tmp_path, step)
    for age, step in enumerate(steps):
        path, clock = tmp_path / f"step-{step:08d}", 4e9 - age * 1e5
        os.utime(path, (clock, clock))  # the newest is the oldest by the clock
        os.utime(path / "manifest.json", (clock, clock))
    found = []
    while step := newest_step(tmp_path):
        found.append(step)
        shutil.rmtree(tmp_path / f"step-{step:08d}")
    assert found == steps[::-1]


def test_pruning_keeps_the_newest_sound_ones(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4, 5, 6)
    os.truncate(tmp_path / "step-00000006" / "a.bin", 1)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    prune_checkpoints(tmp_path, keep=2)
    assert names(tmp_path) == [f"step-0000000{step}" for step in (3, 4, 5, 6)]
    save(tmp_path, 6)
    prune_checkpoints(tmp_path, keep=2)
    assert names(tmp_path) == ["step-00000005", "step-00000006"]
    prune_checkpoints(tmp_path, keep=3)
    assert names(tmp_path) == ["step-00000005", "step-00000006"]
    prune_checkpoints(tmp_path, keep=0)
    assert names(tmp_path) == []
    prune_checkpoints(tmp_path / "nowhere")


def test_pruning_counts_no_state_after_the_present_one(tmp_path: Path) -> None:
    for saved in save(tmp_path, 1, 2, 3, 9):
        if saved.step == 9:  # such that only its checksum tells
            (saved.path / "a.bin").write_text("content b.bin")
    prune_checkpoints(tmp_path, keep=2, upto=3)
    assert names(tmp_path) == ["step-00000002", "step-00000003", "step-00000009"]


@pytest.mark.parametrize("what", ["shutil.rmtree", "pathlib.Path.rename", "os.listdir"])
def test_a_failed_delete_is_only_a_warning(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1, 2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(what, refuse)
        prune_checkpoints(tmp_path, keep=1)
        clean_checkpoints(tmp_path)
    assert caplog.records
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert all("could not be cleaned up: Permission denied" in line for line in caplog.messages)
    assert newest_step(tmp_path) == 3
    save(tmp_path, 3)  # which tries again
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_a_replaced_state_that_cannot_be_deleted_does_not_stop_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        save(tmp_path, 1, text="other")
    assert newest_step(tmp_path) == 1
    assert (tmp_path / "step-00000001" / "a.bin").read_text() == "other a.bin"
    assert len(names(tmp_path)) == 2
    clean_checkpoints(tmp_path)
    assert names(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("failed", [1, 2])
def test_a_failed_rename_loses_nothing(
    tmp_path: Path, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    right, count = Path.rename, 0

    def rename(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        return refuse() if count >= failed else right(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(SaveError, match="not written: Permission denied"):
            save(tmp_path, 1, text="other")
        assert newest_step(tmp_path) == 1
    clean_checkpoints(tmp_path)
    assert newest_step(tmp_path) == 1
    assert names(tmp_path) == ["step-00000001"]


class Stop(Exception):
    """What no save expects."""


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (OSError(28, "No space left on device"), SaveError, "No space left on device (needs"),
        (RuntimeError("[enforce fail] . unexpected pos 1\nmore"), SaveError, "unexpected pos 1 ("),
        (state.SafetensorError("I/O error"), SaveError, "I/O error ("),
        (Stop(), Stop, ""),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, raised: BaseException, expected: type[BaseException], said: str
) -> None:
    (before,) = save(tmp_path, 1)

    def write(folder: Path) -> None:
        (folder / "a.bin").write_bytes(bytes(2_000_000))
        raise raised

    for step in (1, 2):
        with pytest.raises(expected) as caught:
            write_checkpoint(tmp_path, step, {}, write)
        assert said in str(caught.value)
        assert names(tmp_path) == ["step-00000001"]
        assert latest_checkpoint(tmp_path) == before
    if expected is SaveError:
        assert str(caught.value).startswith(f"{tmp_path / 'step-00000002'}: checkpoint not written")
        assert "(needs more than 2.0 MB, has " in str(caught.value)


def test_what_cannot_fit_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=12_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(SaveError) as caught:
        write_checkpoint(tmp_path, 4000, {}, refuse, needs=343_000_000)
    assert str(caught.value) == (
        f"{tmp_path / 'step-00004000'}: checkpoint not written: No space left on device "
        "(needs 343.0 MB, has 12.0 MB); older ones are kept"
    )
    assert names(tmp_path) == []
    write_checkpoint(tmp_path, 4000, {}, files("a"), needs=12_000_000)


def test_a_folder_that_cannot_be_made_is_a_failed_save(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"checkpoint not written: (File exists|Not a directory)"):
        save(tmp_path / "file", 1)


def test_saving_plain_files_needs_no_torch() -> None:
    rooms = ("checkpoint_files", "run_lock")
    modules = ", ".join(f"vitrail.training.checkpoints.{room}" for room in rooms)
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
