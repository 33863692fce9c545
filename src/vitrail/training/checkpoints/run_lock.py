"""One run a folder: a lock that ends with the process that holds it, however that ends."""

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


@dataclass(frozen=True)
class _Holder:
    """Who holds a folder, for people, and for systems without file locks."""

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
    """Hold a run's folder, which is made if need be; refuse it at once while another run does.

    A folder that was made and got nothing is removed again. Forked children do not hold it: a data
    worker that outlives its run stops no restart.
    """
    owner, new = os.getpid(), not folder.exists()
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
                if new and os.listdir(folder) == [LOCK]:  # still locked, so nobody else is in it
                    (folder / LOCK).unlink()
                    folder.rmdir()
            os.close(handle)


def _let_go() -> None:
    """Close a parent's locks in its forked child, which shares them; the parent's stay locked."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_let_go)


def _lock(handle: int, folder: Path) -> None:
    """Take the lock or refuse; where there are no locks, believe the process number in the file."""
    otherwise = "wait for it or choose another --out"
    try:
        import fcntl  # here, because Windows has none

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _read_holder(folder) or "another process"
        raise InputError(f"{folder} is in use by {holder}; {otherwise}") from None
    except (ImportError, OSError) as error:
        log.warning(
            "%s: no file locks here (%s), so runs are told by process number", folder, error
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
    """Read who holds a folder; None where nobody has said so."""
    try:
        return from_dict(_Holder, json.loads((folder / LOCK).read_bytes()))
    except (OSError, ValueError):  # empty, half written, or not ours
        return None
