"""Similar images: the index's nearest, as small copies, and nothing else of the disk."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.commands import run
from tests.deploy.serving import (
    SMALL,
    Server,
    embed,
    image,
    read_all,
    save_model,
    save_photos,
    started,
)
from tests.shelf import refusal
from vitrail.deploy.serving.serve_config import name_indices
from vitrail.deploy.serving.similarity_index import SIDE, SimilarityIndex
from vitrail.predictor import Predictor

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)

COUNT = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("similar")
    save_model(place / "model")
    save_photos(place / "photos", COUNT)
    (place / "photos" / "dog" / "01.png").write_bytes(image(1, height=600, width=400))
    embed(place / "model", place / "photos", place / "index.safetensors")
    return place


@pytest.fixture(scope="module")
def predictor(place: Path) -> Predictor:
    return Predictor.load(place / "model")


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = [f"plain={place / 'model'}", f"found={place / 'model'}"]
    options = ["--index", f"found={place / 'index.safetensors'}", "--workers", "1"]
    with started(tmp_path_factory.mktemp("serve"), *models, *options) as running:
        yield running


def in_order(place: Path) -> list[Path]:
    """Give the index's files, row by row: classes and files by their names."""
    return sorted((place / "photos").rglob("*.png"))


def test_the_nearest_are_found_by_cosine(server: Server, place: Path, predictor: Predictor) -> None:
    files = in_order(place)
    known = predictor.embed([path.read_bytes() for path in files])
    asked = predictor.embed([image(100), image(3)])
    cosines = torch.nn.functional.cosine_similarity(asked[:, None], known[None], dim=-1)
    uploads = [("a", image(100)), ("b", b"no image"), ("c", image(3))]
    status, _, told = server.send_form("/similar?model=found&top=5", *uploads)
    assert (status, told["model"]) == (200, "found")
    first, bad, last = told["images"]
    assert bad["kind"] == "not an image"
    for answer, row in zip((first, last), cosines, strict=True):
        expected = row.topk(5)
        assert [each["id"] for each in answer["similar"]] == expected.indices.tolist()
        similar = [each["similarity"] for each in answer["similar"]]
        assert similar == pytest.approx(expected.values.tolist(), abs=2e-5)
        labels = [each["label"] for each in answer["similar"]]
        assert labels == [files[each["id"]].parent.name for each in answer["similar"]]
    assert last["similar"][0]["similarity"] == pytest.approx(1, abs=1e-5)
    assert files[last["similar"][0]["id"]].name == "03.png"
    _, _, told = server.post("/similar?model=found&top=100", image(3))
    assert len(told["images"][0]["similar"]) == COUNT
    assert len(server.post("/similar?model=found", image(3))[2]["images"][0]["similar"]) == 8
    assert server.post("/similar?model=found", b"x")[0] == 422


def test_a_image_of_the_index_is_shown_small(server: Server, place: Path) -> None:
    for row, path in enumerate(in_order(place)):
        status, headers, data = server.ask("GET", f"/similar/{row}?model=found")
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        whole = Image.open(path)
        whole.thumbnail((SIDE, SIDE))
        small = Image.open(io.BytesIO(data))
        assert small.format == "JPEG"
        assert small.size == whole.size
        assert max(small.size) <= SIDE
        apart = np.asarray(small, np.int16).mean((0, 1)) - np.asarray(whole, np.int16).mean((0, 1))
        assert np.abs(apart).max() < 6


def test_what_is_not_in_the_index_is_404(server: Server, place: Path) -> None:
    gone = in_order(place)[5]
    content = gone.read_bytes()
    gone.unlink()
    try:
        status, _, told = server.ask("GET", "/similar/5?model=found")
        assert (status, told["error"]) == (404, "this image is gone")
        gone.symlink_to(place)  # a folder by now
        assert server.ask("GET", "/similar/5?model=found")[0] == 404
    finally:
        gone.unlink()
        gone.write_bytes(content)
    assert server.ask("GET", "/similar/5?model=found")[0] == 200
    assert server.ask("GET", f"/similar/{COUNT}?model=found")[0] == 404
    for path in ("/similar/0", "/similar/0?model=plain", "/similar/0?model=other"):
        assert server.ask("GET", path)[0] == 404, path
    assert server.post("/similar?model=plain", image(0))[0] == 404
    for row in ("-1", "1e3", "nan", "0x1", "99999999999999999999", "1.5"):
        assert server.ask("GET", f"/similar/{row}?model=found")[0] == 422, row
    for row in (
        "",
        "%31%00",
        "..",
        "0/..",
        "../model",
        str(place / "photos/cat/00.png"),
        "cat/00.png",
    ):
        line = f"GET /similar/{row}?model=found HTTP/1.1\r\nHost: localhost\r\n"
        answer = read_all(server.raw(f"{line}Connection: close\r\n\r\n".encode()))
        assert answer[9:12] in (b"404", b"422", b"405"), row
        assert b"image/" not in answer
    for top in ("0", "-1", "101", "nan"):
        assert server.post(f"/similar?model=found&top={top}", image(0))[0] == 422


def test_models_say_whether_they_have_one(server: Server) -> None:
    plain, found = server.ask("GET", "/models")[2]
    assert (plain["index"], found["index"]) == (None, COUNT)
    paths = server.ask("GET", "/openapi.json")[2]["paths"]
    assert {"/similar", "/similar/{id}"} <= set(paths)
    server.ask("GET", "/similar/0?model=found")
    assert server.metric('vitrail_requests_total{route="/similar/{id}",status="200"}') >= 1


def test_an_index_of_something_else_is_refused(
    place: Path, tmp_path: Path, predictor: Predictor, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_model(tmp_path / "other", SMALL.replace("depth=2", "depth=3"))
    index = embed(other, place / "photos", tmp_path / "i.parquet")
    told = refusal(SimilarityIndex, str(index), predictor)
    assert f"i.parquet was made by another model, {other}; make it with: vitrail embed " in told
    index = embed(place / "model", place / "photos", index, "--features", "class-token")
    assert "has class-token features; expected pre-logits" in refusal(
        SimilarityIndex, str(index), predictor
    )
    moved = (tmp_path / "photos").resolve()
    (place / "photos").rename(moved)
    try:
        told = refusal(SimilarityIndex, str(place / "index.safetensors"), predictor)
    finally:
        moved.rename(place / "photos")
    assert "its images are missing: " in told
    capsys.readouterr()
    words = ("--port", "0", "--workers", "1", "--index", str(index))
    code, out, err = run(capsys, "serve", str(place / "model"), *words)
    assert (code, out) == (2, "")
    assert err.startswith("vitrail: ")
    assert err.count("\n") == 1


def test_images_that_are_no_files(tmp_path: Path, predictor: Predictor, place: Path) -> None:
    """Of sets that hold pixels or few channels, too, and where images were added since."""
    index = embed(place / "model", Path("digits"), tmp_path / "i.parquet", "--split", "test")
    similar = SimilarityIndex(str(index), predictor)
    small = Image.open(io.BytesIO(similar.thumbnail(3)))
    assert (small.size, small.mode) == ((8, 8), "RGB")
    (found,) = similar.find(predictor.embed([image(1)]), 2)
    assert found[0]["similarity"] >= found[1]["similarity"]
    before = SimilarityIndex(str(place / "index.safetensors"), predictor)
    added = place / "photos" / "cat" / "000.png"
    added.write_bytes(image(77))
    try:
        after = SimilarityIndex(str(place / "index.safetensors"), predictor)
        for row in range(COUNT):
            assert after.thumbnail(row) == before.thumbnail(row)
    finally:
        added.unlink()


def test_indices_are_named() -> None:
    models = {"a": "runs/a", "b": "runs/b"}
    assert name_indices(("x.parquet", "b=y.parquet"), models) == {
        "a": "x.parquet",
        "b": "y.parquet",
    }
    assert name_indices(("../p=q/x.parquet",), models) == {"a": "../p=q/x.parquet"}
    assert "no model is called 'c'; there are: a, b" in refusal(name_indices, ("c=x",), models)
    assert "'a' already has an index, x" in refusal(name_indices, ("x", "a=y"), models)
    assert json.dumps(name_indices((), models)) == "{}"


def test_a_folder_without_classes_has_an_index(
    place: Path, predictor: Predictor, tmp_path: Path
) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(3):
        (tmp_path / "flat" / f"{number}.png").write_bytes(image(number))
    embed(place / "model", tmp_path / "flat", tmp_path / "flat.safetensors")
    index = SimilarityIndex(str(tmp_path / "flat.safetensors"), predictor)
    (found,) = index.find(predictor.embed([image(2)]), 1)
    assert found == [{"id": 2, "label": "", "similarity": 1.0}]
    assert Image.open(io.BytesIO(index.thumbnail(2))).size[0] <= SIDE
