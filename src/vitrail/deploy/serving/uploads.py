"""Images out of a request: counted while they come, held in memory only, never a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import TYPE_CHECKING

from vitrail.deploy.serving.limits import HTTPError, ServeLimits

if TYPE_CHECKING:
    from starlette.requests import Request

_PART_HEADER = 4096  # bytes of the headers of a form's part
_BOUNDARY = 70  # characters of a boundary at most (RFC 2046)


class Budget:
    """The bytes of all requests that are held at once."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Give back at the end what was taken."""
        held = Held(self)
        try:
            yield held
        finally:
            self._left += held.bytes

    def take(self, count: int) -> None:
        """Take bytes, or refuse."""
        if count > self._left:
            raise HTTPError(503, "busy with other uploads, try again in 2 s", retry=2)
        self._left -= count


class Held:
    """The bytes that one request holds."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self.bytes = budget, 0

    def grow(self, count: int) -> None:
        """Hold at least so many bytes in all."""
        if count > self.bytes:
            self._budget.take(count - self.bytes)
            self.bytes = count


async def read_body(request: Request, limits: ServeLimits, held: Held) -> bytes:
    """Read a request's body: at most the limit, and at least at the least rate."""
    too_large = HTTPError(
        413, f"the images are larger than {limits.body / 2**20:g} MB; send smaller or fewer"
    )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPError(415, "a compressed body; send images as they are")
    said = request.headers.get("content-length", "0")
    if not said.isdecimal():
        raise HTTPError(400, "a Content-Length that is no number")
    if int(said) > limits.body:
        raise too_large
    held.grow(int(said))
    loop, pieces, count = asyncio.get_running_loop(), [], 0
    start = loop.time()
    while True:
        try:
            async with asyncio.timeout_at(start + limits.receive + count / limits.rate):
                message = await request.receive()
        except TimeoutError:
            raise HTTPError(408, "the body came too slowly") from None
        if message["type"] == "http.disconnect":
            raise HTTPError(499, "the client has gone")
        pieces.append(message.get("body", b""))
        count += len(pieces[-1])
        if count > limits.body:
            raise too_large
        held.grow(count)
        if not message.get("more_body"):
            return b"".join(pieces)


def find_images(content_type: str, body: bytes, limits: ServeLimits) -> list[bytes]:
    """Take the images out of a form, or the one that is the whole body."""
    head = Message()
    head["content-type"] = content_type
    if head.get_content_type() != "multipart/form-data":
        if not body:
            raise HTTPError(400, "no image: the body is empty")
        return [body]
    boundary = head.get_param("boundary")
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= _BOUNDARY:
        raise HTTPError(400, "a form without a boundary")
    marker = b"\r\n--" + boundary.encode("ascii", "replace")
    images: list[bytes] = []
    ended = False
    for part in (b"\r\n" + body).split(marker, limits.images + 2)[1:]:
        if part.startswith(b"--"):
            ended = True
            break
        if len(images) == limits.images:
            raise HTTPError(413, f"more than {limits.images} images; send fewer at once")
        images.append(_content(part))
    if not ended:
        raise HTTPError(400, "the form is cut off: its last boundary is missing")
    if not images:
        raise HTTPError(400, "no image: the form is empty")
    return images


def _content(part: bytes) -> bytes:
    """Take a part's content; what is no file is refused, and its name never looked at."""
    end = part.find(b"\r\n\r\n", 0, _PART_HEADER)
    if end < 0:
        raise HTTPError(400, "a part of the form without headers, or with too long ones")
    header = part[:end].lower()
    if b"filename" not in header:
        raise HTTPError(
            400, "a part of the form is no file; options belong into the address, ?top=3"
        )
    return part[end + 4 :]
