"""A ViT-Ti/16 behind HTTP: vitrail serve, LitServe, and a plain FastAPI endpoint with timm.

    python benchmarks/serve.py                                  # painted JPEGs, random weights
    python benchmarks/serve.py --weights DIR --photos DIR       # real ones

All three are started on this machine, on the loopback, and take turns: first requests one after the
other, for the latency of a single client, then some clients at once, each on a connection that it
keeps. Whoever is not on turn is stopped, for LitServe computes while it waits. In a round every
contestant has one turn; ratios are taken within a round. Processor time is that of all of a
server's processes; it does not mind a busy machine, and images a second do: there, whoever has
more threads gets more of it. The peers are in servers.py. In float32 all must name the same most
likely class for every image.
"""

from __future__ import annotations

import asyncio
import json as json_format
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from data import make_files
from measure import turn_order
from peers import versions
from predict import random_weights
from rich.console import Console
from rich.table import Table

OURS = "vitrail"
BOUNDARY = b"benchmark-boundary"
START = 120.0  # seconds that a server may take to start


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one contestant reached."""

    contestant: str
    single: float
    """Milliseconds of a request when there is no other, at the median."""
    single_ratio: float
    """The median of the rounds' ratios of its single latency to ours: above 1, ours is faster."""
    p50: float
    """Milliseconds of a request among many, at the median."""
    p99: float
    speed: float
    """Images a second with many clients, at the median of the rounds."""
    ratio: float
    """The median of the rounds' ratios of our images a second to its: above 1, ours is faster."""
    processor: float
    """Milliseconds of processor time for an image, with many clients, at the median."""
    processor_ratio: float
    """The median of the rounds' ratios of its processor time to ours: above 1, ours needs less."""


Cursor = tuple[int, int]
"""A server's port, and the number of its processes' session."""


def main(
    *,
    weights: Path | None = None,
    photos: Path | None = None,
    clients: int = 32,
    images: int = 400,
    single: int = 12,
    rounds: int = 4,
    backend: str = "pytorch",
    precision: str = "float32",
    data: str | None = None,
    json: Path | None = None,
) -> None:
    """Compare servers of the same model.

    Args:
        weights: A folder with timm's ViT-Ti/16 (model.safetensors and config.json); random
            weights unless given.
        photos: A folder of JPEGs; painted ones of 500 x 375 unless given.
        clients: Clients at once.
        images: Requests of a turn with many clients.
        single: Requests of a turn with one client.
        rounds: Turns that each contestant has.
        backend: What computes at ours, as `vitrail serve --backend` says.
        precision: That of ours, as `vitrail serve --precision` says.
        data: What calibrates int8.
        json: Write the figures here.
    """
    bodies = [_form(data) for data in _read(photos)]
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        model = weights or random_weights(Path(temporary))
        serve = [
            sys.executable,
            "-m",
            "vitrail",
            "serve",
            str(model),
            "--backend",
            backend,
            "--precision",
            precision,
            *(["--data", data] if data else []),
            "--port",
        ]
        peer = [sys.executable, str(Path(__file__).with_name("servers.py"))]
        places = {
            OURS: stack.enter_context(_running(serve)),
            "litserve": stack.enter_context(_running([*peer, "litserve", str(model)])),
            "fastapi + timm": stack.enter_context(_running([*peer, "fastapi", str(model)])),
        }
        agreement = asyncio.run(compare(places, bodies))
        timings = asyncio.run(measure(places, bodies, clients, images, single, rounds))
    show(timings, agreement)
    if json:
        figures = {"timings": [*map(asdict, timings)], "same": agreement, "versions": versions()}
        json.write_text(json_format.dumps({**figures, "cores": os.cpu_count()}, indent=1) + "\n")


def _read(photos: Path | None) -> list[bytes]:
    if photos is None:
        return make_files(375, 500)
    files = sorted(p for p in photos.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))[:32]
    assert files, f"no JPEGs in {photos}"
    return [file.read_bytes() for file in files]


def _form(data: bytes) -> bytes:
    """Write a request with an image as curl -F does."""
    part = b'Content-Disposition: form-data; name="file"; filename="a.jpg"\r\n'
    body = b"--%b\r\n%bContent-Type: image/jpeg\r\n\r\n%b\r\n--%b--\r\n"
    body %= (BOUNDARY, part, data, BOUNDARY)
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    head += b"Content-Type: multipart/form-data; boundary=%b\r\n\r\n"
    return head % (len(body), BOUNDARY) + body


@contextmanager
def _running(command: list[str]) -> Iterator[Cursor]:
    """Run a server as long as the block lasts; its port is the last word of the command."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, str(port)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        end = time.monotonic() + START
        while True:
            assert process.poll() is None, f"{command[1]} has ended"
            assert time.monotonic() < end, f"{command[1]} does not start"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):  # LitServe leaves some of its processes behind
            os.killpg(process.pid, signal.SIGKILL)


class Client:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Client:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> bytes:
        """Send a request and give its answer's body; anything but 200 is an error."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head[9:12] == b"200", head
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


async def compare(places: dict[str, Cursor], bodies: list[bytes]) -> dict[str, float]:
    """Say for how many images the most likely class is ours; this warms all servers up too."""
    tops: dict[str, list[int]] = {}
    for name, (port, _) in places.items():
        client = await Client.open(port)
        told = [json_format.loads(await client.ask(body)) for body in bodies]
        client.close()
        tops[name] = [each["images"][0]["top"][0]["index"] for each in told]
    ours = np.array(tops[OURS])
    return {name: float((ours == np.array(found)).mean()) for name, found in tops.items()}


async def turn(port: int, bodies: list[bytes], clients: int, count: int) -> list[float]:
    """Send requests from some clients at once: each one's seconds."""
    seconds: list[float] = []
    waiting = iter([bodies[number % len(bodies)] for number in range(count)])

    async def run() -> None:
        client = await Client.open(port)
        for body in waiting:
            start = time.perf_counter()
            await client.ask(body)
            seconds.append(time.perf_counter() - start)
        client.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    return seconds


async def measure(
    places: dict[str, Cursor],
    bodies: list[bytes],
    clients: int,
    images: int,
    single: int,
    rounds: int,
) -> list[Timing]:
    """Let the contestants take turns."""
    names = list(places)
    alone, speeds, works = np.zeros((3, rounds, len(names)))
    latencies: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for place in turn_order(len(names), number):
            port, session = places[names[place]]
            for _, other in places.values():
                os.killpg(other, signal.SIGCONT if other == session else signal.SIGSTOP)
            await turn(port, bodies, 1, 1)  # awake again
            alone[number, place] = np.median(await turn(port, bodies, 1, single))
            start, before = time.perf_counter(), _processor(session)
            latencies[names[place]] += await turn(port, bodies, clients, images)
            speeds[number, place] = images / (time.perf_counter() - start)
            works[number, place] = (_processor(session) - before) / images
    return [
        Timing(
            contestant=name,
            single=float(1000 * np.median(alone[:, place])),
            single_ratio=float(np.median(alone[:, place] / alone[:, 0])),
            p50=float(1000 * np.percentile(latencies[name], 50)),
            p99=float(1000 * np.percentile(latencies[name], 99)),
            speed=float(np.median(speeds[:, place])),
            ratio=float(np.median(speeds[:, 0] / speeds[:, place])),
            processor=float(1000 * np.median(works[:, place])),
            processor_ratio=float(np.median(works[:, place] / works[:, 0])),
        )
        for place, name in enumerate(names)
    ]


def _processor(session: int) -> float:
    """Give the seconds that all processes of a session have computed, where Linux says it."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def show(timings: list[Timing], agreement: dict[str, float]) -> None:
    """Print the figures as a table."""
    columns = ("", "alone ms", "ratio", "p50 ms", "p99 ms", "images / s", "ratio")
    table = Table(*columns, "processor ms", "ratio", "top-1 as ours")
    for row in timings:
        table.add_row(
            row.contestant, f"{row.single:.1f}", f"{row.single_ratio:.2f}", f"{row.p50:.0f}",
            f"{row.p99:.0f}", f"{row.speed:.1f}", f"{row.ratio:.2f}",
            f"{row.processor:.1f}", f"{row.processor_ratio:.2f}",
            f"{agreement[row.contestant]:.1%}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with the servers ended
    tyro.cli(main)
