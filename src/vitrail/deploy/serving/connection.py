"""A connection with deadlines: uvicorn waits forever for headers, and accepts any length.

Headers must be complete in time and not too long; responses must be read in time; a connection that
is closed while its client is still sending is read a little further, or the response would be lost.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from vitrail.deploy.serving.access import error_body
from vitrail.deploy.serving.limits import ServeLimits

_REST = 2**20  # bytes beyond the limit that are still read of a refused body
_AHEAD = 50  # requests that are parsed ahead of the responses; more wait as bytes
_PROBES = 0.5  # seconds between two
_PART = 4096  # bytes that are parsed at once: at most some 200 requests


class Connection(HttpToolsProtocol):
    """One client's connection."""

    limits: ServeLimits
    most: int
    """Connections at once; the system limits open files."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._head = 0  # bytes of headers so far; 0 during a request
        self._waiting = True  # for headers
        self._taken = 0  # bytes of the body
        self._rest: int | None = None  # bytes that may still arrive, once it is closing
        self._later = b""  # bytes that arrived, but are not parsed before responses are written
        self._ended = False  # whether the client will send nothing more
        self._probing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start waiting for a request."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            return self._refuse(503, "too many connections, try again in 5 s", "retry-after: 5\r\n")
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers and release the request."""
        for timer in (self._deadline, self._unread, self._lingering, self._probing):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # Otherwise the reference cycle lives until garbage collection: thousands in a flood.
        gone: Any = None
        self.cycle = self.scope = gone

    def data_received(self, data: bytes) -> None:
        """Count bytes before they are parsed."""
        if self._rest is not None:
            self._rest -= len(data)
            if self._rest < 0:
                self._end()
            return
        if self._later:
            self._later += data
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse bytes until too many requests wait for those before them."""
        for start in range(0, len(data), _PART):
            if len(self.pipeline) >= _AHEAD:
                self._later = data[start:]
                return self.flow.pause_reading()
            part = data[start : start + _PART]
            if self._waiting:
                self._arm()
                self._head += len(part)
            super().data_received(part)
            closing = self._rest is not None or self.transport.is_closing()
            if self._waiting and self._head > self.limits.header and not closing:
                self._refuse(431, f"headers of more than {self.limits.header} bytes")
            if self._rest is not None:
                return

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Answer the requests that arrived whole; return whether any did."""
        self._ended = bool(self.pipeline or self._later) or (
            self._busy() and not self.cycle.more_body
        )
        if self._ended:
            self._probe()
        return self._ended

    def _probe(self) -> None:
        """Find out whether the client has gone, or has only ended its own side.

        Clients pass over this line. One that has closed its socket answers the first with a reset,
        which the second one meets, and its work ends.
        """
        self._probing = None
        quiet = not self.pipeline and self._busy() and not self.cycle.response_started
        if quiet and not self.over and self.cycle.scope["http_version"] == "1.1":
            self.transport.write(STATUS_LINE[100] + b"\r\n")
            self._probing = self.loop.call_later(_PROBES, self._probe)

    def on_response_complete(self) -> None:
        """Go on with what arrived meanwhile."""
        super().on_response_complete()
        if self._later and len(self.pipeline) < _AHEAD:
            later, self._later = self._later, b""
            self._parse(later)
        if self._ended and not self._later and not self.pipeline and not self._busy():
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Start the request, unless its headers are too long."""
        self._waiting, self._head, self._taken = False, 0, 0
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header:
            return self._refuse(431, f"headers of more than {self.limits.header} bytes")
        super().on_headers_complete()
        if self.cycle:
            transport: Any = _ResponseTransport(self)
            self.cycle.transport = transport

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body; that of a refused request is dropped."""
        self._taken += len(body)
        if self.cycle and self._rest is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request's headers."""
        if self.cycle and self._rest is None:
            super().on_message_complete()
        self._waiting, self._head = True, 0

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(400, "not a valid HTTP request")

    def pause_writing(self) -> None:
        """Give a client that does not read some time."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.receive, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue, as it reads again."""
        super().resume_writing()
        if self._unread:
            self._unread.cancel()
            self._unread = None

    def finish(self) -> None:
        """Close; while the client is still sending, only our side first."""
        self._unset_keepalive_if_required()
        if self.cycle:
            self.cycle.body.clear()  # of a request that was refused without reading
        if not self.cycle or not self.cycle.more_body or self.transport.is_closing():
            return self.transport.close()
        self._linger()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is idle, or whose client does not read the response."""
        self._end()

    def _linger(self) -> None:
        self._rest = max(self.limits.body - self._taken, 0) + _REST
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._lingering = self.loop.call_later(self.limits.receive, self._end)

    def _end(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.receive, self._late)

    def _late(self) -> None:
        if self._head and not self._busy():
            self._refuse(408, "the headers arrived too slowly")
        else:
            self.transport.close()

    def _busy(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    @property
    def over(self) -> bool:
        """Whether nothing more may be written."""
        return self._rest is not None or self.transport.is_closing()

    def _refuse(self, status: int, text: str, more: str = "") -> None:
        if self.over:
            return
        body = error_body(text)
        head = (
            f"content-type: application/json\r\nx-content-type-options: nosniff\r\n{more}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self._linger()


class _ResponseTransport:
    """A connection's transport as uvicorn's response sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)

    def write(self, data: bytes) -> None:
        if not self._connection.over:  # uvloop would raise
            self._connection.transport.write(data)

    def close(self) -> None:
        self._connection.finish()
