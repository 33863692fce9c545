"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrail.config import InputError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole, or not at all.

    What a kill leaves behind has one name, which the next writing takes again.
    """
    part = path.with_name(f".{path.name}.new")
    try:
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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside a path to write a file to, or to make a folder; then it is the path's.

    It ends as the path does. A file that was there stays until then, and for good if anything
    fails; a folder that was there is refused.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder that is there already; choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        part = beside / path.name
        yield part
        for file in (part, *part.rglob("*")) if part.is_dir() else (part,):
            sync(file)
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written: {reason}") from None
    finally:
        with suppress(OSError):
            shutil.rmtree(beside)


def permit(path: Path) -> None:
    """Give a file or folder that was made for its maker alone the rights that are usual."""
    mask = os.umask(0)  # which can't be read otherwise
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def sync(path: Path) -> None:
    """Bring a file or the entries of a folder on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some network file systems know no fsync of folders
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)
