"""Measuring the ways to run a model: what is measured, what is said, and what is never praised."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.decoding.images import encode
from tests.predictors import NAMES, make
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.deploy.backends import bench as bench_room
from vitrail.deploy.backends.backends import BACKENDS, Backend, BackendContext
from vitrail.deploy.backends.bench import (
    batching_candidates,
    bench,
)
from vitrail.deploy.backends.engines import open_onnx
from vitrail.deploy.exporting import onnx_file
from vitrail.deploy.exporting.graph import ExportModule, export_metadata, trace
from vitrail.deploy.exporting.onnx_file import save_onnx
from vitrail.deploy.exporting.quantize import quantize_products
from vitrail.deploy.exporting.samples import Samples
from vitrail.predictor import BatchingConfig, Predictor

pytestmark = pytest.mark.usefixtures("onnx_once")


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

    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    monkeypatch.setitem(BACKENDS, "int8", Backend(lambda context, batching: wrong, exact=False))
    found = bench(predictor, backends=("int8",), images=12, rounds=1)
    row = found.rows[-1]
    assert row.backend == "int8"
    assert row.agreement < 0.9
    assert row.verdict.startswith("not recommended")
    assert found.best.backend == "pytorch"


def test_accuracy_decides_where_there_are_labels(
    predictor: Predictor, labeled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right where the model is wrong and wrong where it is right: what counts is how often."""

    def take_turn(candidate: Any, samples: Samples, latencies: int = 16) -> None:
        candidate.seconds.append(1.0 if candidate.backend == "int8" else 2.0)
        candidate.latencies.append(0.01)

    def backend(turned: int) -> Backend:
        """Change the first `turned` answers of each 16; three in four of all were right."""

        def compute(x: torch.Tensor) -> torch.Tensor:
            logits = predictor.model(x)
            moved = torch.arange(len(x)) < turned
            return torch.where(moved[:, None], logits.roll(1, 1), logits)

        return Backend(lambda context, batching: compute, exact=False)

    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    monkeypatch.setattr(bench_room, "_take_turn", take_turn)
    one = BatchingConfig(batch_size=16, workers=1, threads=1)
    alone = predictor.with_engine(None, one)
    for turned, most, verdict in (
        (0, 0.005, "recommended: faster"),
        (16, 0.005, "not recommended: loses 50.0 points of accuracy"),
        (16, 0.5, "recommended: faster"),
    ):
        monkeypatch.setitem(BACKENDS, "int8", backend(turned))
        found = bench(alone, data=labeled, backends=("int8",), images=4, rounds=1, max_loss=most)
        assert (found.count, found.judged) == (4, 16)
        assert found.rows[0].top1 == 0.75
        assert found.rows[-1].top1 == (0.75 if not turned else 0.25)
        assert found.rows[-1].verdict == verdict


@pytest.mark.parametrize(
    ("seconds", "ratio", "verdicts"),
    [
        (4.0, 0.5, ["recommended: the reference", "slower"]),
        (1.98, 2 / 1.98, ["recommended: the reference", "not faster"]),
        (0.5, 4.0, ["the reference", "recommended: faster"]),
    ],
)
def test_the_fastest_backend_is_recommended(
    predictor: Predictor,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    ratio: float,
    verdicts: list[str],
) -> None:
    def take_turn(candidate: Any, samples: Samples, latencies: int = 16) -> None:
        candidate.seconds.append(seconds if candidate.backend == "compiled" else 2.0)
        candidate.latencies.append(0.01)

    same = Backend(lambda context, batching: predictor.model, exact=True)
    monkeypatch.setitem(BACKENDS, "compiled", same)
    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    monkeypatch.setattr(bench_room, "_take_turn", take_turn)
    found = bench(predictor, backends=("compiled",), images=12, rounds=3)
    assert [row.verdict for row in found.rows] == verdicts
    assert (found.rows[1].agreement, found.rows[1].ratio) == (1, pytest.approx(ratio))
    assert found.rows[1].images_per_second == pytest.approx(12 / seconds)
    assert found.best is found.rows[verdicts[1].startswith("recommended")]


def test_a_killed_benchmark_is_cleaned_up_by_the_next(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    (tmp_path / "vitrail-bench-abcd1234").mkdir()
    (tmp_path / "vitrail-bench-abcd1234" / "model.onnx").write_text("left behind")
    (tmp_path / "vitrail-bench-notes").mkdir()
    bench(predictor, backends=("pytorch",), images=2, rounds=1)
    assert [path.name for path in tmp_path.iterdir()] == ["vitrail-bench-notes"]


def test_batching_candidates_are_around_the_default() -> None:
    tried = batching_candidates(BatchingConfig(batch_size=8, workers=2, threads=1))
    assert {batching.batch_size for batching in tried} == {1, 4, 8, 16}
    assert any(batching.workers == 1 for batching in tried)


def test_an_unavailable_backend_is_named(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
    found = bench(predictor, backends=("compiled",), images=2, rounds=1)
    assert found.unavailable == {
        "compiled": "torch.compile needs a C++ compiler, but there is no no-such-compiler"
    }


def test_settings_are_checked() -> None:
    assert "did you mean 'int8'" in refusal(bench, "none", backends=("int4",))
    assert "rounds must be at least 1" in refusal(bench, "none", rounds=0)
    assert "max_changed must be in [0, 1), got 1" in refusal(bench, "none", max_changed=1)


def test_int8_is_calibrated_near_the_model(predictor: Predictor, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    module = ExportModule(predictor, "float").eval()
    path, small = tmp_path / "model.onnx", tmp_path / "int8.onnx"
    model = onnx_file.make_onnx(module, trace(module), export_metadata(predictor, "float"))
    save_onnx(model, path)
    prepared = torch.randint(0, 256, (24, 32, 32, 3), dtype=torch.uint8)
    quantize_products(model, module, prepared)
    save_onnx(model, small)
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
    import onnx

    context, small = BackendContext(predictor, tmp_path, None), tmp_path / "int8.onnx"
    model = onnx.load(str(context.onnx))
    prepared = torch.randint(0, 256, (8, 32, 32, 3), dtype=torch.uint8)
    quantize_products(model, context.module, prepared)
    save_onnx(model, small)
    x = torch.randn(4, 3, 32, 32)
    expected, found = open_onnx(context.onnx)(x), open_onnx(small)(x)
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.1


def test_command_prints_every_backend(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Predictor, "load", lambda source, device: predictor)
    monkeypatch.setattr(bench_room, "batching_candidates", lambda default: [])
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
    assert "Measured on 4 images of shapes" in out


@pytest.mark.slow
def test_every_backend_measures_a_vit_ti_16(timm_tiny: Path) -> None:
    """int8 once failed on the products per head of the real model's pruned last block."""
    pytest.importorskip("onnxruntime")
    backends = ("onnxruntime", "merged", "int8")
    found = bench(str(timm_tiny), backends=backends, images=4, rounds=1)
    assert found.unavailable == {}
    assert tuple(row.backend for row in found.rows)[-3:] == backends
