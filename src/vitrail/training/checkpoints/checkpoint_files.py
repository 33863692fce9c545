"""Checkpoints on disk, one folder per step: atomic and verified.

A save writes `.step-00000057.new-…`, adds a manifest of sizes and checksums, flushes it to disk and
renames it to `step-00000057`. An older checkpoint of that step is renamed just before, to
`.step-00000057.old-…` with the same ending. So if both exist and the step does not, the save was
killed between its renames, and the new one counts. Other dot names are leftovers.

One process at a time saves to a folder; any number may read it. The newest checkpoint is the one of
the largest step, whatever the clock says.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitrail.config import InputError
from vitrail.files import sync

MANIFEST = "manifest.json"
VERSION = 1

_STEP = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,})")
_ASIDE = re.compile(rf"\.({_STEP.pattern})\.(new|old)-[0-9a-f]{{8}}")

log = logging.getLogger("vitrail")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A verified checkpoint: its step, folder and metadata."""

    step: int
    path: Path
    metadata: dict[str, Any]


class SaveError(InputError):
    """A checkpoint could not be written; older ones are as before."""


class _Damage(Exception):
    """What is wrong with a checkpoint, in a few words."""


def write_checkpoint(
    folder: Path,
    step: int,
    metadata: dict[str, Any],
    write: Callable[[Path], None],
    *,
    needs: int = 0,
) -> SavedCheckpoint:
    """Save a checkpoint: the files that `write` puts into the folder it is given, and metadata.

    A checkpoint of that step is replaced once the new one is complete. If fewer than `needs` bytes
    are free, nothing is written.
    """
    final = folder / _name(step)
    new = folder / f".{final.name}.new-{os.urandom(4).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clean_checkpoints(folder)
        if shutil.disk_usage(folder).free < needs:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        new.mkdir()
        write(new)
        _seal(new, step, metadata)
        for path in (*new.rglob("*"), new):
            sync(path)
        _put(new, final)
    except BaseException as error:
        space = _describe_space(new, needs)
        clean_checkpoints(folder)
        # RuntimeError is what torch says of a full disk.
        if isinstance(error, OSError | RuntimeError | SafetensorError):
            raise SaveError(
                f"{final}: checkpoint not written: {_shorten(error)}{space}; older ones are kept"
            ) from error
        raise
    return SavedCheckpoint(step, final, metadata)


def latest_checkpoint(folder: Path) -> SavedCheckpoint | None:
    """Find the newest undamaged checkpoint; None if there is none at all.

    Damaged ones are skipped with a warning; if all are damaged, that is an error.
    """
    try:
        states = _find_checkpoints(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {_shorten(error)}") from None
    damaged: dict[int, _Damage] = {}
    for step, path in states.items():
        try:
            saved = _verify(path, step)
        except _Damage as damage:
            damaged[step] = damage
            continue
        for other, damage in damaged.items():
            log.warning("checkpoint step %d is damaged (%s), using step %d", other, damage, step)
        return saved
    if damaged:
        some = [f"step {step}: {damage}" for step, damage in damaged.items()][:3]
        listed = "; ".join(some + ["…"] * (len(damaged) > len(some)))
        raise InputError(
            f"no usable checkpoint in {folder}: {len(damaged)} damaged ({listed}); "
            "use --restart to begin again"
        )
    return None


def valid_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """Return all undamaged checkpoints, oldest first; damaged ones are left out with a warning."""
    found: list[SavedCheckpoint] = []
    for step, path in reversed(_find_checkpoints(folder).items()):
        try:
            found.append(_verify(path, step))
        except _Damage as damage:
            log.warning("checkpoint step %d is damaged (%s) and left out", step, damage)
    return found


def prune_checkpoints(folder: Path, keep: int = 2, *, upto: int | None = None) -> None:
    """Delete all checkpoints but the newest `keep`; what can't be deleted is only warned of.

    A checkpoint counts if its manifest and file sizes are right; checksums are not read. Those
    after step `upto` are neither counted nor deleted: a run that fell back knows they are damaged.
    """
    kept = 0
    with _tolerate(folder):
        for step, path in _find_checkpoints(folder).items():
            if upto is not None and step > upto:
                continue
            if kept < keep:
                kept += _is_sound(path, step)
                continue
            with _tolerate(path):
                doomed = folder / f".{_name(step)}.old-{os.urandom(4).hex()}"
                path.rename(doomed)  # gone at once for readers, and for a kill amid the deletion
                _delete(doomed)


def clean_checkpoints(folder: Path) -> None:
    """Finish or remove what killed saves left behind; what can't be removed is warned of."""
    with _tolerate(folder):
        for step, path in _find_checkpoints(folder).items():
            if path.name != _name(step):
                path.rename(folder / _name(step))
                sync(folder)
        for path in folder.glob(".*"):
            if _ASIDE.fullmatch(path.name):
                with _tolerate(path):
                    _delete(path)


@contextmanager
def _tolerate(path: Path) -> Iterator[None]:
    """Turn an OSError into a warning: no run stops over housekeeping."""
    try:
        yield
    except OSError as error:
        log.warning("%s: could not be cleaned up: %s", path, _shorten(error))


def _name(step: int) -> str:
    assert step >= 0
    return f"step-{step:08d}"


def _find_checkpoints(folder: Path) -> dict[int, Path]:
    """Map steps to their checkpoints, damaged or not, newest first."""
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return {}
    found: dict[int, str] = {}
    for name in names:
        if state := _STEP.fullmatch(name):
            found[int(state[1])] = name
        elif (aside := _ASIDE.fullmatch(name)) and aside[3] == "new":
            old = name.replace(".new-", ".old-")
            if aside[1] not in names and old in names:  # a save stopped between its renames
                found[int(aside[2])] = name
    return {step: folder / found[step] for step in sorted(found, reverse=True)}


def _seal(new: Path, step: int, metadata: dict[str, Any]) -> None:
    """Write the manifest of all files in the folder, ending with its own checksum."""
    assert not (new / MANIFEST).exists()
    files = {
        path.relative_to(new).as_posix(): {"bytes": path.stat().st_size, "sha256": _hash(path)}
        for path in sorted(new.rglob("*"))
        if path.is_file()
    }
    data = {"version": VERSION, "step": step, "metadata": metadata, "files": files}
    body = json.dumps(data, indent=2).removesuffix("\n}").encode() + b",\n"
    (new / MANIFEST).write_bytes(body + _end_of(body))


def _end_of(body: bytes) -> bytes:
    return f'  "checksum": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put(new: Path, final: Path) -> None:
    """Move a finished checkpoint to its name."""
    old = final.with_name(new.name.replace(".new-", ".old-"))
    replaces = os.path.lexists(final)
    if replaces:
        sync(final.parent)  # so that no power cut leaves neither
        final.rename(old)
    new.rename(final)
    sync(final.parent)
    if replaces:
        with _tolerate(old):
            _delete(old)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_sound(path: Path, step: int) -> bool:
    try:
        _verify(path, step, contents=False)
    except _Damage:
        return False
    return True


def _verify(path: Path, step: int, *, contents: bool = True) -> SavedCheckpoint:
    """Check a checkpoint against its manifest; without `contents`, only the sizes of its files."""
    try:
        if not path.is_dir():
            raise _Damage("is not a folder")
        _check_file(path, MANIFEST)
        text = (path / MANIFEST).read_bytes()
        body = text[: -len(_end_of(b""))]
        if text != body + _end_of(body):
            raise _Damage(f"checksum of {MANIFEST}")
        manifest = json.loads(text)
        if manifest["version"] != VERSION:
            raise _Damage(f"version {manifest['version']}, this vitrail reads {VERSION}")
        if manifest["step"] != step:
            raise _Damage(f"holds step {manifest['step']}")
        for name, noted in manifest["files"].items():
            _check_file(path, name)
            if (size := (path / name).stat().st_size) != noted["bytes"]:
                raise _Damage(f"{name} has {size:_} bytes, not {noted['bytes']:_}")
            if contents and _hash(path / name) != noted["sha256"]:
                raise _Damage(f"checksum of {name}")
    except OSError as error:
        raise _Damage(f"cannot be read: {_shorten(error)}") from None
    return SavedCheckpoint(step, path, manifest["metadata"])


def _check_file(folder: Path, name: str) -> None:
    if not (folder / name).exists():
        raise _Damage(f"{name} is missing")
    if not (folder / name).is_file():
        raise _Damage(f"{name} is not a file")


def _describe_space(new: Path, needs: int) -> str:
    """Say how much space a save needs, or took before it failed, and how much there is."""
    try:
        taken = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
        free = shutil.disk_usage(new.parent).free + taken
    except OSError:
        return ""
    needed = f"{needs / 1e6:,.1f} MB" if needs else f"more than {taken / 1e6:,.1f} MB"
    return f" (needs {needed}, has {free / 1e6:,.1f} MB)"


def _shorten(error: BaseException) -> str:
    """Return the system's message, or the first line of a library's."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return said.splitlines()[0][:120]
