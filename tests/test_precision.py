"""Predictors in bfloat16 and int8: near the exact ones, and refused where they can't be."""

import json
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases import slow
from tests.data.decoding.images import encode, photo
from tests.deploy.serving import image, save_model
from tests.predictors import FUSED, NAMES, make
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.data.decoding.decode import Limits
from vitrail.deploy.backends import selection
from vitrail.deploy.backends.selection import select_backend, select_precision
from vitrail.deploy.serving.worker import load_model, run_batch
from vitrail.machine import ASSUMED, has_bfloat16, has_vnni
from vitrail.models import ViT
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.fused import InferencePrecision, fuse
from vitrail.predictor.int8 import InputRange, Int8Dense, measure_ranges

with_int8 = pytest.mark.skipif(not has_vnni(), reason="this CPU has no VNNI")
with_both = pytest.mark.skipif(
    not (has_vnni() and has_bfloat16()), reason="this CPU has no bfloat16 or VNNI"
)
SPEC = "ViT/8@32,depth=2,width=32,heads=2,mlp=64,classes=7"


def small(more: str = "") -> ViT:
    torch.manual_seed(0)
    model = make(f"{SPEC}{more}").model.eval()
    assert isinstance(model, ViT)
    return model


@with_both
@pytest.mark.parametrize("more", FUSED)
def test_every_kind_of_model_is_near_in_fewer_bits(more: str) -> None:
    model, x = small(more), torch.randn(5, 3, 32, 32)
    ranges = measure_ranges(model, [x])
    bounds: dict[InferencePrecision, float] = {"bfloat16": 0.03, "int8": 0.1}
    with torch.inference_mode():
        for precision, most in bounds.items():
            fast = fuse(model, precision=precision, ranges=ranges)
            for found, expected in (
                (fast(x), model(x)),
                (fast.features(x), model.features(x)),
            ):
                assert 0 < float((found - expected).norm() / expected.norm()) < most


@with_int8
def test_an_int8_layer_is_its_levels_by_hand() -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(24, 10), torch.randn(50, 24)
    x[:, 3] *= 60  # a channel with large values
    seen = InputRange.of(x).smoothed(layer.weight)
    made = Int8Dense(layer, seen, None, torch.float32)
    factors = seen.factors.double()
    step = (seen.high - seen.low) / 255
    zero = round(-seen.low / step)
    levels = (x.double() / (factors * step)).round() + zero
    weight = layer.weight.detach().double() * factors
    steps = weight.abs().amax(1) / 127
    whole = (weight / steps[:, None]).round()
    bias = layer.bias.detach().double()
    by_hand = (levels.clamp(0, 255) - zero) @ whole.T * step * steps + bias
    exact = x.double() @ layer.weight.detach().double().T + bias
    found = made(x).double()
    assert torch.allclose(found, by_hand, atol=2 * step * float(steps.max()) * 127)
    plain = Int8Dense(layer, InputRange.of(x).smoothed(None), None, torch.float32)(x).double()
    assert (found - exact).norm() < 0.5 * (plain - exact).norm()


@with_int8
def test_gelu_may_end_in_the_next_layers_levels() -> None:
    torch.manual_seed(2)
    first, second, x = nn.Linear(16, 32), nn.Linear(32, 8), torch.randn(40, 16)
    hidden = nn.functional.gelu(first(x)).detach()
    seen = InputRange.of(x).smoothed(first.weight), InputRange.of(hidden).smoothed(None)
    one = Int8Dense(first, seen[0], "none", torch.float32)
    two = Int8Dense(second, seen[1], None, torch.float32)
    through_floats = two(one(x))
    one.give_levels_of(two)
    assert one(x).dtype == torch.uint8
    assert torch.allclose(two(one(x)), through_floats, atol=1e-4)
    expected = second(hidden).detach()
    assert float((through_floats - expected).norm() / expected.norm()) < 0.02


def test_ranges_are_those_of_all_batches() -> None:
    model = small()
    x = torch.randn(6, 3, 32, 32)
    whole, parts = measure_ranges(model, [x]), measure_ranges(model, x.split(2))
    with torch.inference_mode():
        rows = model.blocks[0].attention.norm(model.embed(x)[0]).flatten(0, 1)  # pyright: ignore
    first = whole["blocks.0.attention.qkv"]
    assert torch.allclose(first.low, rows.amin(0), atol=1e-5)
    assert torch.allclose(first.high, rows.amax(0), atol=1e-5)
    assert torch.allclose(first.squares, rows.double().square().mean(0), atol=1e-5)
    assert whole.keys() == parts.keys()
    assert len(whole) == 4 * 2  # qkv, output, hidden and output of two blocks
    for name, found in parts.items():
        assert torch.allclose(found.squares, whole[name].squares)
        assert torch.equal(found.high, whole[name].high)


@with_int8
def test_a_layer_with_peaks_is_not_quantized() -> None:
    model, x = small(), torch.randn(6, 3, 32, 32)
    ranges = measure_ranges(model, [x])
    seen = ranges["blocks.0.mlp.output"]
    ranges["blocks.0.mlp.output"] = replace(seen, high=seen.high + 1000 * torch.eye(64)[0])
    fast = fuse(model, precision="int8", ranges=ranges)
    assert isinstance(fast, ViT)
    mlp = fast.blocks[0].mlp
    assert isinstance(mlp.hidden, Int8Dense)  # pyright: ignore[reportAttributeAccessIssue]
    assert not isinstance(mlp.output, Int8Dense)  # pyright: ignore[reportAttributeAccessIssue]
    with torch.inference_mode():
        assert float((fast(x) - model(x)).norm() / model(x).norm()) < 0.1


@with_both
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_an_image_has_the_same_prediction_alone_and_in_a_batch(
    precision: InferencePrecision,
) -> None:
    torch.manual_seed(0)
    exact = Predictor(make(), batching=BatchingConfig(batch_size=3, workers=2, threads=1))
    prepared = torch.stack([exact.prepare(photo(30, 30 + n)) for n in range(8)])
    predictor = exact.with_precision(precision, prepared)
    images = [photo(30, 30 + n) for n in range(8)]
    found = predictor.logits(images)
    assert predictor.precision == precision
    assert exact.precision == "float32"
    assert not torch.equal(found, exact.logits(images))
    assert torch.allclose(predictor.logits(images[4]), found[4], atol=1e-5)
    for other in (predictor.with_engine(None, exact.batching), exact):
        assert torch.equal(
            other.logits(images), (predictor if other is not exact else exact).logits(images)
        )


@with_both
def test_the_commands_take_a_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(tmp_path / "model")
    generator = np.random.default_rng(0)
    for number in range(8):
        place = tmp_path / "photos" / "train" / NAMES[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (40, 40, 3), np.uint8)
        (place / f"{number}.png").write_bytes(encode(pixels, "PNG"))
    photos = str(tmp_path / "photos")
    values = []
    for more in ([], ["--precision", "bfloat16"], ["--precision", "int8", "--data", photos]):
        main(["predict", str(folder), photos, "--json", *more])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        values.append([line["top"][0]["probability"] for line in lines])
    assert len(values[0]) == 8
    assert values[0] != values[1] != values[2]
    assert np.allclose(values[0], values[1], atol=0.05)
    assert np.allclose(values[0], values[2], atol=0.15)
    head = {"operation": "predict", "options": [{"top": 1}]}
    served = load_model(str(folder), "named", None, "cpu", precision="int8", data=photos)
    assert served.predictor.precision == "int8"
    assert all(good for good, _ in run_batch(served, head, [image(0)], Limits()))


REFUSED = [
    (["--precision", "int8"], "--precision int8 requires --data"),
    (["--precision", "bfloat16", "--data", "x"], "--data is for --precision int8"),
    (["--precision", "bfloat16", "--backend", "onnxruntime"], "PyTorch or --backend openvino"),
    (["--precision", "int8", "--data", "x", "--backend", "openvino"], "omit --backend"),
    (["--precision", "auto", "--backend", "auto"], "omit --backend"),
]


@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        *(("predict", *case) for case in REFUSED),
        ("serve", *REFUSED[0]),
        *(slow("serve", *case) for case in REFUSED[1:]),  # each starts processes to say it
    ],
)
def test_commands_refuse_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, more: list[str], said: str
) -> None:
    (tmp_path / "a.png").write_bytes(encode(photo(30, 30), "PNG"))
    folder = save_model(tmp_path / "model")
    options = {"predict": [str(tmp_path / "a.png")], "serve": ["--port", "0", "--workers", "1"]}
    with pytest.raises(SystemExit) as ended:
        main([command, str(folder), *options[command], *more])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.count("\n") == 1
    assert said in error


def test_what_a_processor_or_model_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    convolutional = Predictor(make("BiT-R50x1@32,classes=7"), device="cpu")
    assert "needs a ViT, got BiT" in refusal(convolutional.with_precision, "bfloat16")
    predictor = Predictor(make(), device="cpu")
    monkeypatch.setenv(ASSUMED, "GenuineIntel avx2")
    assert "neither AVX-512 BF16 nor AMX" in refusal(predictor.with_precision, "bfloat16")
    assert "no VNNI" in refusal(select_precision, predictor, "int8", "digits")
    monkeypatch.setenv(ASSUMED, "GenuineIntel avx512f avx512_vnni")
    assert "images of the model's size" in refusal(predictor.with_precision, "int8")


@pytest.mark.parametrize(("changed", "chosen"), [(0, "bfloat16"), (1, "bfloat16"), (2, "float32")])
def test_auto_takes_bfloat16_unless_it_changes_predictions(
    monkeypatch: pytest.MonkeyPatch, changed: int, chosen: str
) -> None:
    monkeypatch.setattr(selection, "autocast_type", lambda *_: torch.bfloat16)
    exact, said = Predictor(make(), device="cpu"), list[str]()
    flips = torch.arange(selection._COMPARED) >= changed
    monkeypatch.setattr(Predictor, "with_precision", lambda self, name: with_name(self, name))
    monkeypatch.setattr(Predictor, "same_predictions", lambda *_: flips)

    def with_name(predictor: Predictor, name: InferencePrecision) -> Predictor:
        made = copy(predictor)
        made.precision = name
        return made

    found = select_precision(exact, "auto", None, log=said.append)
    assert found.precision == chosen
    (line,) = said
    assert f"{chosen}; bfloat16 gives the same class for {128 - changed} of 128 images" in line


def test_auto_compares_for_enough_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "autocast_type", lambda *_: torch.bfloat16)
    monkeypatch.setattr(Predictor, "with_precision", lambda self, name: copy(self))
    exact, said = Predictor(make(), device="cpu"), list[str]()
    assert select_precision(exact, "auto", None, images=599, log=said.append) is exact
    assert "float32; comparing bfloat16 would not pay for 599 images" in said[0]
    assert select_precision(exact, "auto", None, images=600) is not exact


def test_auto_stays_exact_where_bfloat16_is_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    small = Predictor(make(), device="cpu")  # of 32 features
    assert select_precision(small, "auto", None, log=said.append) is small
    monkeypatch.setattr(selection, "autocast_type", lambda *_: torch.bfloat16)
    convolutional = Predictor(make("BiT-R50x1@32,classes=7"), device="cpu")
    assert select_precision(convolutional, "auto", None, log=said.append) is convolutional
    features = Predictor(make("ViT/8@32,depth=1,width=32,heads=2,mlp=64,classes=0"), device="cpu")
    assert select_precision(features, "auto", None, log=said.append) is features
    assert ["float32" in line for line in said] == [True] * 3


@with_both
def test_openvino_computes_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    torch.manual_seed(0)
    exact, images = Predictor(make(), device="cpu"), [photo(30, 30 + n) for n in range(4)]
    expected = exact.logits(images)
    found = select_backend(exact, "openvino", precision="bfloat16").logits(images)
    assert 1e-4 < float((found - expected).norm() / expected.norm()) < 0.05
