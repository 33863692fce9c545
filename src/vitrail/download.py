"""Download files into a cache: resumed, verified, by one process at a time.

A download is `NAME.part` until it is complete and verified; beside it `NAME.lock` makes other
processes wait and holds the server's description of the file, so that a later call knows whether it
can resume.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from vitrail.config import InputError
from vitrail.files import sync

CHUNK = 1 << 20
TIMEOUT = 10.0  # seconds without a byte after which a connection is closed
ATTEMPTS = 4  # attempts in a row without progress
PATIENT = 8  # the same of a reader, whose caller has worked for hours: about a minute
PAUSE = 0.5  # seconds before the second attempt; doubled before each further one

Report = Callable[[int, int | None], None]  # called with the bytes so far and in total


class MissingError(InputError):
    """The server answers, but does not have the file."""


class _Again(Exception):
    """The connection failed; another attempt may succeed."""


class _Failed(Exception):
    """The network failed; the user may get the file in another way."""


def cache_folder() -> Path:
    """Return the folder of downloads: $VITRAIL_CACHE, or `vitrail` in the user's cache folder."""
    if own := os.environ.get("VITRAIL_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored, by the XDG specification.
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "vitrail"


def fetch(url: str, target: Path, *, size: int | None = None, sha256: str | None = None) -> Path:
    """Download a file unless it exists, and verify it either way.

    Size and hash are checked if given; the size that the server states always is.
    """
    if not url.startswith(("https://", "http://")):
        raise InputError(f"expected an https:// address, got {url!r}")
    by_hand = f"; to put it there by hand, save {url} as {target}"
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.part")
            with _locked(part) as lock:
                if not target.exists():  # no other process fetched it while this one waited
                    _download(url, part, lock, size)
                    if problem := _problem(part, size, sha256):
                        part.unlink()
                        raise InputError(f"{url}: {problem}; it was not kept, try again")
                    _put(part, target)
                    return target
        if problem := _problem(target, size, sha256):  # may be the user's own file: not replaced
            raise InputError(f"{target}: {problem}; remove it to have it downloaded again")
    except OSError as error:
        hint = "free some space, or set VITRAIL_CACHE to another folder"
        raise InputError(f"cannot write {target}: {error.strerror}; {hint}{by_hand}") from None
    except _Failed as error:
        raise InputError(f"{error}{by_hand}") from None
    return target


class RemoteReader:
    """A file on a server, read from front to back over as many connections as it takes."""

    def __init__(self, url: str, start: int = 0) -> None:
        self._url, self._at, self._answer = url, start, None
        self._total: int | None = None
        self._known = ""

    def read(self, size: int) -> bytes:
        """Read at most so many bytes; none at the end. InputError if the server stays away."""
        failures = 0
        while True:
            try:
                if self._answer is None:
                    self._connect()
                piece = _read(self._answer, size)
                if not piece and self._at < (self._total or 0):
                    raise _Again(f"the connection ended at {self._at:,} of {self._total:,} bytes")
                self._at += len(piece)
                return piece
            except _Again as problem:
                self.close()
                failures += 1
                if failures >= PATIENT:
                    text = f"{self._url}: {problem}, {PATIENT} times in a row"
                    raise InputError(text) from None
                time.sleep(PAUSE * 2 ** (failures - 1))

    def close(self) -> None:
        """Close the connection, if one is open."""
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def _connect(self) -> None:
        self._answer = answer = _open(self._url, self._at, begun=True)
        start, total = _extent(answer.status, answer.headers)
        known = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        if self._known and (known, total) != (self._known, self._total):
            raise InputError(f"{self._url} changed on the server while it was read")
        self._known, self._total = known, total
        skip = self._at - max(start, 0)  # all of it, where the server knows no ranges
        while skip > 0:
            if not (piece := _read(answer, min(skip, CHUNK))):
                raise _Again(f"the connection ended before byte {self._at:,}")
            skip -= len(piece)


def _problem(path: Path, size: int | None, sha256: str | None) -> str:
    """Describe what is wrong with a file; empty if nothing is."""
    actual = path.stat().st_size
    if size is not None and actual != size:
        return f"expected {size:,} bytes, got {actual:,}"
    if sha256 is None:
        return ""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    wanted = sha256.lower()
    return "" if found == wanted else f"expected the SHA-256 {wanted}, got {found}"


@contextmanager
def _locked(part: Path) -> Iterator[IO[str]]:
    """Wait until no other process downloads the file, and make others wait."""
    import fcntl  # here, because Windows has none and needs the rest of the package

    path = part.with_suffix(".lock")
    while True:
        with path.open("a+", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock.fileno()).st_nlink == 0:
                continue  # its last holder has removed it
            try:
                yield lock
            finally:
                if not part.exists() or part.stat().st_size == 0:  # nothing to resume
                    part.unlink(missing_ok=True)
                    path.unlink()
            return


def _put(part: Path, target: Path) -> None:
    """Rename a complete file into place, durably."""
    part.replace(target)
    sync(target.parent)


def _download(url: str, part: Path, lock: IO[str], size: int | None) -> None:
    """Complete the partial file, over as many connections as it takes."""
    failures, most = 0, part.stat().st_size if part.exists() else 0
    while True:
        try:
            with part.open("ab") as file, _progress(part.stem) as report:
                _receive(url, file, lock, size, report)
                file.flush()
                os.fsync(file.fileno())
            return
        except _Again as problem:
            now = part.stat().st_size
            failures = 0 if now > most else failures + 1
            most = max(most, now)
            if failures >= ATTEMPTS:
                raise _Failed(f"{url}: {problem}, {ATTEMPTS} times in a row") from None
            time.sleep(PAUSE * 2 ** max(failures - 1, 0))


def _receive(url: str, file: IO[bytes], lock: IO[str], size: int | None, report: Report) -> None:
    """Read from one connection to the file's end; resume if the file on the server is the same."""
    there = file.tell()
    lock.seek(0)
    known = lock.read()
    if there and known.endswith(f" {there}"):
        return  # complete: the last process stopped between the last byte and the rename
    with _open(url, there if known else 0, begun=there > 0) as answer:
        status, headers = answer.status, answer.headers
        start, total = _extent(status, headers)
        said = f"{headers.get('ETag') or headers.get('Last-Modified') or ''} {total or ''}"
        if status == 206 and (start != there or said != known):
            _forget(file, lock)
            raise _Again("the file changed on the server")
        if status != 206:
            _forget(file, lock)
            lock.write(said)
            lock.flush()
            there = 0
        if None not in (size, total) and size != total:
            raise InputError(f"{url}: expected {size:,} bytes, the server has {total:,}")
        _check_space(file, (total or 0) - there)
        while piece := _read(answer, CHUNK):
            file.write(piece)
            there += len(piece)
            report(there, total)
    if total is not None and there < total:
        raise _Again(f"the connection ended after {there:,} of {total:,} bytes")


def _forget(file: IO[bytes], lock: IO[str]) -> None:
    """Start again from nothing."""
    file.truncate(0)
    file.seek(0)
    lock.truncate(0)


def _open(url: str, start: int, *, begun: bool) -> Any:
    """Request a file from a byte on; raise InputError where another attempt would not help."""
    request = Request(url, headers={"User-Agent": "vitrail", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        return urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the file is another, shorter one now
            return _open(url, 0, begun=begun)
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _Again(f"the server answers {error.code} {error.reason}") from None
        kind = MissingError if error.code in (403, 404, 410) else InputError
        raise kind(f"{url}: the server answers {error.code} {error.reason}") from None
    except URLError as error:
        if begun:  # the network worked a moment ago
            raise _Again(f"the connection failed ({_reason(error)})") from None
        raise _Failed(_unreachable(url, error)) from None
    except (OSError, HTTPException) as error:
        raise _Again(f"the connection failed ({_reason(error)})") from None


def _unreachable(url: str, error: Exception) -> str:
    return f"cannot reach {url.split('/')[2]} ({_reason(error)}): is there a network?"


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return text.splitlines()[0]


def _extent(status: int, headers: HTTPMessage) -> tuple[int, int | None]:
    """Return where a response starts, and the length of the whole file if the server says so."""
    with suppress(ValueError, AttributeError):  # no header, or none that says so
        if status != 206:
            return 0, int(headers.get("Content-Length", ""))
        span, _, total = headers["Content-Range"].removeprefix("bytes ").partition("/")
        return int(span.split("-")[0]), int(total)
    return (-1 if status == 206 else 0), None


def _read(answer: Any, size: int) -> bytes:
    try:
        return answer.read1(size)
    except (OSError, HTTPException) as error:
        raise _Again(f"the connection broke ({_reason(error)})") from None


def _check_space(file: IO[bytes], needed: int) -> None:
    """Check that the disk has space for a file, before an hour of download."""
    free = shutil.disk_usage(os.path.dirname(file.name)).free
    if needed > free:
        space = f"{needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free"
        raise OSError(errno.ENOSPC, f"no space left ({space})")


@contextmanager
def _progress(name: str) -> Iterator[Report]:
    """Show a progress bar on stderr if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda there, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda there, total: bar.update(task, completed=there, total=total)


def fetch_from_hub(
    repository: str, name: str, *, revision: str | None = None, cache: Path | None = None
) -> Path | None:
    """Download one file of a Hugging Face repository; None if the repository does not have it.

    Files in the hub's own cache (or in `cache`) are used without asking the network.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, errors
    except ImportError:
        raise InputError("hf: and timm: need another package: pip install 'vitrail[hub]'") from None
    where = f"{repository}@{revision}" if revision else repository
    place = {"revision": revision, "cache_dir": cache}
    offline = constants.HF_HUB_OFFLINE
    try:
        cached = hub.try_to_load_from_cache(repository, name, **place)
        if cached is not None:
            return Path(cached) if isinstance(cached, str) else None
        if not offline:
            # The hub's library tries for 24 s if there is no network.
            knock(constants.ENDPOINT, otherwise="write file:FOLDER")
        return Path(hub.hf_hub_download(repository, name, **place))
    except InputError:
        raise
    except errors.LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        raise InputError(f"{name} of {where} is not in the hub's cache, and {why}") from None
    except errors.EntryNotFoundError:
        return None
    except errors.GatedRepoError:
        raise InputError(
            f"{where} is gated: accept its license at huggingface.co/{repository}, then run "
            "`hf auth login`, or set HF_TOKEN"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise MissingError(f"the hub has no {where}, or not for everyone") from None
    except Exception as error:  # whatever its HTTP library raises, which changes with versions
        raise InputError(f"cannot fetch {name} of {where}: {_reason(error)}") from None


def knock(address: str, *, otherwise: str) -> None:
    """Raise InputError at once if a host cannot be reached; any response will do.

    `otherwise` says what to do without it.
    """
    try:
        urlopen(Request(address, method="HEAD"), timeout=TIMEOUT / 2).close()
    except HTTPError as error:
        error.close()
    except (OSError, HTTPException) as error:
        raise InputError(f"{_unreachable(address, error)}; or {otherwise}") from None
