"""A server on this machine that misbehaves as real ones do, and what its tests share."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from vitrail import download
from vitrail.config import InputError

BODY = bytes(range(251)) * 4000


class Shelf:
    """A server's files and how it behaves."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {"/a.npz": BODY}
        self.asked: list[tuple[str, str | None]] = []
        """Path and range of each request."""
        self.ranges = True
        self.etag: str | None = '"1"'
        self.errors: list[int] = []
        """Answers to the next requests, before it serves."""
        self.cuts: list[int] = []
        """After how many bytes of the next answers the connection ends."""
        self.length: int | None = None
        """What it says of the length, if not the truth."""
        self.pause = 0.0
        """Seconds before each piece of an answer."""

    @property
    def url(self) -> str:
        return f"{self.address}/a.npz"


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that go away are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    def __init__(self, shelf: Shelf, *args: Any) -> None:
        self.shelf = shelf
        super().__init__(*args)

    def do_HEAD(self) -> None:
        """Answer as the Hugging Face hub does before a download."""
        body = self.shelf.files.get(self.path)
        self.send_response(200 if body is not None else 404)
        if body is None:
            there = any(file.startswith("/org/name/") for file in self.shelf.files)
            there = there and self.path.startswith("/org/name/")
            self.send_header("X-Error-Code", "EntryNotFound" if there else "RepoNotFound")
        self.send_header("X-Repo-Commit", "c0ffee" * 6 + "abcd")
        self.send_header("ETag", f'"{hashlib.sha256(body or b"").hexdigest()}"')
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()

    def do_GET(self) -> None:
        shelf, given = self.shelf, self.headers.get("Range")
        shelf.asked.append((self.path, given))
        if shelf.errors:
            return self.send_error(shelf.errors.pop(0))
        body = shelf.files.get(self.path)
        if body is None:
            return self.send_error(404)
        start = int(given[6:-1]) if given and shelf.ranges else 0
        if start >= len(body):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(shelf.length or len(body) - start))
        if shelf.etag:
            self.send_header("ETag", shelf.etag)
        self.end_headers()
        end = start + shelf.cuts.pop(0) if shelf.cuts else len(body)
        for place in range(start, end, 100_000):
            time.sleep(shelf.pause)
            self.wfile.write(body[place : min(place + 100_000, end)])
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Shelf]:
    """Serve a shelf's files as long as the block lasts, past any proxy and without long pauses."""
    shelf = Shelf("")
    server = Server(("127.0.0.1", 0), partial(Handler, shelf))
    shelf.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("no_proxy", "*")
            patch.setattr(download, "PAUSE", 0.01)
            yield shelf
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refusal(call: Any, *args: Any, **options: Any) -> str:
    """Give the one line that a call is refused with."""
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text
