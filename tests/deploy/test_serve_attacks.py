"""The server under attack, and when its model processes fail: it answers everybody else."""

import asyncio
import os
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.deploy.serving import (
    HEAD,
    QUEUE,
    Server,
    flood,
    form,
    image,
    read_all,
    request,
    status_of,
    until,
)

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)


@pytest.fixture
def server(attacked_server: Server) -> Server:
    return attacked_server


@pytest.fixture(autouse=True)
def _well_before_and_after(server: Server) -> Iterator[None]:
    until(server.healthy)
    yield
    until(server.healthy)


def test_s4_large_bodies_are_refused_early(server: Server) -> None:
    limit, before = 4 * 2**20, server.memory()
    status, _, told = server.post("/predict", bytes(limit + 1))
    assert (status, told) == (
        413,
        {"error": "the images are larger than 4 MB; send smaller or fewer"},
    )
    # A body of any length, in pieces, with no word on how long: little of it is read.
    client = server.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    piece, sent = b"%x\r\n%b\r\n" % (2**16, bytes(2**16)), 0
    try:
        while sent < 200 * 2**20:
            client.sendall(piece)
            sent += 2**16
    except OSError:
        pass
    buffers = 8 * 2**20  # what the system itself may hold on the way
    assert sent < limit + 2**20 + buffers
    assert status_of(read_all(client)) == 413
    assert server.memory() - before < 20 * 2**20
    assert list((server.log.parent / "tmp").iterdir()) == []


def test_s4_odd_bodies_are_refused(server: Server) -> None:
    headers, body = form(*[("a", b"x")] * 1001)
    assert server.post("/predict", body, **headers)[0] == 413
    assert server.post("/predict", image(0), Content_Encoding="gzip")[0] == 415
    assert server.post("/predict", b"")[0] == 400
    head = HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n"
    assert status_of(read_all(server.raw(head))) == 431
    assert status_of(read_all(server.raw(HEAD + b"X: " + b"a" * 70_000))) == 431
    # A length that is not true: too short, and it is cut; too long, and it is waited for.
    short = HEAD + b"Content-Length: 10\r\nConnection: close\r\n\r\n" + image(0)
    assert status_of(read_all(server.raw(short))) == 422
    long = HEAD + b"Content-Length: 99999\r\n\r\n" + image(0)
    assert status_of(read_all(server.raw(long))) == 408
    both = HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert 400 <= status_of(read_all(server.raw(both))) < 500
    good, body = form(("a", image(0)))
    for bad in (
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": f"multipart/form-data; boundary={'b' * 71}"},
        {"Content-Type": "multipart/form-data; boundary=other"},
    ):
        assert server.post("/predict", body, **bad)[0] == 400, bad
    for cut in (body[:-8], b"--xYzzY\r\n\r\n\r\n--xYzzY--", b"--xYzzY--\r\n"):
        assert server.post("/predict", cut, **good)[0] == 400, cut[:40]


def test_s5_odd_images_get_an_answer_or_a_reason(server: Server, odd_images: Path) -> None:
    files = [path for path in sorted(odd_images.rglob("*")) if path.is_file()]
    pids = server.workers()

    def ask(path: Path) -> tuple[int, str]:
        status, _, told = server.post("/predict", path.read_bytes())
        return status, str(told)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, files))
    for path, (status, told) in zip(files, found, strict=True):
        assert status == 200 or (400 <= status < 500 and "error" in told), (path.name, status, told)
        assert "Traceback" not in told
        assert str(odd_images.parent) not in told
    counted = Counter(status for status, _ in found)
    assert counted[200] > len(files) // 4
    assert counted[422] > len(files) // 4
    assert server.workers() == pids


def test_s7_nothing_is_fetched(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.3)
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/a.png"
        for body in (address.encode(), f'{{"url": "{address}"}}'.encode()):
            assert server.post(f"/predict?url={quote(address)}", body)[0] == 422
        server.post("/predict", image(0), Referer=address, X_Forwarded_Host=address)
        with pytest.raises(TimeoutError):
            trap.accept()


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_s11_a_client_that_goes_takes_its_work_along(server: Server, reset: bool) -> None:
    worker = server.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    try:
        clients = [server.raw(request(image(0)))]  # which the worker has
        time.sleep(0.2)
        clients += [server.raw(request(image(seed))) for seed in range(5)]
        until(lambda: server.metric("vitrail_queue_images") == 5)
        for client in clients:
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        until(lambda: server.metric("vitrail_queue_images") == 0, 2)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert server.workers() == [worker]


def test_s13_a_hanging_worker_is_replaced_and_its_clients_are_told(server: Server) -> None:
    worker = server.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    found = asyncio.run(flood(server.port, 2 * QUEUE, request(image(0))))
    assert set(found) == {"503", "504"}  # no room; or too late
    assert found["503"] >= QUEUE - 8
    assert not server.healthy()
    until(server.healthy)
    assert worker not in server.workers()
    assert server.post("/predict", image(0))[0] == 200


def test_s13_a_killed_worker_is_replaced_and_its_clients_are_told(server: Server) -> None:
    worker, before = server.workers()[0], server.metric("vitrail_worker_restarts_total")
    os.kill(worker, signal.SIGSTOP)
    client = server.raw(request(image(0)))
    time.sleep(0.3)
    os.kill(worker, signal.SIGKILL)
    answer = read_all(client)
    assert status_of(answer) == 503
    assert b"retry-after: 1" in answer
    assert not server.healthy()
    until(server.healthy)
    assert worker not in server.workers()
    assert server.metric("vitrail_worker_restarts_total") == before + 1
