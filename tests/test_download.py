"""Downloads from a server on this machine that misbehaves as real ones do."""

import errno
import hashlib
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shelf import BODY, Shelf, refusal, serving
from vitrail import download
from vitrail.download import cache_folder, fetch

HASH = hashlib.sha256(BODY).hexdigest()
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with serving() as shelf:
        yield shelf


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_fetches_once(shelf: Shelf, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a.npz"
    for _ in range(2):
        assert fetch(shelf.url, target, size=len(BODY), sha256=HASH.upper()) == target
        assert target.read_bytes() == BODY
    assert shelf.asked == [("/a.npz", None)]
    assert names(target.parent) == ["a.npz"]


@pytest.mark.parametrize("etag", ['"1"', None])
def test_resumes_after_a_cut(shelf: Shelf, tmp_path: Path, etag: str | None) -> None:
    shelf.etag, shelf.cuts = etag, [300_000, 200_000]
    assert fetch(shelf.url, tmp_path / "a.npz", sha256=HASH).read_bytes() == BODY
    assert [given for _, given in shelf.asked] == [None, "bytes=300000-", "bytes=500000-"]


def test_restarts_where_ranges_are_ignored(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ranges, shelf.cuts = False, [300_000]
    assert fetch(shelf.url, tmp_path / "a.npz", sha256=HASH).read_bytes() == BODY


def test_gives_up_when_nothing_new_comes(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ranges, shelf.cuts = False, [300_000] * 20
    text = refusal(fetch, shelf.url, tmp_path / "a.npz")
    assert "ended after 300,000 of 1,004,000 bytes, 4 times in a row" in text
    assert f"save {shelf.url} as {tmp_path / 'a.npz'}" in text
    assert len(shelf.asked) == 5
    assert not (tmp_path / "a.npz").exists()


@pytest.mark.parametrize("length", [len(BODY), 500_000, 200_000])
def test_restarts_when_the_file_changed(shelf: Shelf, tmp_path: Path, length: int) -> None:
    shelf.cuts = [300_000] * 20
    shelf.ranges = False
    refusal(fetch, shelf.url, tmp_path / "a.npz")
    other = BODY[::-1][:length]
    shelf.files["/a.npz"], shelf.etag, shelf.cuts, shelf.ranges = other, '"2"', [], True
    assert fetch(shelf.url, tmp_path / "a.npz").read_bytes() == other
    assert names(tmp_path) == ["a.npz"]


def test_server_errors_are_tried_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.errors = [500, 503, 429]
    assert fetch(shelf.url, tmp_path / "a.npz").read_bytes() == BODY
    assert len(shelf.asked) == 4


@pytest.mark.parametrize("code", [404, 403, 401])
def test_refusals_are_not_tried_again(shelf: Shelf, tmp_path: Path, code: int) -> None:
    shelf.errors = [code]
    assert f"{shelf.url}: the server answers {code}" in refusal(fetch, shelf.url, tmp_path / "a")
    assert len(shelf.asked) == 1
    assert names(tmp_path) == []


def test_wrong_size_and_hash(shelf: Shelf, tmp_path: Path) -> None:
    target = tmp_path / "a.npz"
    assert "expected 5 bytes, the server has 1,004,000" in refusal(fetch, shelf.url, target, size=5)
    wrong = "0" * 64
    text = refusal(fetch, shelf.url, target, sha256=wrong)
    assert f"expected the SHA-256 {wrong}, got {HASH}" in text
    assert names(tmp_path) == []
    shelf.length = len(BODY) + 1  # the server promises a byte more than it has
    assert "ended after 1,004,000 of 1,004,001 bytes" in refusal(fetch, shelf.url, target)
    target.write_bytes(b"by hand")
    text = refusal(fetch, shelf.url, target, size=len(BODY))
    assert text == (
        f"{target}: expected 1,004,000 bytes, got 7; remove it to have it downloaded again"
    )
    assert target.read_bytes() == b"by hand"


def test_a_server_that_falls_silent(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    shelf.pause = 0.05
    assert fetch(shelf.url, tmp_path / "slow.npz").read_bytes() == BODY
    shelf.pause = 1.0
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    text = refusal(fetch, shelf.url, tmp_path / "silent.npz")
    assert "the connection broke (timed out), 2 times in a row" in text


def test_no_network_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 1e6)  # a second try would never end
    target = tmp_path / "a.npz"
    for host in ("127.0.0.1:9", "nowhere.invalid"):
        url = f"http://{host}/a.npz"
        text = refusal(fetch, url, target)
        assert text.startswith(f"cannot reach {host} (")
        assert text.endswith(
            f"is there a network?; to put it there by hand, save {url} as {target}"
        )
    assert "https://" in refusal(fetch, "file:///etc/passwd", target)


def test_no_space(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        text = refusal(fetch, shelf.url, tmp_path / "a.npz")
    assert "no space left (1 MB needed, 0 MB free); free some space, or set VITRAIL_CACHE" in text

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device; free some" in refusal(fetch, shelf.url, tmp_path / "a.npz")
    (tmp_path / "file").touch()
    assert "cannot write" in refusal(fetch, shelf.url, tmp_path / "file" / "a.npz")


def test_two_processes_download_once(shelf: Shelf, tmp_path: Path) -> None:
    shelf.pause = 0.03
    jobs = [SPAWN.Process(target=fetch, args=(shelf.url, tmp_path / "a.npz")) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0, 0]
    assert len(shelf.asked) == 1
    assert names(tmp_path) == ["a.npz"]


def test_a_killed_download_is_resumed(shelf: Shelf, tmp_path: Path) -> None:
    target, part = tmp_path / "a.npz", tmp_path / "a.npz.part"
    shelf.pause = 0.1
    job = SPAWN.Process(target=fetch, args=(shelf.url, target))
    job.start()
    while not part.exists() or part.stat().st_size == 0:
        time.sleep(0.005)
    assert job.pid is not None
    os.kill(job.pid, signal.SIGKILL)
    job.join()
    there, shelf.pause = part.stat().st_size, 0.0
    assert 0 < there < len(BODY)
    assert fetch(shelf.url, target, sha256=HASH).read_bytes() == BODY
    assert shelf.asked[1:] == [("/a.npz", f"bytes={there}-")]


def test_a_whole_part_is_not_fetched_again(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "a.npz.part").write_bytes(BODY)
    (tmp_path / "a.npz.lock").write_text(f'"1" {len(BODY)}')
    assert fetch(shelf.url, tmp_path / "a.npz", sha256=HASH).read_bytes() == BODY
    assert shelf.asked == []


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("VITRAIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vitrail"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "vitrail"
