"""The door: which hosts, origins and keys pass, and what every answer carries."""

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
    """Refuses what may not enter, before anything else looks at it."""

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
        """Take the `open_routes`, which need no key, and further `hosts` to be called by.

        `check` refuses work that there is no room for, before anything is read of it.
        """
        self._app, self._metrics = app, metrics
        self._open, self._check_room = set(open_routes), check
        self._hosts = {"localhost", socket.gethostname().lower(), *map(str.lower, hosts)}
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":  # there are no others
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
                if left:  # what is still to come of the request is not read
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._check(scope)
            if scope["method"] == "POST":
                self._check_room()
        except HTTPError as refusal:
            await respond(refusal, sending)
        else:
            await self._app(scope, taking, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # which the application found
            self._metrics.request(route, status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._knows(host):
            raise HTTPError(
                421, "this server is not called that; start it with --allow-host for other names"
            )
        if not scope["path"].isprintable():  # the router takes /%0a for /
            raise HTTPError(404, "there is nothing here")
        origin = headers.get(b"origin")
        if origin is not None and _host_of(origin.decode("latin-1")) != host:
            raise HTTPError(403, "another site's page may not use this server")
        if self._key is None or scope["path"] in self._open:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(given.strip(), self._key):
            raise HTTPError(401, "an API key is needed: Authorization: Bearer KEY")

    def _knows(self, host: str) -> bool:
        """Tell whether the server may be called so.

        Any address is right: a page that has its own name resolved to this machine comes with
        that name (DNS rebinding).
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
    except ValueError:  # such as http://[
        return None


def _has_body(scope: Scope) -> bool:
    names: dict[bytes, bytes] = dict(scope["headers"])
    return b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"


def error_body(text: str) -> bytes:
    """Write an error as clients get it."""
    return json.dumps({"error": text}).encode()


def error_headers(refusal: HTTPError) -> dict[str, str]:
    """Say what else an error's answer has."""
    headers = {"content-type": "application/json"}
    if refusal.retry is not None:
        headers["retry-after"] = str(refusal.retry)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


async def respond(refusal: HTTPError, send: Any) -> None:
    """Answer with an error."""
    body, headers = error_body(str(refusal)), error_headers(refusal)
    headers["content-length"] = str(len(body))
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
