"""Limits of what clients may use, and the error beyond them; no proxy in front is needed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vitrail.config import InputError


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """What one request, one client and all of them together may use."""

    body: int = 10 * 2**20
    """Bytes of a request, with all its images."""
    pixels: int = 36_000_000
    """Height times width of an image; so many cost a model process less than 300 MB."""
    images: int = 16
    """Images per request."""
    header: int = 16 * 2**10
    """Bytes of a request's line and headers."""
    receive: float = 8.0
    """Seconds within which headers must be complete, and a body must have started."""
    rate: int = 64 * 2**10
    """Bytes per second that a body must have after that."""
    answer: float = 30.0
    """Seconds after which a request gets 504."""
    queue: int = 256
    """Images that may wait for a model; more are refused."""
    uploads: int = 256 * 2**20
    """Bytes of all requests that are held at once."""
    client_uploads: int = 64 * 2**20
    """Bytes that one client address may hold at once, while others hold any."""
    stop: float = 8.0
    """Seconds to finish accepted requests once the server is asked to stop."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                given = getattr(self, field.name)
                raise InputError(f"the limit {field.name} must be above 0, got {given}")


class HTTPError(Exception):
    """A request that is refused: the status, and one line that says why."""

    def __init__(self, status: int, text: str, *, retry: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry = retry
        """Seconds after which to try again."""
