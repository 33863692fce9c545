"""Model processes that fail to start, upload budgets, and what the server checks at its start."""

import asyncio
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.cases import slow_but
from tests.commands import run
from tests.deploy.serving import save_model
from tests.shelf import refusal
from vitrail.deploy.serving import batching
from vitrail.deploy.serving.batching import Batcher, WorkerSlot
from vitrail.deploy.serving.limits import HTTPError, ServeLimits
from vitrail.deploy.serving.metrics import Metrics
from vitrail.deploy.serving.serve_config import read_key
from vitrail.deploy.serving.uploads import UploadBudget
from vitrail.deploy.serving.worker import describe_model, load_model

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)

NOTHING: Any = None


def test_a_process_that_fails_to_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    async def supervise() -> None:
        batcher = Batcher(NOTHING, 1, 1, ServeLimits(), Metrics())
        batcher.info = {"m": {}}  # the server has started
        enough = asyncio.Event()

        async def fail(slot: WorkerSlot) -> bool:
            nonlocal attempts
            attempts += 1
            if attempts == 4:
                enough.set()
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(batcher, "_run_process", fail)
        task = asyncio.create_task(batcher.supervise(WorkerSlot()))
        await asyncio.wait_for(enough.wait(), 20)
        assert not task.done()
        task.cancel()

    monkeypatch.setattr(batching, "_BACKOFF", (0.01, 0.02))
    with caplog.at_level(logging.ERROR):
        asyncio.run(supervise())
    assert attempts == 4
    assert "Cannot allocate memory" in caplog.text


def test_watching_survives_any_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[float] = []

    async def watch() -> None:
        batcher = Batcher(NOTHING, 1, 1, ServeLimits(), Metrics())
        twice = asyncio.Event()

        def fail(now: float, *, late: float) -> None:
            calls.append(now)
            if len(calls) == 2:
                twice.set()
            raise RuntimeError("watcher")

        monkeypatch.setattr(batcher, "_end_hanging", fail)
        task = asyncio.create_task(batcher.watch())
        await asyncio.wait_for(twice.wait(), 20)
        assert not task.done()
        task.cancel()

    asyncio.run(watch())
    assert "it continues" in caplog.text


def test_a_client_can_not_take_the_whole_budget() -> None:
    budget = UploadBudget(ServeLimits(body=4, uploads=20, client_uploads=8))

    def take(client: str, count: int) -> int:
        """Reserve single bytes until it is refused."""
        with budget.reservation(client) as reserve:
            for number in range(count):
                try:
                    reserve(1)
                except HTTPError:
                    return number
        return count

    with budget.reservation("a") as first:
        first(8)
        assert take("a", 1) == 0
        assert take("b", 30) == 8
        with budget.reservation("b") as second:
            second(8)
            assert take("c", 30) == 4  # what all together may hold
    assert take("a", 30) == 8


def test_a_key_that_others_can_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    path.write_text("correct-horse-battery")
    path.chmod(0o600)
    assert read_key(path) == "correct-horse-battery"
    assert capsys.readouterr().err == ""
    path.chmod(0o644)
    read_key(path)
    assert f"other users can read the API key in {path}" in capsys.readouterr().err


def test_a_model_that_fails_on_a_test_image_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = load_model(str(save_model(tmp_path / "model")), "named", None, "cpu")
    assert describe_model(served)["features"] == 32

    def fail(image: object) -> None:
        raise MemoryError("Unable to allocate 6.00 GiB")

    monkeypatch.setattr(served.predictor, "prepare", fail)
    assert refusal(describe_model, served) == (
        "named can't predict a test image: Unable to allocate 6.00 GiB"
    )


BROKEN = [{"crop": 1e-9}, {"mean": [0.5], "std": [0.5]}, {"size": [33, 47]}, {"fit": "nothing"}]


@pytest.mark.parametrize("change", slow_but(BROKEN[1:2], BROKEN))
def test_broken_preprocessing_is_refused_at_the_start(
    tmp_path: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    record = save_model(tmp_path / "model") / "model.json"
    data = json.loads(record.read_text())
    del data["checksum"]
    data["preprocess"] |= change
    record.write_text(json.dumps(data))
    code, out, err = run(capsys, "serve", str(record.parent), "--port", "0", "--workers", "1")
    assert (code, out) == (2, "")
    assert err.startswith("vitrail: ")
    assert err.count("\n") == 1, err


def test_the_largest_image_costs_less_than_300_megabytes() -> None:
    """RGBA costs most: Pillow's pixels, and a copy on white."""
    side = int(ServeLimits.pixels**0.5)
    script = """
import io, resource
from PIL import Image
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Preprocess

def encode(side):
    stream = io.BytesIO()
    Image.new("RGBA", (side, side)).save(stream, "PNG", compress_level=1)
    return stream.getvalue()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

half = (0.5,) * 3
rule = Preprocess(size=(224, 224), mean=half, std=half, interpolation="bicubic", fit="crop")
eval_image(encode(64), rule)
before, data = peak(), open(__import__("sys").argv[1], "rb").read()
eval_image(data, rule)
print(peak() - before)
"""
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        Image.new("RGBA", (side, side)).save(file, "PNG", compress_level=1)
        file.flush()
        command = [sys.executable, "-c", script, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300
