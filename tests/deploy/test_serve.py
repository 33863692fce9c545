"""The server answers as the predictor does, alone and in any batch; its defaults; its end."""

import asyncio
import base64
import io
import json
import logging
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.deploy.serving import (
    HEAD,
    NAMES,
    PREPROCESS,
    Server,
    doubtful,
    form,
    image,
    save_model,
    started,
)
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.data.transforms.apply import normalize
from vitrail.deploy.serving import server as server_room
from vitrail.deploy.serving.serve_config import ServeConfig, name_models
from vitrail.inspection.attention import attention_masks
from vitrail.inspection.distance import attention_distance
from vitrail.inspection.record import record
from vitrail.predictor import Predictor
from vitrail.weights.model_folder import load_folder, save_folder

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)

KEY = "correct-horse-battery"
THRESHOLDS = (0.1, 0.9, 0.05, 0.3, 0.8, 0.2, 0.6)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    save_model(place / "first")
    bit = "BiT-R50x1@32,stages=1-1-1-1,width=32,classes=0"
    save_model(place / "blind", bit, None)
    save_model(place / "several", thresholds=THRESHOLDS)
    numbers = replace(load_folder(place / "first"), activation="none")
    save_folder(numbers, place / "numbers")
    return place


@pytest.fixture(scope="module")
def predictor(models: Path) -> Predictor:
    return Predictor.load(models / "first")


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    sources = [str(models / "first"), f"second={models / 'blind'}", str(models / "several")]
    sources.append(str(models / "numbers"))
    with started(tmp_path_factory.mktemp("serve"), *sources, "--workers", "2") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server with a key in its environment, whose model says what it is unsure of."""
    place = tmp_path_factory.mktemp("guarded")
    folder = save_model(place / "doubts", uncertainty=doubtful(models / "first"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_API_KEY", KEY)
        with started(place, str(folder), "--unsure", "5%", "--workers", "1") as running:
            yield running


def test_an_image_gets_the_predictors_answer(server: Server, predictor: Predictor) -> None:
    expected = predictor.predict(image(1), top=3)
    for headers, body in (({}, image(1)), form(("a.png", image(1)))):
        status, kinds, told = server.post("/predict?top=3", body, **headers)
        assert (status, told["model"]) == (200, "first")
        assert kinds["content-type"] == "application/json"
        top = told["images"][0]["top"]
        assert [(score["index"], score["label"]) for score in top] == [
            (score.index, score.label) for score in expected.top
        ]
        values = [score["probability"] for score in top]
        assert values == pytest.approx([score.probability for score in expected.top], abs=1e-6)


def test_a_regression_gives_its_numbers(server: Server, models: Path) -> None:
    expected = Predictor.load(models / "numbers").logits(image(1)).tolist()
    status, _, told = server.post("/predict?model=numbers", image(1))
    assert status == 200
    assert told["images"] == [{"values": pytest.approx(dict(zip(NAMES, expected, strict=True)))}]


def test_a_calibrated_model_says_what_it_is_unsure_of(guarded: Server) -> None:
    predictor = Predictor.load(guarded.log.parent / "doubts", unsure="5%")
    asked = [image(seed) for seed in range(24)]
    expected = predictor.predict(asked)
    assert {each.unsure for each in expected} == {True, False}
    found = [guarded.post("/predict", content, X_API_Key=KEY)[2]["images"][0] for content in asked]
    for each, prediction in zip(found, expected, strict=True):
        assert each["unsure"] == prediction.unsure
        assert each["ood"] == pytest.approx(prediction.ood, abs=1e-6)
        assert each["top"][0]["probability"] == pytest.approx(prediction.probability, abs=1e-6)


def test_a_multi_label_model_gives_the_classes_that_reach_their_thresholds(
    server: Server, models: Path
) -> None:
    logits = Predictor.load(models / "several").logits(image(1))
    values = dict(zip(NAMES, logits.double().sigmoid().tolist(), strict=True))
    limits = dict(zip(NAMES, THRESHOLDS, strict=True))
    order = sorted(NAMES, key=lambda name: (values[name] < limits[name], -values[name]))
    reached = [name for name in order if values[name] >= limits[name]]
    assert 1 < len(reached) < len(NAMES)
    _, _, told = server.post("/predict?model=several&top=1", image(1))
    (found,) = told["images"]
    assert found["labels"] == reached
    assert [score["label"] for score in found["top"]] == reached
    _, _, told = server.post("/predict?model=several&top=7", image(1))
    (found,) = told["images"]
    assert found["labels"] == reached
    assert [score["label"] for score in found["top"]] == order
    assert [score["predicted"] for score in found["top"]] == [name in reached for name in order]
    assert [score["probability"] for score in found["top"]] == pytest.approx(
        [values[name] for name in order], abs=1e-6
    )
    _, _, told = server.post("/predict?model=first", image(1))
    assert list(told["images"][0]) == ["top"]
    assert "predicted" not in told["images"][0]["top"][0]


def test_several_images_stay_in_order_and_a_bad_one_says_why(
    server: Server, predictor: Predictor
) -> None:
    files = [("a", image(1)), ("b", b"no image"), ("c", image(2))]
    status, _, told = server.send_form("/predict?model=first", *files)
    assert status == 200
    first, bad, last = told["images"]
    assert bad == {"error": "not an image but text", "kind": "not an image"}
    for answer, seed in ((first, 1), (last, 2)):
        assert answer["top"][0]["label"] == predictor.predict(image(seed)).label
    status, _, told = server.send_form("/predict", ("b", b"no image"), ("c", b""))
    assert status == 422
    assert [each["kind"] for each in told["images"]] == ["not an image"] * 2


def test_many_at_once_get_each_their_own(server: Server, predictor: Predictor) -> None:
    images = [image(seed) for seed in range(128)]
    expected = predictor.logits(images).double().softmax(-1).numpy()

    def ask(data: bytes) -> np.ndarray:
        status, _, told = server.post("/predict?top=7", data)
        assert status == 200
        top = told["images"][0]["top"]
        return np.array([g["probability"] for g in sorted(top, key=lambda g: g["index"])])

    with ThreadPoolExecutor(32) as threads:
        found = np.stack(list(threads.map(ask, images)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    apart = np.abs(expected[:, None] - expected).max(-1)
    assert apart[~np.eye(128, dtype=bool)].min() > 1e-4, "the images are too alike for this"
    assert server.metric("vitrail_batch_images_sum") > server.metric("vitrail_batch_images_count")


def test_embeddings(server: Server, predictor: Predictor) -> None:
    _, _, told = server.post("/embed", image(3))
    expected = predictor.embed(image(3)).tolist()
    assert told["images"][0]["embedding"] == pytest.approx(expected, abs=1e-5)
    _, _, told = server.post("/embed?model=second", image(3))
    assert len(told["images"][0]["embedding"]) == 1024


def test_attention_is_inspections(server: Server, predictor: Predictor) -> None:
    asked = "/attention?layer=1&head=1&distances=true&view=true"
    status, _, told = server.post(asked, image(4))
    assert status == 200
    found = told["images"][0]
    prepared = predictor.prepare(image(4))
    x = normalize(prepared[None], PREPROCESS)
    with torch.no_grad(), record(predictor.model, attention=[1], heads=[1]) as tape:
        predictor.model(x)
    assert (found["grid"], found["prefix"]) == ([4, 4], 1)
    np.testing.assert_allclose(found["weights"], tape.attention[1][0, 0], atol=1e-5)
    np.testing.assert_allclose(
        np.ravel(found["mask"]), np.array(found["weights"])[0, 1:], atol=2e-5
    )
    distances = attention_distance(predictor.model, [x]).pixels
    np.testing.assert_allclose(found["distances"], distances, atol=1e-4)
    view = np.frombuffer(base64.b64decode(found["view"]["rgb"]), np.uint8)
    np.testing.assert_array_equal(view.reshape(32, 32, 3), prepared.numpy())
    for method in ("rollout", "gradient"):
        _, _, told = server.post(f"/attention?method={method}", image(4))
        masks = attention_masks(predictor.model, x, method=method).values[0]
        np.testing.assert_allclose(told["images"][0]["mask"], masks, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/predict?model=third", 404, "no model of this name; there are: first, second"),
        ("/predict?model=../../etc/passwd", 404, "no model of this name"),
        ("/predict?model=second", 422, "second has no classes"),
        ("/predict?top=0", 422, "top: "),
        ("/predict?tpo=2", 422, "unknown parameter 'tpo'; did you mean 'top'?"),
        ("/embed?size=2", 422, "unknown parameter 'size'; there are: model"),
        ("/predict?top=1000000000", 422, "top: "),
        ("/predict?top=nan", 422, "top: "),
        ("/attention?layer=7", 422, "no attention layer 7"),
        ("/attention?head=7", 422, "no head 7"),
        ("/attention?head=7&method=rollout", 422, "no head 7"),
        ("/attention?method=x", 422, "method: "),
        ("/attention?model=second", 422, "no "),
    ],
)
def test_wrong_wishes_are_explained(server: Server, path: str, status: int, text: str) -> None:
    found, _, told = server.post(path, image(0))
    assert found == status
    assert text in told["error"]
    assert "/" not in told["error"].replace("ViT/8", "")


def test_models_and_openapi(server: Server) -> None:
    first, second, _, numbers = server.ask("GET", "/models")[2]
    assert (first["targets"], numbers["targets"]) == (None, list(NAMES))
    assert first == {
        "name": "first", "model": "ViT/8@32,depth=2,width=32,heads=2,mlp=64", "classes": 7,
        "features": 32, "image": [32, 32], "fit": "crop", "crop": 1.0,
        "attention": {"layers": 2, "heads": 2}, "index": None, "targets": None,
    }  # fmt: skip
    assert (second["name"], second["classes"], second["attention"]) == ("second", 0, None)
    paths = server.ask("GET", "/openapi.json")[2]["paths"]
    work = {"/predict", "/embed", "/attention", "/similar", "/similar/{id}"}
    assert set(paths) == {*work, "/models", "/health", "/metrics"}
    forms = paths["/predict"]["post"]["requestBody"]["content"]
    assert set(forms) == {"multipart/form-data", "image/*"}


def test_requests_are_counted(server: Server) -> None:
    before = server.metric('vitrail_requests_total{route="/predict",status="422"}')
    server.post("/predict", b"x")
    server.ask("GET", "/secret-name")
    assert server.metric('vitrail_requests_total{route="/predict",status="422"}') == before + 1
    assert server.metric("vitrail_workers_ready") == 2
    assert "secret" not in server.ask("GET", "/metrics")[2].decode()


def test_defaults_are_safe(server: Server) -> None:
    addresses = subprocess.run(
        ["cat", f"/proc/{server.process.pid}/net/tcp"], capture_output=True, text=True, check=True
    ).stdout
    assert f"0100007F:{server.port:04X}" in addresses
    assert f"00000000:{server.port:04X}" not in addresses
    for path in ("/", "/health", "/nothing"):
        _, headers, _ = server.ask("GET", path, Origin=f"http://127.0.0.1:{server.port}")
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    status, headers, page = server.ask("GET", "/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"POST /predict" in page
    assert f"curl -F file=@cat.jpg http://127.0.0.1:{server.port}/predict<".encode() in page
    assert b"<script" not in page
    for path in ("/redoc", "/admin", "/models/load"):
        assert server.ask("GET", path)[0] == 404
    for method in ("PUT", "DELETE", "PATCH", "POST"):
        assert server.ask(method, "/models", b"x")[0] == 405
    assert server.ask("OPTIONS", "/predict", Origin="http://evil.example")[0] in (403, 405)


def test_there_is_room_for_the_queue_before_anybody_waits() -> None:
    from vitrail.deploy.serving.batching import Batcher
    from vitrail.deploy.serving.limits import HTTPError, ServeLimits
    from vitrail.deploy.serving.metrics import Metrics

    nothing: Any = None  # no process is started

    async def flood() -> str:
        batcher = Batcher(nothing, 1, 1, ServeLimits(queue=3), Metrics())
        taken = [batcher.run("m", "predict", {}, [b"x"]) for _ in range(3)]
        try:
            taken.append(batcher.run("m", "predict", {}, [b"x"]))
        except HTTPError as refusal:
            return str(refusal)
        finally:
            for each in taken:
                each.close()
        return "taken"

    assert asyncio.run(flood()) == "busy, try again in 1 s"


def test_other_hosts_and_origins_are_refused(server: Server) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example:80", "[::1", ""):
        assert server.ask("GET", "/models", Host=host)[0] == 421, host
    for host in ("localhost", "127.0.0.1:1", "[::1]:80", "192.168.0.7"):
        assert server.ask("GET", "/models", Host=host)[0] == 200, host
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://[", ""):
        assert server.post("/predict", image(0), Origin=origin)[0] == 403, origin


def test_uploads_leave_no_trace(server: Server) -> None:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("GPS", "MARKER-52.5")
    data = image(5, pnginfo=info)
    assert b"MARKER-52.5" in data
    big = image(6, height=900, width=900)
    assert len(big) > 2**20  # above which web servers write uploads to files
    for path in ("/predict", "/embed", "/attention"):
        for content in (data, data[:-9], big):
            _, _, told = server.send_form(path, ("MARKER.png", content))
            assert "MARKER" not in json.dumps(told)
    assert list((server.log.parent / "tmp").iterdir()) == []
    assert server.log.read_text() == ""


def test_announced_bytes_take_nothing_from_others(server: Server) -> None:
    line = b"Content-Length: %d\r\n\r\nab" % (9 * 2**20)
    waiting = [server.raw(HEAD + line) for _ in range(60)]
    statuses = [server.post("/predict", image(seed))[0] for seed in range(20)]
    for client in waiting:
        client.close()
    assert statuses == [200] * 20


def test_model_processes_do_not_get_the_key(guarded: Server) -> None:
    assert guarded.ask("GET", "/models")[0] == 401
    (worker,) = guarded.workers()
    for name in ("environ", "cmdline"):
        content = Path(f"/proc/{worker}/{name}").read_bytes()
        assert content
        assert KEY.encode() not in content


def test_a_key_is_asked_for_and_sigterm_loses_nothing(models: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    options = ["--host", "0.0.0.0", "--api-key-file", str(key), "--workers", "1"]
    with started(tmp_path, str(models / "first"), *options, "--queue", "1000") as server:
        warning = server.log.read_text()
        assert "warning: other machines can reach 0.0.0.0, anyone with the API key" in warning
        assert KEY not in warning
        for path in ("/", "/main.js", "/health"):
            assert server.ask("GET", path)[0] == 200
        for path in ("/models", "/metrics", "/openapi.json"):
            assert server.ask("GET", path)[0] == 401
            assert server.ask("GET", path, Authorization=f"Bearer {KEY}")[0] == 200
            assert server.ask("GET", path, X_API_Key=KEY)[0] == 200
            assert server.ask("GET", path, X_API_Key=KEY[:-1])[0] == 401
        assert server.post("/predict", image(0), Authorization="Bearer x")[0] == 401

        # Stopped under load: what was taken is answered.
        clients = [
            server.raw(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %b\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (KEY.encode(), len(data), data)
            )
            for data in [image(0)] * 40
        ]
        # Connections are taken in their order: once a later one is answered, all of these were.
        assert server.ask("GET", "/metrics", X_API_Key=KEY)[0] == 200
        answers: list[bytes] = []

        def read(client: socket.socket) -> None:
            answers.append(client.recv(65536))

        readers = [threading.Thread(target=read, args=[client]) for client in clients]
        server.process.send_signal(signal.SIGTERM)
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        for client in clients:
            client.close()
        assert server.process.wait(20) == 0
        assert [answer[9:12] for answer in answers] == [b"200"] * 40


def test_models_are_named(tmp_path: Path) -> None:
    assert name_models(("runs/photos/", "timm:vit_b", "x=hf:a/b", "../a=b/c")) == {
        "photos": "runs/photos/",
        "vit_b": "timm:vit_b",
        "x": "hf:a/b",
        "c": "../a=b/c",
    }
    assert "two models are called 'a'" in refusal(name_models, ("x/a", "y/a"))
    assert "no model given" in refusal(name_models, ())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere", "--workers", "1"], "vitrail: no file or folder 'nowhere'"),
        (["x", "--port", "70000"], "--port 70000: expected 0 to 65535"),
        (["x", "--workers", "0"], "--workers 0: expected at least 1"),
        (["x", "--queue", "0"], "--queue 0: expected more than 0 and at most 65536"),
        (
            ["x", "--max-megabytes", "inf"],
            "--max-megabytes inf: expected more than 0 and at most 256",
        ),
        (
            ["x", "--max-megapixels", "nan"],
            "--max-megapixels nan: expected more than 0 and at most 100",
        ),
        (
            ["x", "--max-megapixels", "150"],
            "--max-megapixels 150: expected more than 0 and at most 100",
        ),
        (
            ["x", "--answer-seconds", "inf"],
            "--answer-seconds inf: expected more than 0 and at most 3600",
        ),
        (["x", "--allow-host", "a:80"], "--allow-host a:80: expected a host name"),
        (["x", "--host", "a" * 64], "can't listen on aaaa"),
        (["x", "--api-key-file", "/nowhere/key"], "No such file or directory"),
        (["x", "--host", "no.such.host.invalid"], "can't listen on no.such.host.invalid"),
    ],
)
def test_bad_orders_get_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["serve", *arguments, *([] if "--port" in arguments else ["--port", "0"])])
    told = capsys.readouterr()
    assert stop.value.code == 2
    assert told.out == ""
    assert text in told.err.splitlines()[-1]


def test_a_request_never_has_more_images_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be told to try again for ever."""
    asked: list[ServeConfig] = []
    monkeypatch.setattr(server_room, "run_server", lambda config, started: asked.append(config))
    main(["serve", "x", "--queue", "8"])
    main(["serve", "x", "--queue", "8", "--max-images", "3"])
    assert [config.limits.images for config in asked] == [8, 3]


def test_serving_leaves_others_logging_alone(capsys: pytest.CaptureFixture[str]) -> None:
    class Closes(logging.StreamHandler[io.StringIO]):
        """A handler that closes its stream with itself, as absl's does."""

        def close(self) -> None:
            self.stream.close()
            super().close()

    handler = Closes(stream := io.StringIO())
    with pytest.raises(SystemExit):
        main(["serve", "nowhere", "--workers", "1", "--port", "0"])
    assert not stream.closed
    assert "no file or folder 'nowhere'" in capsys.readouterr().err
    handler.close()


def test_too_few_open_files_are_said_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It started, and told every client that there were too many connections."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    with pytest.raises(SystemExit) as stop:
        main(["serve", str(save_model(tmp_path / "model")), "--port", "0", "--workers", "1"])
    told = capsys.readouterr()
    assert (stop.value.code, told.out) == (2, "")
    assert told.err == (
        "vitrail: only 64 open files are allowed, too few for connections; raise the limit to 250 "
        "or more with ulimit -n\n"
    )
