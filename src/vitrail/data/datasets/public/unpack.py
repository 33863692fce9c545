"""Unpack untrusted archives: only regular files, only below the target, and not too much."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from vitrail.config import InputError

EXPANSION = 10
"""How many times its own size an archive may unpack to; images hardly compress."""
EXPANSION_FREE = 100_000_000
"""Bytes beyond that which any archive may unpack to."""
_BLOCK = 4096  # bytes that the smallest file takes on a disk

_Members = Iterator[tuple[str, int, IO[bytes] | None]]


def unpack(archive: Path, target: Path, *, only: str = "") -> None:
    """Unpack a tar (gzipped or not) or zip archive into a folder, or only one of its files."""
    try:
        room = EXPANSION * archive.stat().st_size + EXPANSION_FREE
        members = _zip_members(archive) if archive.suffix == ".zip" else _tar_members(archive, room)
        for name, size, stream in members:
            room -= max(size, _BLOCK)
            if room < 0:
                raise InputError("refused: it holds far more than its own size")
            if stream is None or (only and name != only):
                continue
            place = target / _checked(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)
    except InputError as error:
        raise InputError(f"{archive}: {error}") from None
    except FileExistsError as error:
        raise InputError(f"{archive}: refused: {error.filename} is in it twice") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{archive}: is damaged ({error}); remove it and try again") from None
    except (OSError, RuntimeError) as error:  # a full disk; a zip that is encrypted
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{archive}: cannot unpack to {target}: {why}") from None
    if only and not (target / only).is_file():
        raise InputError(f"{archive}: expected {only} in it")


def _checked(name: str) -> PurePosixPath:
    """Check that a name does not lead out of the folder, on any system."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or set(name) & set("\\:\0"):
        raise InputError(f"refused: {name!r} would be written outside of the folder")
    return path


def _tar_members(path: Path, room: int) -> _Members:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        bounded = cast(Any, _Bounded(cast(IO[bytes], file), room))
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for member in archive:
                if not member.isreg() and not member.isdir():
                    raise InputError(f"refused: {member.name!r} is a link or a device")
                yield member.name, member.size, archive.extractfile(member)


class _Bounded:
    """A file that raises an error before too much is read; headers count too."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        self._file, self._room = file, room

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        self._room -= len(piece)
        if self._room < 0:
            raise InputError("refused: it holds far more than its own size")
        return piece


def _zip_members(path: Path) -> _Members:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.external_attr >> 28 == 0o12:
                raise InputError(f"refused: {member.filename!r} is a link")
            if member.is_dir():
                yield member.filename, 0, None
            else:
                with archive.open(member) as stream:
                    yield member.filename, member.file_size, stream
