"""Bytes of shards, wherever they are: on this machine, on a server, or where fsspec can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from vitrail.config import InputError
from vitrail.download import MissingError, RemoteReader, fetch
from vitrail.files import replacing
from vitrail.text import show

_PIECE = 1 << 18  # bytes read at a time


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class ForwardBytes:
    """A shard that is read from front to back, in large pieces."""

    def __init__(self, shard: str, start: int = 0) -> None:
        self.size: int | None = None
        self._shard, self._start = shard, start
        self._data = bytearray()  # from `_start` on
        self._reader = _open_at(shard, start)

    def read(self, size: int, at: int) -> bytes:
        """Read so many bytes from a place on, never one before the last; fewer only at the end."""
        try:
            while len(self._data) < at + size - self._start:
                skipped = min(at - self._start, len(self._data))
                del self._data[:skipped]
                self._start += skipped
                piece = self._reader.read(max(_PIECE, size))
                if not piece:
                    self.size = self._start + len(self._data)
                    break
                self._data += piece
        except InputError:
            raise
        except Exception as error:  # whatever the library of a file system raises
            raise _unreadable(self._shard, error) from None
        return bytes(self._data[at - self._start : at - self._start + size])

    def close(self) -> None:
        """Close the file or connection."""
        self._reader.close()


def _open_at(shard: str, start: int) -> _Reader:
    if shard.startswith(("https://", "http://")):
        return RemoteReader(shard, start)
    try:
        file = open_address(shard) if "://" in shard else open(shard, "rb", buffering=0)  # noqa: SIM115
        file.seek(start)
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(shard, error) from None
    return file


def _unreadable(shard: str, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    where = shard if "://" in shard else show(Path(shard))
    return InputError(f"cannot read {where}: {' '.join(reason.split())[:200]}")


def open_address(address: str) -> Any:
    """Open a file by fsspec, such as one of s3:// or gs://."""
    check_address(address)
    import fsspec

    return fsspec.open(address, "rb").open()  # pyright: ignore[reportAttributeAccessIssue]


def check_address(address: str) -> None:
    """Refuse an address whose kind nothing here can read."""
    kind = address.partition("://")[0]
    if kind in ("https", "http"):
        return
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        raise InputError(f"{kind}:// needs another package: pip install fsspec") from None
    try:
        get_filesystem_class(kind)
    except ImportError as error:  # such as "Install s3fs to access S3"
        raise InputError(f"{address}: {str(error).partition(chr(10))[0]}") from None
    except ValueError:
        raise InputError(f"{address}: nothing here can read {kind}://") from None


def fetch_address(address: str, target: Path) -> Path:
    """Download a file unless it is there; MissingError if the other side does not have it."""
    if address.startswith(("https://", "http://")):
        return fetch(address, target)
    if not target.exists():
        try:
            file = open_address(address)
        except FileNotFoundError:
            raise MissingError(f"no file {address}") from None
        with file, replacing(target) as part, part.open("wb") as copy:
            while piece := file.read(1 << 20):
                copy.write(piece)
    return target
