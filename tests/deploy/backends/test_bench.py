"""Measuring the ways to run a model: what is measured, what is said, and what is never praised."""

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.decoding.images import encode, photo
from tests.shelf import refusal
from tests.test_predictor import NAMES, make
from vitrail.cli import main
from vitrail.deploy.backends import bench as bench_room
from vitrail.deploy.backends.backends import BACKENDS, Backend, BackendContext
from vitrail.deploy.backends.bench import (
    BenchmarkConfig,
    BenchmarkRow,
    batching_candidates,
    bench,
    optimize,
)
from vitrail.deploy.backends.engines import open_onnx
from vitrail.deploy.backends.quantize import quantize_onnx
from vitrail.deploy.exporting.graph import ExportModule, export_metadata, trace
from vitrail.deploy.exporting.onnx_file import make_onnx, save_onnx
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.predictor import Engine


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    torch.manual_seed(0)
    return Predictor(make(), batching=BatchingConfig(batch_size=2, workers=2, threads=1))


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory, predictor: Predictor) -> str:
    """Draw images whose folders are named by what the model answers, but for one in four."""
    root = tmp_path_factory.mktemp("labeled")
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in NAMES:
            (root / split / name).mkdir(parents=True)
        for number in range(16):
            pixels = generator.integers(0, 256, (4, 4, 3), np.uint8).repeat(8, 0).repeat(8, 1)
            answer = predictor.predict(pixels).index
            label = NAMES[(answer + (number % 4 == 0)) % len(NAMES)]
            (root / split / label / f"{number}.png").write_bytes(encode(pixels, "PNG"))
    return str(root)


def test_what_is_measured(predictor: Predictor, labeled: str) -> None:
    options = {"images": 16, "rounds": 2, "merge": 0.4}
    found = bench(predictor, data=labeled, backends=("pytorch", "merged"), **options)
    first = found.rows[0]
    assert (first.backend, first.batching, first.ratio, first.agreement) == (
        "pytorch", predictor.batching, 1.0, 1.0
    )  # fmt: skip
    assert first.top1 == 0.75
    assert [row.backend for row in found.rows][-1] == "merged"
    for row in found.rows:
        assert row.images_per_second > 0
        assert 0 < row.latency[0] <= row.latency[1] <= row.latency[2]
    assert found.best in found.rows
    assert found.best.verdict.startswith("recommended")
    assert sum(row.verdict.startswith("recommended") for row in found.rows) == 1


def test_a_fast_backend_that_changes_predictions_is_not_recommended(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.arange(len(x)) % 7, 7).float()

    monkeypatch.setitem(BACKENDS, "int8", Backend(lambda context, batching: wrong, exact=False))
    found = bench(predictor, backends=("int8",), images=12, rounds=1)
    row = found.rows[-1]
    assert row.backend == "int8"
    assert row.agreement < 0.9
    assert row.verdict.startswith("not recommended")
    assert found.best.backend == "pytorch"


def test_a_slower_backend_is_said_to_be_slower(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            predictor.model(x)
        return predictor.model(x)

    monkeypatch.setitem(BACKENDS, "compiled", Backend(lambda context, batching: slow, exact=True))
    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    settings = BenchmarkConfig(backends=("compiled",), images=12, rounds=1)
    found = bench(predictor, backends=("compiled",), images=12, rounds=1)
    assert [row.verdict for row in found.rows] == ["recommended: the reference", "slower"]
    assert found.rows[1].agreement == 1
    assert optimize(predictor, None, settings).batching == predictor.batching


def test_a_faster_backend_is_taken(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[bytes, torch.Tensor] = {}

    def known(x: torch.Tensor) -> torch.Tensor:
        key = x.numpy().tobytes()
        if key not in table:
            table[key] = predictor.model(x)
        return table[key]

    monkeypatch.setitem(BACKENDS, "compiled", Backend(lambda context, batching: known, exact=True))
    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    monkeypatch.setattr(bench_room, "_GAIN", 0.0)  # whatever this machine does just now
    settings = BenchmarkConfig(backends=("compiled",), images=4, rounds=1)
    fast = optimize(predictor, None, settings)
    assert torch.allclose(fast.logits(photo(9, 9)), predictor.logits(photo(9, 9)), atol=1e-5)


def test_the_optimized_predictor_keeps_what_its_engine_may_open_again(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine is started for each batch that runs at a time, whenever there is one more."""
    files: list[Path] = []

    def reading(context: BackendContext, batching: BatchingConfig) -> Engine:
        path = context.folder / "weights"
        path.touch()
        files.append(path)

        def run(x: torch.Tensor) -> torch.Tensor:
            path.read_bytes()
            return predictor.model(x)

        return run

    monkeypatch.setitem(BACKENDS, "compiled", Backend(reading, exact=True))
    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    judge = bench_room._judge

    def favor(each: Any, *more: Any) -> BenchmarkRow:
        found = judge(each, *more)
        return replace(found, verdict="faster", ratio=9.0) if each.backend == "compiled" else found

    monkeypatch.setattr(bench_room, "_judge", favor)
    fast = optimize(predictor, None, BenchmarkConfig(backends=("compiled",), images=2, rounds=1))
    assert torch.allclose(fast.logits(photo(9, 9)), predictor.logits(photo(9, 9)), atol=1e-5)
    del fast
    gc.collect()
    assert not files[0].exists()


def test_batching_candidates_are_around_the_default() -> None:
    tried = batching_candidates(BatchingConfig(batch_size=8, workers=2, threads=1))
    assert {batching.batch_size for batching in tried} == {1, 4, 8, 16}
    assert any(batching.workers == 1 for batching in tried)


def test_an_unavailable_backend_is_named(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = bench(predictor, backends=("compiled",), images=2, rounds=1)
    assert found.unavailable == {
        "compiled": "torch.compile needs a C++ compiler, but there is no no-such-compiler"
    }


def test_settings_are_checked() -> None:
    assert "did you mean 'int8'" in refusal(BenchmarkConfig, backends=("int4",))
    assert "rounds must be at least 1" in refusal(BenchmarkConfig, rounds=0)


def test_int8_is_calibrated_near_the_model(predictor: Predictor, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    module = ExportModule(predictor, "float").eval()
    path, small = tmp_path / "model.onnx", tmp_path / "int8.onnx"
    save_onnx(make_onnx(module, trace(module), export_metadata(predictor, "float")), path)
    prepared = torch.randint(0, 256, (24, 32, 32, 3), dtype=torch.uint8)
    quantize_onnx(path, small, module, prepared)
    x = module.to_input(prepared[:8])
    expected, found = open_onnx(path)(x), open_onnx(small)(x)
    error = float((found - expected).norm() / expected.norm())
    assert 0 < error < 0.1
    text = small.read_bytes()
    assert b"MatMulInteger" in text
    assert b"vitrail.preprocess" in text  # what a program has to know is still there


def test_int8_of_a_pruned_model(predictor: Predictor, tmp_path: Path) -> None:
    """The last block's per-head products of three axes stay as they are."""
    pytest.importorskip("onnxruntime")
    context = BackendContext(predictor, tmp_path, None)
    x = torch.randn(4, 3, 32, 32)
    expected = open_onnx(context.onnx)(x)
    found = open_onnx(context.int8)(x)
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.1


def test_command_prints_every_backend(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Predictor, "load", lambda source, device: predictor)
    arguments = [
        "bench",
        "any",
        "--backends",
        "pytorch",
        "merged",
        "--images",
        "4",
        "--rounds",
        "1",
    ]
    main([*arguments, "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["backend"] for row in rows} == {"pytorch", "merged"}
    main(arguments)
    out = capsys.readouterr().out
    assert "recommended" in out
    assert "Measured on shapes" in out
