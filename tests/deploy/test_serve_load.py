"""The server with too much to do, with slow clients, and for long: it stays quick and small."""

import asyncio
import random
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import sleeper
from tests.deploy.serving import (
    HEAD,
    QUEUE,
    RECEIVE,
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
    check_flood(server, 600, QUEUE)


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


async def keep_asking(
    port: int, data: bytes, rate: float, seconds: float
) -> tuple[dict[int, list[float]], float]:
    """Ask at a fixed rate, whatever comes back: by status, how long each took; and all of it."""
    loop = asyncio.get_running_loop()
    found: dict[int, list[float]] = {200: [], 503: []}

    async def one() -> None:
        begun = loop.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        found[status_of(answer)].append(loop.time() - begun)

    start, tasks = loop.time(), list[asyncio.Task[None]]()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0, start + number / rate - loop.time()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    return {status: sorted(times) for status, times in found.items()}, loop.time() - start


@pytest.mark.parametrize(
    ("nap", "seconds", "share", "soon"),
    [(0.25, 4.0, 0.5, 0.25), pytest.param(0.05, 30.0, 0.99, 0.05, marks=pytest.mark.slow)],
)
def test_s2_four_times_what_it_can_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nap: float,
    seconds: float,
    share: float,
    soon: float,
) -> None:
    """A model that sleeps for each batch makes what the server can do a number known before."""
    monkeypatch.setenv(sleeper.NAP, str(nap))
    queue, peak = 4 * sleeper.BATCH, sleeper.BATCH / nap
    options = ["x", "--workers", "1", "--queue", str(queue)]
    with started(tmp_path, *options, program=[sleeper.__file__]) as server:
        found, took = asyncio.run(keep_asking(server.port, request(b"x"), 4 * peak, seconds))
    taken, refused = found[200], found[503]
    assert len(taken) + len(refused) == int(4 * peak * seconds)
    assert len(taken) >= 0.8 * peak * took
    in_line = (queue / sleeper.BATCH + 1) * nap  # the queue's batches, and the one that runs
    assert taken[int(0.99 * len(taken))] <= 2 * in_line
    assert refused[int(share * len(refused))] <= soon  # whoever is refused does not wait


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
    end = time.monotonic() + RECEIVE + 20
    while alive and time.monotonic() < end:
        assert server.post("/predict", image(1))[0] == 200
        for client in [*alive]:
            try:
                client.sendall(b"x")
            except OSError:
                alive.remove(client)
        time.sleep(0.2)
    assert alive == []
    assert read_all(kept).startswith(b"HTTP/1.1 408")
    assert [read_all(client) for client in silent] == [b""] * len(silent)
    until(lambda: server.held()["fd"] <= before)  # while the deaf still have their ends open
    for client in (*dripping, *bodies, *deaf):
        client.close()


def test_s3_requests_sent_far_ahead_end_the_connection(server: Server) -> None:
    client = server.raw(1000 * b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert read_all(client).count(b"HTTP/1.1 200") < 1000


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

    run(300)  # what is held once, for all
    until(lambda: server.metric("vitrail_queue_images") == 0)
    time.sleep(RECEIVE)  # what was cut off has been given up
    pids, before, memory = server.workers(), server.held(), all_memory()
    found = run(count)
    assert len(found) == 6
    until(lambda: server.held() == before)
    assert all_memory() - memory < 50 * 2**20
    assert server.workers() == pids
    assert list((server.log.parent / "tmp").iterdir()) == []
