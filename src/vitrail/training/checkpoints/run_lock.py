"""One run per folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from vitrail.config import InputError, from_dict, to_dict

LOCK = "run.lock"

log = logging.getLogger("vitrail")
_held: set[int] = set()
_START = b'{"pid":'  # of a lock that is held; of others nothing


@dataclass(frozen=True)
class _Holder:
    """The process that holds a folder, for messages and for systems without file locks."""

    pid: int
    host: str
    since: float

    def __str__(self) -> str:
        start = datetime.fromtimestamp(self.since)
        today = start.date() == datetime.now().date()
        shown = start.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
        return f"process {self.pid} on {self.host} since {shown}"

    def may_live(self) -> bool:
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is another user's
            return True
        return self.pid != os.getpid()  # ours by chance: in a container all runs have one number


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock a run's folder, created if needed; refuse it if another run holds it.

    Where nothing else is written, the folder is left as it was. Forked children do not hold the
    lock, so that a data worker that outlives its run does not block a restart.
    """
    owner, new = os.getpid(), not folder.exists()
    before = set() if new or not folder.is_dir() else set(os.listdir(folder))
    _check_ours(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{folder}: cannot hold a run: {error.strerror}") from None
    try:
        _lock(handle, folder)
    except BaseException:
        os.close(handle)
        raise
    _held.add(handle)
    try:
        _note(handle)
        yield
    finally:
        if os.getpid() == owner:  # not where a forked child leaves this block
            _held.discard(handle)
            with suppress(OSError):
                os.ftruncate(handle, 0)
                if set(os.listdir(folder)) - before == {LOCK}:  # still locked: nobody else is in it
                    (folder / LOCK).unlink()
                    if new:
                        folder.rmdir()
            os.close(handle)


def _check_ours(path: Path) -> None:
    """Refuse a file of that name that somebody else wrote: it would be overwritten."""
    with suppress(OSError):  # there is none, or opening it will say what is wrong
        start = path.read_bytes()[: len(_START)]
        if start != _START[: len(start)]:
            raise InputError(f"{path} was not written by vitrail; choose another --out")


def _let_go() -> None:
    """Close a parent's locks in its forked child; the parent keeps them."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_let_go)


def _lock(handle: int, folder: Path) -> None:
    """Take the lock or refuse; without file locks, trust the process number in the file."""
    otherwise = "wait for it or choose another --out"
    try:
        import fcntl  # here, because Windows has none

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _read_holder(folder) or "another process"
        raise InputError(f"{folder} is in use by {holder}; {otherwise}") from None
    except (ImportError, OSError) as error:
        log.warning(
            "%s: no file locks here (%s); runs are told apart by process number",
            folder,
            error,
        )
        holder = _read_holder(folder)
        if holder and holder.may_live():
            raise InputError(
                f"{folder} is in use by {holder}; {otherwise}; if it has ended, delete "
                f"{folder / LOCK}"
            ) from None


def _note(handle: int) -> None:
    holder = _Holder(os.getpid(), socket.gethostname(), datetime.now().timestamp())
    with suppress(OSError):  # on a full disk the lock holds without it
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(to_dict(holder)).encode())


def _read_holder(folder: Path) -> _Holder | None:
    """Read who holds a folder; None if the file does not say."""
    try:
        return from_dict(_Holder, json.loads((folder / LOCK).read_bytes()))
    except (OSError, ValueError):  # empty, half written, or not ours
        return None
