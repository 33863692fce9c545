"""The server with too much to do, with slow clients, and for long: it stays quick and small."""

import asyncio
import random
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import gated_worker
from tests.deploy.serving import (
    HEAD,
    QUEUE,
    Server,
    attacked,
    flood,
    form,
    image,
    read_all,
    request,
    save_model,
    started,
    status_of,
    until,
)

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)

Ask = Callable[[], tuple[int, dict[str, str], Any] | None]
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with attacked(tmp_path_factory.mktemp("load")) as running:
        yield running


def check_flood(server: Server, count: int, queue: int) -> None:
    before = server.memory()
    found = asyncio.run(flood(server.port, count, request(image(0))))
    assert sum(found.values()) == count
    assert set(found) <= {"200", "503"}
    assert found["200"] >= queue
    assert server.healthy()
    assert server.memory() - before < 200 * 2**20


def test_s1_a_flood_is_answered_or_told_to_wait(server: Server) -> None:
    check_flood(server, 3 * QUEUE, QUEUE)


@pytest.mark.slow
def test_s1_ten_thousand_at_once(tmp_path: Path) -> None:
    """With the usual limits: 1.5 s for headers are too few for so many on a busy machine."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    try:
        with started(tmp_path, str(save_model(tmp_path / "model")), "--workers", "1") as server:
            check_flood(server, 10_000, 256)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


def test_s2_what_does_not_fit_is_refused_at_once_and_the_rest_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who is refused waits for a batch: none ends before the gate opens."""
    gate, queue = tmp_path / "gate", 4 * gated_worker.BATCH
    monkeypatch.setenv(gated_worker.GATE, str(gate))
    options = ["x", "--workers", "1", "--queue", str(queue)]
    with started(tmp_path, *options, program=[gated_worker.__file__]) as server:
        running = server.raw(request(b"x"))
        until(lambda: server.metric("vitrail_batch_images_count") == 1)
        waiting = [server.raw(request(b"x")) for _ in range(queue)]
        until(lambda: server.metric("vitrail_queue_images") == queue)
        refused = asyncio.run(flood(server.port, 3 * queue, request(b"x")))
        assert refused == {"503": 3 * queue}
        gate.touch()
        statuses = [status_of(read_all(client)) for client in (running, *waiting)]
        assert statuses == [200] * (1 + queue)
        assert server.metric("vitrail_batch_images_count") == 1 + queue / gated_worker.BATCH


def connect_deaf(server: Server) -> socket.socket:
    """Ask for much, and read nothing of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    client.setblocking(False)
    client.send(40 * b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


def test_s3_five_hundred_slow_clients_are_closed_and_others_served(server: Server) -> None:
    before = server.held()["fd"]
    dripping = [server.raw(b"GET /health HTT") for _ in range(150)]
    silent = [server.raw(b"") for _ in range(150)]
    bodies = [server.raw(HEAD + b"Content-Length: 1000\r\n\r\nabc") for _ in range(150)]
    deaf = [connect_deaf(server) for _ in range(50)]
    kept = server.raw(HEALTH + b"\r\n")
    first = b""
    while b'{"status":"ok"}' not in first:
        first += kept.recv(65536)
    kept.sendall(b"GET /hea")  # the second request of a connection is timed as well
    alive = [*dripping, *bodies]

    def all_closed() -> bool:
        assert server.post("/predict", image(1))[0] == 200
        for client in [*alive]:
            try:
                client.sendall(b"x")
            except OSError:
                alive.remove(client)
        return not alive

    until(all_closed)
    assert read_all(kept).startswith(b"HTTP/1.1 408")
    assert [read_all(client) for client in silent] == [b""] * len(silent)
    until(lambda: server.held()["fd"] <= before)  # while the deaf still have their ends open
    for client in (*dripping, *bodies, *deaf):
        client.close()


def test_s3_requests_sent_far_ahead_are_all_answered(server: Server) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for ahead in (199, 2999):
        assert read_all(server.raw(ahead * one + last)).count(b"HTTP/1.1 200") == ahead + 1


def test_s3_a_client_that_ends_its_own_side_is_answered(server: Server) -> None:
    whole = request(image(0)).replace(b"Connection: close\r\n", b"")
    for sent, count in ((whole, 1), (whole + whole, 2), (60 * whole, 60)):
        client = server.raw(sent)
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
        assert answer.count(b"HTTP/1.1 200") == count
        assert answer.count(b'"top"') == count
    client = server.raw(whole[:-5])  # cut off
    client.shutdown(socket.SHUT_WR)
    assert read_all(client) == b""


def misbehave(server: Server, kind: str) -> None:
    """Send what is no good request; whatever comes back."""
    data = {
        "garbage": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        "half": HEAD + b"Content-Length: 100000\r\n\r\n" + bytes(5000),
        "gone": request(image(0)),
        "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    }[kind]
    client = server.raw(data)
    if kind in ("garbage", "chunks"):
        read_all(client)
    client.close()


@pytest.mark.parametrize("count", [1_500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_s14_many_requests_leave_nothing_behind(server: Server, count: int) -> None:
    good = image(1)
    headers, body = form(("a", image(2)), ("b", b"no image"))
    asks: dict[Ask, set[int | None]] = {
        partial(server.post, "/predict", good): {200},
        partial(server.post, "/predict", body, **headers): {200},
        partial(server.post, "/embed", good): {200},
        partial(server.post, "/attention?layer=0&view=true", good): {200},
        partial(server.post, "/similar", good): {200},
        partial(server.ask, "GET", "/similar/3"): {200},
        partial(server.ask, "GET", "/similar/99"): {404},
        partial(server.ask, "GET", "/"): {200},
        partial(server.ask, "GET", "/metrics"): {200},
        partial(server.ask, "GET", "/nothing"): {404},
        partial(server.ask, "PUT", "/predict", b"x"): {405},
        partial(server.post, "/predict", b"no image"): {422},
        partial(server.post, "/predict", good[:200]): {422},
        partial(server.post, "/predict?top=-1", good): {422},
        partial(server.post, "/predict?model=x", good): {404},
        partial(server.post, "/predict", good, Host="evil.example"): {421},
    }
    for kind in ("garbage", "half", "gone", "chunks"):
        asks[partial(misbehave, server, kind)] = {None}
    draw = random.Random(0)

    def run(number: int) -> Counter[int | None]:
        def one(ask: Ask) -> int | None:
            answer = ask()
            status = None if answer is None else answer[0]
            assert status in asks[ask], (ask, status)
            return status

        with ThreadPoolExecutor(4) as threads:
            return Counter(threads.map(one, draw.choices(list(asks), k=number)))

    def all_memory() -> int:
        return server.memory() + sum(map(server.memory, server.workers()))

    idle = server.sockets()
    run(300)  # what is held once, for all
    until(lambda: server.metric("vitrail_queue_images") == 0)
    until(lambda: server.sockets() == idle)  # what was cut off has been given up
    pids, before, memory = server.workers(), server.held(), all_memory()
    found = run(count)
    assert len(found) == 6
    until(lambda: all(count <= before[kind] for kind, count in server.held().items()))
    assert all_memory() - memory < 50 * 2**20
    assert server.workers() == pids
    assert list((server.log.parent / "tmp").iterdir()) == []
