"""Quantized exports and the page's folder: what they lose, when they are refused."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases import slow
from tests.data.decoding.images import encode
from tests.predictors import NAMES, make
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.deploy.backends.engines import open_onnx
from vitrail.deploy.exporting import export as export_room
from vitrail.deploy.exporting import web_export as web_room
from vitrail.deploy.exporting import writers as writers_room
from vitrail.deploy.exporting.export import export
from vitrail.deploy.exporting.pack_weights import pack_weights
from vitrail.deploy.exporting.samples import take_samples
from vitrail.deploy.exporting.web_export import read_runtime
from vitrail.deploy.exporting.writers import ExportConfig, Quantize
from vitrail.predictor import Predictor
from vitrail.weights.loaded import LoadedModel

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


pytestmark = pytest.mark.usefixtures("onnx_once")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    torch.manual_seed(0)
    loaded = make("ViT/8@32,depth=2,width=64,heads=2,mlp=128,classes=7")
    for parameter in loaded.model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return Predictor(loaded)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        (root / split / "a").mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(0, 256, (4, 4, 3), np.uint8).repeat(8, 0).repeat(8, 1)
            (root / split / "a" / f"{number}.png").write_bytes(encode(pixels, "PNG"))
    return str(root)


@pytest.mark.parametrize(
    ("quantize", "apart", "ratio"),
    [("int8", 0.1, 0.6), slow("int8-weights", 0.02, 0.6), slow("float16-weights", 2e-3, 0.75)],
)
def test_a_quantized_model_is_small_and_near(
    predictor: Predictor, data: str, tmp_path: Path, quantize: Quantize, apart: float, ratio: float
) -> None:
    out = tmp_path / "small.onnx"
    written = export(predictor, out, to="onnx", quantize=quantize, max_changed=0.2, data=data)
    assert (written.quantize, written.checked, written.bytes) == (quantize, 20, out.stat().st_size)
    assert written.agreement >= 0.8
    assert 0 < written.max_difference < apart
    whole = sum(4 * parameter.numel() for parameter in predictor.model.parameters())
    assert out.stat().st_size < ratio * whole + 60_000  # what the graph takes
    model = onnx.load(out)
    onnx.checker.check_model(model)
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(told["classes"]) == list(NAMES)
    assert json.loads(told["vitrail.preprocess"])["size"] == [32, 32]
    assert b"site-packages" not in out.read_bytes()
    assert os.fsencode(Path(export_room.__file__).parent) not in out.read_bytes()
    x = torch.randn(3, 3, 32, 32)
    assert open_onnx(out)(x).shape == (3, 7)


def test_packed_weights_are_near_in_every_layout(tmp_path: Path) -> None:
    """Multiply by int8 weights of a MatMul, a Gemm and a Conv, with and without whole blocks."""
    generator = np.random.default_rng(0)
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    weights = {
        "matmul": generator.normal(size=(96, 64)),
        "gemm": generator.normal(size=(48, 100)) * 1e-9,  # below what scales in float16 reach
        "conv": generator.normal(size=(70, 3, 5, 5)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "matmul"], ["a"]),
        helper.make_node("Gemm", ["y", "gemm"], ["b"], transB=1),
        helper.make_node("Conv", ["z", "conv"], ["c"]),
    ]
    given = {"x": (2, 96), "y": (2, 100), "z": (2, 3, 5, 5)}
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "layers",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in given.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in "abc"],
        [numpy_helper.from_array(each.astype(np.float32), key) for key, each in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    inputs = {
        name: generator.normal(size=shape).astype(np.float32) for name, shape in given.items()
    }
    pack_weights(model, "int8-weights")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    a, b, c = session.run(None, inputs)
    expected = inputs["x"] @ weights["matmul"]
    assert 0 < np.abs(a - expected).max() < 0.02 * np.abs(expected).max()
    assert np.abs(b - inputs["y"] @ weights["gemm"].T).max() < 1e-6
    expected = np.einsum("nihw,oihw->no", inputs["z"], weights["conv"])
    assert 0 < np.abs(c[:, :, 0, 0] - expected).max() < 0.02 * np.abs(expected).max()


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let int8 weights lose everything, and tell which packing is tried."""
    tried: list[str] = []

    def pack(model: Any, packing: Any) -> None:
        tried.append(packing)
        pack_weights(model, packing)
        for tensor in model.graph.initializer:
            if tensor.name.endswith(".levels"):
                tensor.raw_data = bytes(len(tensor.raw_data))

    monkeypatch.setattr(writers_room, "pack_weights", pack)
    return tried


@pytest.mark.usefixtures("coarse")
def test_what_loses_too_much_is_not_written(
    predictor: Predictor, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "a.onnx").write_text("old")
    monkeypatch.setattr(Predictor, "load", lambda source, **options: predictor)
    arguments = ["export", "any", str(tmp_path / "a.onnx"), "--to", "onnx", "--data", data]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--quantize", "int8-weights"])
    said = capsys.readouterr().err
    assert "of 20 images" in said
    assert "more than --max-changed 0.01; nothing was written; try --quantize float16-w" in said
    assert (tmp_path / "a.onnx").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let two small files stand for onnxruntime-web's."""
    folder = tmp_path / "node_modules" / "dist"
    folder.mkdir(parents=True)
    table = {}
    for name, (ours, _) in web_room.RUNTIME.items():
        (folder / name).write_bytes(name.encode())
        table[name] = (ours, hashlib.sha256(name.encode()).hexdigest())
    monkeypatch.setattr(web_room, "RUNTIME", table)
    return folder.parent


def test_a_multi_label_model_is_judged_by_its_labels(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(context: Any, part: Path) -> Any:
        part.write_text("shifted")
        return lambda x: context.module(x) + 0.2  # the same top-1, but other sigmoids

    monkeypatch.setitem(export_room.WRITERS, "onnx", write)
    options: dict[str, Any] = {"to": "onnx", "quantize": "float16-weights", "images": 8}
    assert export(predictor, tmp_path / "one", **options).agreement == 1
    several = LoadedModel(predictor.model, NAMES, predictor.preprocess, None, "sigmoid")
    logits = predictor.logits(take_samples(None, predictor.preprocess, count=8).contents)
    near = ((logits < 0) & (logits >= -0.2)).any(1).double().mean()
    assert near > 0.01
    said = refusal(export, Predictor(several, device="cpu"), tmp_path / "two", **options)
    assert f"changes the top-1 of {near:.1%} of 8 images" in said


def test_a_page_takes_the_smallest_that_answers_well(
    predictor: Predictor, data: str, tmp_path: Path, runtime: Path, coarse: list[str]
) -> None:
    out = tmp_path / "page"
    written = export(predictor, out, to="web", runtime=runtime, data=data)
    assert coarse == ["int8-weights", "float16-weights"]
    assert written.quantize == "float16-weights"
    names = {file.name for file in written.files}
    assert names == {
        "index.html", "base.css", "app.css", "icon.svg", "bars.js", "image_input.js",
        "model_words.js", "web_main.js", "model_worker.js", "rank.js", "preprocess.js",
        "geometry.js", "resize.js", "model.json",
        "model.onnx", "onnxruntime.js", "onnxruntime.wasm",
    }  # fmt: skip
    about = json.loads((out / "model.json").read_text(encoding="utf-8"))
    assert about["classes"] == list(NAMES)
    assert about["bytes"]["model.onnx"] == (out / "model.onnx").stat().st_size
    assert "/" not in about["name"]  # no path of this machine
    assert "is an existing folder" in refusal(export, predictor, out, to="web", runtime=runtime)


def test_a_full_disk_leaves_no_page(
    predictor: Predictor, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writers_room, "write_page", full)
    said = refusal(export, predictor, tmp_path / "page", to="web", runtime=runtime, max_changed=0.9)
    assert "page: cannot be written: No space left" in said
    assert [path.name for path in tmp_path.iterdir()] == ["node_modules"]


def test_a_runtime_that_is_another_is_refused(runtime: Path, tmp_path: Path) -> None:
    assert set(read_runtime(runtime)) == {"onnxruntime.js", "onnxruntime.wasm"}
    assert set(read_runtime(runtime / "dist")) == {"onnxruntime.js", "onnxruntime.wasm"}
    (runtime / "dist" / "ort-wasm-simd-threaded.wasm").write_bytes(b"another")
    assert "is not the file of onnxruntime-web 1.30.0" in refusal(read_runtime, runtime)
    assert "has no ort.wasm.bundle.min.mjs" in refusal(read_runtime, tmp_path)


@pytest.mark.parametrize("script", ["exit 1", "echo 'npm error code E404' >&2; exit 1"])
def test_an_npm_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    npm = tmp_path / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))
    said = refusal(read_runtime, None)
    assert ("npm error code E404" if "E404" in script else "exit code 1") in said
    assert ": --runtime FOLDER" in said
    npm.write_text("#!/bin/sh\necho no archive > a.tgz\n")
    assert "damaged" in refusal(read_runtime, None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "install npm, or give a folder" in refusal(read_runtime, None)


@pytest.mark.parametrize(
    ("to", "options", "said"),
    [
        ("pt2", {"quantize": "int8"}, "--quantize requires --to onnx or web"),
        ("onnx", {"quantize": "int8"}, "for calibration: --data"),
        ("onnx", {"runtime": Path("x")}, "--runtime requires --to web"),
        ("web", {"input": "uint8-nchw"}, "--input can't be used with --to web"),
        ("web", {"any_size": True}, "--any-size requires --to onnx or openvino"),
        ("web", {"runtime": Path("nowhere")}, "has no ort.wasm.bundle.min.mjs"),
    ],
)
def test_what_does_not_go_together(
    predictor: Predictor, tmp_path: Path, to: str, options: Any, said: str
) -> None:
    assert said in refusal(export, predictor, tmp_path / "out", to=to, **options)
    assert not list(tmp_path.iterdir())
    assert "max_changed must be in [0, 1), got 1.0" in refusal(ExportConfig, max_changed=1.0)


def test_logits_that_are_no_numbers_are_seen(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(context: Any, part: Path) -> Any:
        part.write_text("wrong")
        return lambda x: context.module(x) * torch.nan

    monkeypatch.setitem(export_room.WRITERS, "pt2", write)
    assert "by inf" in refusal(export, predictor, tmp_path / "a.pt2", to="pt2")
    headless = make("ViT/8@32,depth=1,width=32,heads=2,mlp=64,classes=0")
    options = {"to": "onnx", "quantize": "int8-weights"}
    assert "has no classes" in refusal(export, headless, tmp_path / "a.onnx", **options)
