"""Uploads: images read from a request, counted as they arrive, in memory only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from typing import TYPE_CHECKING

from vitrail.deploy.serving.limits import HTTPError, ServeLimits

if TYPE_CHECKING:
    from starlette.requests import Request

_PART_HEADER = 4096  # bytes of the headers of a form's part
_BOUNDARY = 70  # longest boundary (RFC 2046)


class UploadBudget:
    """The bytes that requests hold in memory: of all clients, and of each."""

    def __init__(self, limits: ServeLimits) -> None:
        self._total = 0
        self._clients: Counter[str] = Counter()
        self._limits = limits

    @contextmanager
    def reservation(self, client: str) -> Iterator[Callable[[int], None]]:
        """Give a function that reserves more bytes for a request; all are released at the end."""
        reserved = 0

        def reserve(count: int) -> None:
            nonlocal reserved
            own = max(self._limits.client_uploads, self._limits.body)
            if self._total + count > self._limits.uploads or self._clients[client] + count > own:
                raise HTTPError(503, "busy with other uploads, try again in 2 s", retry=2)
            self._total += count
            self._clients[client] += count
            reserved += count

        try:
            yield reserve
        finally:
            self._total -= reserved
            self._clients[client] -= reserved
            if not self._clients[client]:
                del self._clients[client]


async def read_body(request: Request, limits: ServeLimits, reserve: Callable[[int], None]) -> bytes:
    """Read a request's body, up to the limit and at no less than the lowest rate.

    Bytes are reserved as they arrive: a Content-Length alone takes nothing from other clients.
    """
    too_large = HTTPError(
        413, f"the images are larger than {limits.body / 2**20:g} MB; send smaller or fewer"
    )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPError(415, "the body is compressed; send images as they are")
    said = request.headers.get("content-length", "0")
    if not said.isdecimal():
        raise HTTPError(400, "Content-Length is not a number")
    if int(said) > limits.body:
        raise too_large
    loop, pieces, count = asyncio.get_running_loop(), [], 0
    start = loop.time()
    while True:
        try:
            async with asyncio.timeout_at(start + limits.receive + count / limits.rate):
                message = await request.receive()
        except TimeoutError:
            raise HTTPError(408, "the body arrived too slowly") from None
        if message["type"] == "http.disconnect":
            raise HTTPError(499, "the client is gone")
        pieces.append(message.get("body", b""))
        count += len(pieces[-1])
        if count > limits.body:
            raise too_large
        reserve(len(pieces[-1]))
        if not message.get("more_body"):
            return b"".join(pieces)


def parse_images(content_type: str, body: bytes, limits: ServeLimits) -> list[bytes]:
    """Take the images from a form, or the one that is the whole body."""
    head = Message()
    head["content-type"] = content_type
    if head.get_content_type() != "multipart/form-data":
        if not body:
            raise HTTPError(400, "no image: the body is empty")
        return [body]
    boundary = head.get_param("boundary")
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= _BOUNDARY:
        raise HTTPError(400, "the form has no boundary")
    marker = b"\r\n--" + boundary.encode("ascii", "replace")
    images: list[bytes] = []
    ended = False
    for part in (b"\r\n" + body).split(marker, limits.images + 2)[1:]:
        if part.startswith(b"--"):
            ended = True
            break
        if len(images) == limits.images:
            raise HTTPError(413, f"more than {limits.images} images; send fewer per request")
        images.append(_content(part))
    if not ended:
        raise HTTPError(400, "the form is truncated: its last boundary is missing")
    if not images:
        raise HTTPError(400, "no image: the form is empty")
    return images


def _content(part: bytes) -> bytes:
    """Take the content of a form's part, which must be a file; its name is ignored."""
    end = part.find(b"\r\n\r\n", 0, _PART_HEADER)
    if end < 0:
        raise HTTPError(400, "a part of the form has no headers, or too long ones")
    header = part[:end].lower()
    if b"filename" not in header:
        raise HTTPError(
            400, "a part of the form is not a file; options belong in the URL, e.g. ?top=3"
        )
    return part[end + 4 :]
