"""A server as users start it, and clients of all manners."""

import asyncio
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.cli import main
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.uncertainty.novelty import class_means, feature_distance
from vitrail.models import build, parse
from vitrail.predictor import Predictor
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.model_folder import save_folder
from vitrail.weights.uncertainty_record import Uncertainty, UncertaintyFacts

PREPROCESS = Preprocess(
    size=(32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25), interpolation="bicubic", fit="crop"
)
NAMES = ("cat", "dog", "hen", "owl", "pig", "rat", "yak")
RECEIVE, QUEUE = 1.5, 64
"""Seconds and images that `attacked` takes."""
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
SMALL = "ViT/8@32,depth=2,width=32,heads=2,mlp=64,classes=7"


def save_model(
    folder: Path,
    name: str = SMALL,
    classes: tuple[str, ...] | None = NAMES,
    thresholds: tuple[float, ...] | None = None,
    uncertainty: Uncertainty | None = None,
) -> Path:
    """Write a model of random weights that tells images apart; multi-label with thresholds."""
    torch.manual_seed(0)
    model = build(parse(name))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tensors = {key: tensor.detach() for key, tensor in model.state_dict().items()}
    checkpoint = Checkpoint(
        spec=model.spec,
        tensors=tensors,
        preprocess=PREPROCESS,
        classes=classes,
        activation="softmax" if thresholds is None else "sigmoid",
        thresholds=thresholds,
        uncertainty=uncertainty,
    )
    save_folder(checkpoint, folder)
    return folder


def doubtful(model: Path, images: int = 200) -> Uncertainty:
    """Say of a model that the less sure half of its answers to noise was wrong."""
    predictor = Predictor.load(model, device="cpu")
    noise = [image(1000 + seed) for seed in range(images)]
    confidence = predictor.logits(noise).double().softmax(1).amax(1)
    features = predictor.embed(noise)
    means = class_means(features[:14], torch.arange(14) % 7, 7)
    facts = UncertaintyFacts(
        temperature=2.5, ece_before=0.3, ece_after=0.1, images=images, data="noise"
    )
    return Uncertainty(
        facts=facts,
        confidence=confidence,
        correct=(confidence > confidence.median()).to(torch.uint8),
        means=means,
        distances=feature_distance(features, means),
    )


def embed(model: Path, photos: Path, out: Path, *more: str) -> Path:
    """Write an index as users do."""
    main(["embed", str(model), str(photos), "--out", str(out), "--fresh", "--device", "cpu", *more])
    return out


def save_photos(folder: Path, count: int) -> Path:
    """Write images of three classes; the seed of each is its name."""
    for seed in range(count):
        file = folder / NAMES[seed % 3] / f"{seed:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image(seed))
    return folder


def image(seed: int = 0, *, height: int = 40, width: int = 48, **options: Any) -> bytes:
    """Paint a PNG; each seed another one."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", **options)
    return stream.getvalue()


def form(*files: tuple[str, bytes], boundary: str = "xYzzY") -> tuple[dict[str, str], bytes]:
    """Write files as a browser's form does: headers and body."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        f"Content-Type: image/png\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in files
    ]
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return {"Content-Type": f"multipart/form-data; boundary={boundary}"}, body


def until(check: Callable[[], Any], seconds: float = 40.0) -> Any:
    """Wait until something is so, and give it."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], log: Path, port: int) -> None:
        self.process, self.log, self.port = process, log, port

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Ask on a connection of its own: the status, the headers, and JSON or bytes."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            client.request(method, path, body, named)
            answer = client.getresponse()
            data = answer.read()
        finally:
            client.close()
        kinds = {name.lower(): value for name, value in answer.getheaders()}
        plain = json.loads(data) if kinds.get("content-type") == "application/json" else data
        return answer.status, kinds, plain

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], Any]:
        return self.ask("POST", path, body, **headers)

    def send_form(self, path: str, *files: tuple[str, bytes]) -> tuple[int, dict[str, str], Any]:
        headers, body = form(*files)
        return self.post(path, body, **headers)

    def raw(self, data: bytes) -> socket.socket:
        """Open a connection and send bytes as they are."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        client.sendall(data)
        return client

    def healthy(self) -> bool:
        return self.ask("GET", "/health")[0] == 200

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics")[2].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def workers(self) -> list[int]:
        """Give the ids of the model processes."""
        number = self.process.pid
        return [*map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())]

    def memory(self, process: int | None = None) -> int:
        """Give the bytes that the server itself holds, or another process."""
        lines = Path(f"/proc/{process or self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def sockets(self) -> int:
        """Count the server's own connections, and what else is a socket."""
        count = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(each).startswith("socket:")
        return count

    def held(self) -> dict[str, int]:
        """Count the open files and the threads of the server and its model processes."""
        processes = [self.process.pid, *self.workers()]
        return {
            kind: sum(len(os.listdir(f"/proc/{number}/{kind}")) for number in processes)
            for kind in ("fd", "task")
        }


def read_all(client: socket.socket) -> bytes:
    """Read to the end; a reset ends it too."""
    pieces = []
    try:
        while piece := client.recv(65536):
            pieces.append(piece)
    except ConnectionError:
        pass
    client.close()
    return b"".join(pieces)


@contextmanager
def started(
    place: Path, *arguments: str, program: Sequence[str] = ("-m", "vitrail")
) -> Iterator[Server]:
    """Run `vitrail serve` until the block ends; its temporary files would be in `place`/tmp."""
    (place / "tmp").mkdir()
    log = place / "log"
    environment = {**os.environ, "TMPDIR": str(place / "tmp"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *program, "serve", *arguments, "--port", "0", "--json"]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        try:
            port = int(json.loads(line)["address"].rpartition(":")[2])
            yield Server(process, log, port)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(30)
            process.stdout.close()


@contextmanager
def attacked(place: Path) -> Iterator[Server]:
    """Run a server with an index and little patience, which must have nothing to say in the end."""
    model = save_model(place / "model")
    index = embed(model, save_photos(place / "photos", 12), place / "index.safetensors")
    options = {
        "--workers": "1", "--receive-seconds": str(RECEIVE), "--queue": str(QUEUE),
        "--answer-seconds": "3.5", "--max-megabytes": "4", "--max-megapixels": "60",
        "--index": str(index),
    }  # fmt: skip
    with started(place, str(model), *(word for pair in options.items() for word in pair)) as it:
        until(it.healthy)
        yield it
        until(it.healthy)
        said = it.log.read_text()
        assert said == "", said[:3000]


def request(data: bytes) -> bytes:
    """Write a request as a client does that asks once."""
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


def status_of(answer: bytes) -> int:
    """Read an answer's status."""
    return int(answer[9:12])
