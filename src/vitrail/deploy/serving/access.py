"""Access control: hosts, origins and API keys, and the headers of every response."""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vitrail.deploy.serving.limits import HTTPError
from vitrail.deploy.serving.metrics import Metrics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class AccessMiddleware:
    """Middleware that refuses requests before anything else reads them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        open_routes: Iterable[str],
        hosts: Iterable[str],
        key: str | None,
        check: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        """Wrap an app: `open_routes` need no key, `hosts` are further names of this server.

        `check` refuses requests that don't fit into the queue, before their bodies are read.
        """
        self._app, self._metrics = app, metrics
        self._open, self._check_room = set(open_routes), check
        self._hosts = {"localhost", socket.gethostname().lower(), *map(str.lower, hosts)}
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":  # there is no other type
            return
        start, left, status = time.perf_counter(), _has_body(scope), 0

        async def taking() -> Message:
            nonlocal left
            message = await receive()
            left = left and bool(message.get("more_body"))
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), *_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                if left:  # the rest of the request is not read
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._check(scope)
            if scope["method"] == "POST":
                self._check_room()
        except HTTPError as error:
            await respond(error, sending)
        else:
            await self._app(scope, taking, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # set by the app
            self._metrics.request(route, status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._knows(host):
            raise HTTPError(421, "unknown host name; start the server with --allow-host to add it")
        if not scope["path"].isprintable():  # the router would take /%0a for /
            raise HTTPError(404, "not found")
        origin = headers.get(b"origin")
        if origin is not None and _host_of(origin.decode("latin-1")) != host:
            raise HTTPError(403, "pages of other sites may not use this server")
        if self._key is None or scope["path"] in self._open:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(given.strip(), self._key):
            raise HTTPError(401, "API key required: Authorization: Bearer KEY")

    def _knows(self, host: str) -> bool:
        """Tell whether this is a name of the server.

        Any IP address is: a page whose own name resolves to this machine sends that name (DNS
        rebinding).
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # e.g. http://[
        return None


def _has_body(scope: Scope) -> bool:
    names: dict[bytes, bytes] = dict(scope["headers"])
    return b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"


def error_body(text: str) -> bytes:
    """Write an error as clients get it."""
    return json.dumps({"error": text}).encode()


def error_headers(error: HTTPError) -> dict[str, str]:
    """Give the headers of an error's response."""
    headers = {"content-type": "application/json"}
    if error.retry is not None:
        headers["retry-after"] = str(error.retry)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


async def respond(error: HTTPError, send: Any) -> None:
    """Send an error."""
    body, headers = error_body(str(error)), error_headers(error)
    headers["content-length"] = str(len(body))
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
