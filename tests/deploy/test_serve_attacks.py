"""The server under load and attack: it answers everybody else, and itself stays well."""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deploy.serving import Server, form, picture, read_all, save_model, started, until

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)

ODD = Path(__file__).parents[3] / "shared" / "oddimages"
RECEIVE, QUEUE = 1.5, 64
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("attack")
    model = save_model(place / "model")
    options = {
        "--workers": "1", "--receive-seconds": str(RECEIVE), "--queue": str(QUEUE),
        "--answer-seconds": "3.5", "--max-megabytes": "4", "--max-megapixels": "60",
    }  # fmt: skip
    with started(place, str(model), *(word for pair in options.items() for word in pair)) as it:
        yield it
        said = it.log.read_text()
        assert said == "", said[:3000]


@pytest.fixture(autouse=True)
def _well_before_and_after(server: Server) -> Iterator[None]:
    until(server.healthy)
    yield
    until(server.healthy)


def request(data: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(data), data)


async def flood(port: int, count: int, data: bytes) -> Counter[str]:
    """Send requests at once, each on a connection of its own; count what comes of them."""
    found: Counter[str] = Counter()

    async def one() -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            answer = await reader.read()
            writer.close()
        except OSError as error:
            found[type(error).__name__] += 1
            return
        status = answer[9:12].decode()
        head = answer.partition(b"\r\n\r\n")[0].lower()
        if status == "503":
            wait = next(line for line in head.split(b"\r\n") if line.startswith(b"retry-after: "))
            assert 1 <= int(wait[13:]) <= 30
        found[status] += 1

    await asyncio.gather(*(one() for _ in range(count)))
    return found


def test_s1_a_flood_is_answered_or_told_to_wait(server: Server) -> None:
    before = server.memory()
    found = asyncio.run(flood(server.port, 600, request(picture(0))))
    assert sum(found.values()) == 600
    assert set(found) <= {"200", "503"}
    assert found["200"] >= QUEUE
    assert server.healthy()
    assert server.memory() - before < 200 * 2**20


def test_s3_slow_clients_are_closed_and_others_served(server: Server) -> None:
    silent = [server.raw(b"") for _ in range(20)]
    dripping = [server.raw(b"GET /health HTT") for _ in range(60)]
    bodies = [server.raw(HEAD + b"Content-Length: 1000\r\n\r\nabc") for _ in range(20)]
    kept = server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    first = b""
    while b'{"status":"ok"}' not in first:
        first += kept.recv(65536)
    kept.sendall(b"GET /hea")  # the second request of a connection is timed as well
    alive = [*dripping, *bodies]
    end = time.monotonic() + RECEIVE + 10
    while alive and time.monotonic() < end:
        assert server.post("/predict", picture(1))[0] == 200
        for client in [*alive]:
            try:
                client.sendall(b"x")
            except OSError:
                alive.remove(client)
        time.sleep(0.2)
    assert alive == []
    assert read_all(kept).startswith(b"HTTP/1.1 408")
    assert [read_all(client) for client in silent] == [b""] * len(silent)
    for client in (*dripping, *bodies):
        client.close()


def test_s3_a_client_that_does_not_read_is_closed(server: Server) -> None:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    client.settimeout(1)
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    try:
        for _ in range(60):
            client.sendall(20 * asked)
            time.sleep(0.03)
    except TimeoutError:
        pass  # the server no longer reads, since we don't
    except ConnectionError:
        return client.close()
    time.sleep(RECEIVE + 1)
    client.settimeout(20)
    assert len(read_all(client)) < 60 * 20 * 8000  # less than was asked for


def test_s3_requests_sent_far_ahead_end_the_connection(server: Server) -> None:
    client = server.raw(1000 * b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert read_all(client).count(b"HTTP/1.1 200") < 1000


def status_of(answer: bytes) -> int:
    return int(answer[9:12])


def test_s4_large_bodies_are_refused_early(server: Server) -> None:
    limit, before = 4 * 2**20, server.memory()
    status, _, told = server.post("/predict", bytes(limit + 1))
    assert (status, told) == (
        413,
        {"error": "the pictures are larger than 4 MB; send smaller or fewer"},
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
    assert server.post("/predict", picture(0), Content_Encoding="gzip")[0] == 415
    assert server.post("/predict", b"")[0] == 400
    head = HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n"
    assert status_of(read_all(server.raw(head))) == 431
    assert status_of(read_all(server.raw(HEAD + b"X: " + b"a" * 70_000))) == 431
    # A length that is not true: too short, and it is cut; too long, and it is waited for.
    short = HEAD + b"Content-Length: 10\r\nConnection: close\r\n\r\n" + picture(0)
    assert status_of(read_all(server.raw(short))) == 422
    long = HEAD + b"Content-Length: 99999\r\n\r\n" + picture(0)
    assert status_of(read_all(server.raw(long))) == 408
    both = HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert 400 <= status_of(read_all(server.raw(both))) < 500
    good, body = form(("a", picture(0)))
    for bad in (
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": f"multipart/form-data; boundary={'b' * 71}"},
        {"Content-Type": "multipart/form-data; boundary=other"},
    ):
        assert server.post("/predict", body, **bad)[0] == 400, bad
    for cut in (body[:-8], b"--xYzzY\r\n\r\n\r\n--xYzzY--", b"--xYzzY--\r\n"):
        assert server.post("/predict", cut, **good)[0] == 400, cut[:40]


@pytest.mark.skipif(not ODD.is_dir(), reason="there are no odd pictures beside the project")
def test_s5_odd_pictures_get_an_answer_or_a_reason(server: Server) -> None:
    files = [path for path in sorted(ODD.rglob("*")) if path.is_file()]
    pids = server.workers()

    def ask(path: Path) -> tuple[int, str]:
        status, _, told = server.post("/predict", path.read_bytes())
        return status, str(told)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, files))
    for path, (status, told) in zip(files, found, strict=True):
        assert status == 200 or (400 <= status < 500 and "error" in told), (path.name, status, told)
        assert "Traceback" not in told
        assert str(ODD.parent) not in told
    counted = Counter(status for status, _ in found)
    assert counted[200] > len(files) // 4
    assert counted[422] > len(files) // 4
    assert server.workers() == pids


TRAVERSALS = [
    "../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e%2fetc/passwd",
    "..%5c..%5cetc",
    "//etc/passwd",
    "/etc/passwd",
    "%00",
    "page.js%00.png",
    "....//....//etc/passwd",
    "~root",
    "..;/etc/passwd",
    "file:///etc/passwd",
    "\\..\\..\\windows",
    "%252e%252e%252fetc",
    "%c0%ae%c0%ae/",
    "./page.js/..",
    "C:/windows/win.ini",
    "%2e/%2e%2e/pyproject.toml",
    "page/../app.py",
    ".git/config",
]


@pytest.mark.parametrize("text", TRAVERSALS)
def test_s6_no_path_leaves_the_page(server: Server, text: str) -> None:
    raw = text.replace(" ", "%20").encode("latin-1", "replace")
    for prefix in (b"/", b"/models/", b"/page.js/", b""):
        data = b"GET " + prefix + raw + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = read_all(server.raw(data))
        assert status_of(answer) in (400, 404), answer[:80]
        assert b"root:" not in answer
    assert server.post(f"/predict?model={quote(text)}", picture(0))[0] == 404
    headers, body = form((text, picture(0)))
    assert server.post("/predict", body, **headers)[0] == 200


def test_s7_nothing_is_fetched(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.3)
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/a.png"
        for body in (address.encode(), f'{{"url": "{address}"}}'.encode()):
            assert server.post(f"/predict?url={quote(address)}", body)[0] == 422
        server.post("/predict", picture(0), Referer=address, X_Forwarded_Host=address)
        with pytest.raises(TimeoutError):
            trap.accept()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.data())
def test_s10_garbage_gets_a_4xx(server: Server, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["bytes", "line", "query", "form"]))
    if kind == "bytes":
        junk = data.draw(st.binary(min_size=1, max_size=200)) + b"\r\n\r\n"
    elif kind == "line":
        method = data.draw(st.sampled_from([b"GET", b"POST", b"BREW", b"CONNECT", b"OPTIONS", b""]))
        path = data.draw(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")))
        junk = method + b" /" + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    elif kind == "query":
        value = quote(data.draw(st.text(max_size=20)))
        name = data.draw(st.sampled_from(["top", "layer", "head", "model", "method", "view"]))
        route = data.draw(st.sampled_from(["predict", "attention"]))
        status, _, told = server.post(f"/{route}?{name}={value}", b"x")
        assert 400 <= status < 500, (name, value, told)
        return
    else:
        head, _ = form(("a", b""))
        parts = data.draw(st.lists(st.binary(max_size=60), max_size=5))
        status, _, told = server.post("/predict", b"\r\n--xYzzY".join(parts), **head)
        assert 400 <= status < 500, told
        return
    answer = read_all(server.raw(junk + b"\r\n\r\n"))
    assert answer == b"" or status_of(answer) in (200, *range(400, 500)), (junk, answer[:200])


def test_s10_deep_json_is_only_bytes(server: Server) -> None:
    body = b"[" * 100_000
    status, _, told = server.post("/predict", body, Content_Type="application/json")
    assert (status, told["kind"]) == (422, "not a picture")


def test_s11_a_client_that_goes_takes_its_work_along(server: Server) -> None:
    worker = server.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    try:
        clients = [server.raw(request(picture(0)))]  # which the worker has
        time.sleep(0.2)
        clients += [server.raw(request(picture(seed))) for seed in range(5)]
        until(lambda: server.metric("vitrail_queue_pictures") == 5)
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        until(lambda: server.metric("vitrail_queue_pictures") == 0, 2)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert server.workers() == [worker]


def test_s13_a_hanging_worker_is_replaced_and_its_clients_are_told(server: Server) -> None:
    worker = server.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    start = time.monotonic()
    found = asyncio.run(flood(server.port, 2 * QUEUE, request(picture(0))))
    assert set(found) == {"503", "504"}  # no room; or too late
    assert found["503"] >= QUEUE - 8
    assert not server.healthy()
    until(server.healthy)
    assert time.monotonic() - start > 3.5
    assert worker not in server.workers()
    assert server.post("/predict", picture(0))[0] == 200


def test_s13_a_killed_worker_is_replaced_and_its_clients_are_told(server: Server) -> None:
    worker, before = server.workers()[0], server.metric("vitrail_worker_restarts_total")
    os.kill(worker, signal.SIGSTOP)
    client = server.raw(request(picture(0)))
    time.sleep(0.3)
    os.kill(worker, signal.SIGKILL)
    answer = read_all(client)
    assert status_of(answer) == 503
    assert b"retry-after: 1" in answer
    assert not server.healthy()
    until(server.healthy)
    assert worker not in server.workers()
    assert server.metric("vitrail_worker_restarts_total") == before + 1
