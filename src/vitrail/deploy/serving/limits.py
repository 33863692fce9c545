"""What a client may cost, and how it is refused beyond that; a proxy in front is not needed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vitrail.config import InputError


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """What one request may take of the server, and all of them together."""

    body: int = 10 * 2**20
    """Bytes of a request, all its images together."""
    pixels: int = 50_000_000
    """Height times width of an image."""
    images: int = 16
    """Images of a request."""
    header: int = 16 * 2**10
    """Bytes of a request's line and headers."""
    receive: float = 8.0
    """Seconds in which headers must be there, and in which a body must have begun to flow."""
    rate: int = 64 * 2**10
    """Bytes a second that a body must come with after that."""
    answer: float = 30.0
    """Seconds in which a request is answered, or is told that it is late."""
    queue: int = 256
    """Images that wait for a model; more are refused."""
    held: int = 256 * 2**20
    """Bytes of all requests at once."""
    stop: float = 8.0
    """Seconds in which what was taken is finished, once the server is asked to stop."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                given = getattr(self, field.name)
                raise InputError(f"the limit {field.name} is {given}; expected more than 0")


class HTTPError(Exception):
    """A request that gets no answer: the status, and one line that says why."""

    def __init__(self, status: int, text: str, *, retry: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry = retry
        """Seconds after which to try again."""
