"""Atomic writes: a file or folder is written beside its place, then moved into it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vitrail.config import InputError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole, or not at all.

    What a killed process leaves behind has a fixed name, which the next write reuses.
    """
    part = path.with_name(f".{path.name}.new")
    try:
        _check_special(path)
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Refuse a file, or a folder, that can't be written, before hours of work; make nothing."""
    if not path.name and not folder:
        raise InputError(f"expected the name of a file to write, got {str(path)!r}")
    _check_special(path)
    if path.exists() and path.is_dir() != folder:
        raise InputError(f"{path} is a {'file' if folder else 'folder'}; choose another name")
    there = next(
        each for each in (path / "_" if folder else path).absolute().parents if each.exists()
    )
    if not there.is_dir():
        raise InputError(f"{path} cannot be written: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):  # also for root, where the disk is read-only
        raise InputError(f"{path} cannot be written: {there} is not writable")


def _check_special(path: Path) -> None:
    """Refuse a device or a pipe: a file would take its place, for root also that of /dev/null."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is a device or a pipe, which would be replaced by a file")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write a file or a folder to, which then replaces `path`.

    It has the same suffix. An existing file is kept if anything fails; an existing folder is
    refused.
    """
    _check_special(path)
    if path.is_dir():
        raise InputError(f"{path} is an existing folder; choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(".vitrail-", path.parent) as beside:
            part = beside / path.name
            yield part
            for file in (part, *part.rglob("*")) if part.is_dir() else (part,):
                permit(file)  # as safetensors does not
                sync(file)
            part.replace(path)
            sync(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written: {reason}") from None


def replace_folder(new: Path, folder: Path) -> None:
    """Put a finished folder, named `.NAME.new-` and eight letters, in the place of NAME.

    NAME is renamed to `.NAME.old-…`, the new one to NAME, then the old one is removed. Wherever
    that stops, NAME is the old folder or the new one, or, between the two renames, is missing while
    both stand beside it: there `find_stranded` finds the new one, and `settle_folder` finishes.
    """
    old = new.with_name(f".{folder.name}.old-{new.name[-8:]}")
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)  # `settle_folder` removes what stays of it


def find_stranded(folder: Path) -> Path | None:
    """Find the new folder of a replacement that stopped between its two renames."""
    there = {path.name[-12:]: path for path in _leftovers(folder)}
    return next(
        (there[key] for key in there if key[:3] == "new" and f"old{key[3:]}" in there), None
    )


def settle_folder(folder: Path) -> None:
    """Finish or remove what a stopped replacement left behind."""
    if not folder.exists() and (stranded := find_stranded(folder)):
        stranded.rename(folder)
        sync(folder.parent)
    for path in _leftovers(folder):
        shutil.rmtree(path)


def _leftovers(folder: Path) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.(new|old)-\w{{8}}")
    return [path for path in folder.parent.glob(".*") if pattern.fullmatch(path.name)]


@contextmanager
def temporary_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Make a folder for the block, and remove those that killed processes left with this prefix.

    Each is locked by the process that uses it, and the system releases the lock when that ends.
    """
    for path in parent.glob(f"{prefix}????????"):
        with suppress(OSError), lock_folder(path, wait=False) as locked:
            if locked:
                shutil.rmtree(path)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_folder(folder))
            except FileNotFoundError:  # another process removed it before it was locked
                continue
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            yield folder
            return


@contextmanager
def lock_folder(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a folder, and tell whether that is possible here.

    OSError if it is gone or, without `wait`, if another process has locked it.
    """
    try:
        import fcntl  # here, because Windows has none
    except ImportError:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        os.stat(folder)  # it may have been removed meanwhile
        yield True
    finally:
        os.close(handle)


@contextmanager
def utf8_path(path: Path) -> Iterator[str]:
    """Name an existing file for a library that takes UTF-8 only: by its path, or by /dev/fd."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield f"/dev/fd/{file.fileno()}"
    else:
        yield os.fspath(path)


def permit(path: Path) -> None:
    """Give a private file or folder the permissions that the umask allows."""
    mask = os.umask(0)  # which can't be read otherwise
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some network file systems know no fsync of folders
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)
