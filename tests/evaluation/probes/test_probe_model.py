"""A probe's model folder: its logits are the probe's own, and every command takes it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.commands import run
from tests.evaluation.probes.problems import problem, tensors, write_colors
from tests.evaluation.sets import save_tiny
from vitrail.evaluation.features.compute import features_of_pair
from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.probes.linear_probe import probe, probe_lbfgs, probe_sgd
from vitrail.evaluation.probes.probe_model import calibrate_head, folds, write_probe
from vitrail.evaluation.probes.ridge import Ridge
from vitrail.models import build
from vitrail.weights.load import load


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    save_tiny(tmp_path / "model")
    write_colors(tmp_path / "photos")
    return tmp_path


def test_the_ridge_head_gives_the_scores() -> None:
    train, test = problem(0, shots=6, classes=4, width=9)
    ridge = Ridge(*tensors(train), 4)
    x = torch.from_numpy(test.values)
    scores = ridge.scores(x, [3.0])[0]
    torch.testing.assert_close(ridge.head(3.0).logits(x), scores, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fit", [probe_lbfgs, probe_sgd])
def test_the_probes_head_is_the_one_evaluated(fit) -> None:  # noqa: ANN001
    train, test = problem(1, shots=10, classes=3, width=6, noise=2.0)
    found = fit(train, test)
    x, y = tensors(test)
    assert (found.head.logits(x).argmax(1) == y).double().mean().item() == found.accuracy
    again = found.fit(*tensors(train))
    torch.testing.assert_close(again.logits(x), found.head.logits(x), rtol=1e-6, atol=1e-6)


def test_folds_hold_out_each_image_once() -> None:
    labels = np.array([0] * 7 + [1] * 2 + [2])
    held = [each for _, each in folds(labels, 3, seed=0)]
    assert sorted(torch.cat(held).tolist()) == list(range(9))  # not the only image of class 2
    for rest, out in folds(labels, 3, seed=0):
        assert sorted([*rest.tolist(), *out.tolist()]) == list(range(10))
    assert list(folds(np.arange(3), 3, seed=0)) == []


def test_the_scale_is_calibrated_without_moving_a_class() -> None:
    whole, _ = problem(2, shots=60, classes=10, width=30)
    first = np.arange(600) % 60 < 20
    train, test = (
        replace(
            whole, values=whole.values[rows], labels=whole.labels[rows], names=whole.names[rows]
        )
        for rows in (first, ~first)
    )
    x, y = tensors(test)

    def fit(features: torch.Tensor, labels: torch.Tensor):  # noqa: ANN202
        return Ridge(features, labels, 10).head(1.0)

    plain = fit(*tensors(train))
    head, uncertainty = calibrate_head(plain, train, None, fit, 0)
    assert uncertainty is not None
    inside = plain.weight.norm() / head.weight.norm()  # the temperature that is in the head now
    torch.testing.assert_close(head.logits(x) * inside, plain.logits(x))
    assert uncertainty.temperature == 1
    assert uncertainty.facts.ece_before > 0.2
    assert uncertainty.facts.ece_after < 0.06
    assert len(uncertainty.distances) == len(uncertainty.confidence) == len(train)
    correct = (plain.logits(x).argmax(1) == y).numpy()

    def error(logits: torch.Tensor) -> float:
        confidence = logits.softmax(1).amax(1).numpy()
        return measure_calibration(confidence, correct).ece.value

    assert error(plain.logits(x)) > 0.2  # least squares has logits near -1 and 1
    assert error(head.logits(x)) < 0.06


@pytest.mark.parametrize("command", ["probe", "fewshot"])
def test_logits_of_the_folder_are_the_probes_own(place: Path, command: str) -> None:
    import vitrail

    options = {"shots": (5, 9)} if command == "fewshot" else {}
    found = getattr(vitrail, command)("model", "photos", out="mine", **options)
    assert found.out == Path("mine")
    assert found.to_dict()["out"] == "mine"
    train, test, *_ = features_of_pair("model", "photos", None)
    if command == "fewshot":
        orders = [np.random.default_rng(0).permutation(9) + 9 * number for number in range(3)]
        rows = torch.from_numpy(np.concatenate(orders))
        x, y = (each[rows] for each in tensors(train))

        def fit(features: torch.Tensor, labels: torch.Tensor):  # noqa: ANN202
            return Ridge(features, labels, 3).head(1024.0)

        head, _ = calibrate_head(fit(x, y), train, rows, fit, 0)
    else:
        inner = probe_lbfgs(train, test)
        head, _ = calibrate_head(inner.head, train, None, inner.fit, 0)
    loaded = load("mine")
    assert loaded.classes == ("blue", "green", "red")
    assert loaded.provenance
    assert str(train.name) in loaded.provenance.changes[-1]
    features = torch.from_numpy(test.values)
    with torch.no_grad():
        ours = loaded.model.head(features)
    torch.testing.assert_close(ours.double(), head.logits(features), rtol=1e-5, atol=1e-5)
    before, after = load("model").model.state_dict(), loaded.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before if key[:5] != "head.")


def test_a_distilled_backbone_counts_its_first_token_only(place: Path) -> None:
    model = build("ViT/4@8,depth=1,width=16,heads=2,mlp=32,distilled=true", classes=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    train, test, *_ = features_of_pair(model, "photos", None)
    found = probe_lbfgs(train, test)
    write_probe(model, found.head, train, "mine", "said")
    written = load("mine").model
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = found.head.logits(model.eval().features(images))
        torch.testing.assert_close(written(images).double(), expected, rtol=1e-4, atol=1e-4)


def test_commands_take_the_folder_and_one_more_class(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "fewshot", "model", "photos", "--out", "mine", "--json")
    assert code == 0
    assert json.loads(out)["out"] == "mine"
    code, out, _ = run(capsys, "predict", "mine", "photos/red/0.png", "--json")
    assert next(each["label"] for each in json.loads(out)["top"]) == "red"
    code, out, _ = run(capsys, "evaluate", "mine", "photos", "--json")
    assert json.loads(out)["top1"] > 0.6
    write_colors(place / "more", {"violet": 0})
    (place / "more" / "violet").rename(place / "photos" / "violet")
    code, out, _ = run(capsys, "fewshot", "model", "photos", "--out", "mine")
    assert "vitrail predict mine" in out
    assert load("mine").classes == ("blue", "green", "red", "violet")


def test_what_can_not_be_a_model_is_refused_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "one" / "cat").mkdir(parents=True)
    for name in ("1.png", "2.png"):
        (place / "one" / "cat" / name).write_bytes((place / "photos/red/0.png").read_bytes())
    (place / "none").mkdir()
    (place / "full").mkdir()
    (place / "full" / "letter.txt").write_text("mine")
    for command, data, said in (
        (("probe", "--out", "x"), "one", "only the class 'cat'"),
        (("fewshot", "--out", "x"), "one", "only the class 'cat'"),
        (("fewshot", "--out", "x"), "none", "none"),
        (("probe", "--out", "full"), "photos", "letter.txt"),
        (("probe", "--out", "photos/red/0.png"), "photos", "is a file"),
        (("probe", "--out", "x", "--features", "patch-mean"), "photos", "pre-logits"),
        (("fewshot", "--out", "x", "--shots", "9", "--l2", "1", "2"), "photos", "one --l2"),
    ):
        code, out, err = run(capsys, command[0], "model", data, *command[1:])
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert said in err
    assert not (place / "x").exists()
    assert [path.name for path in (place / "full").iterdir()] == ["letter.txt"]


def test_nothing_is_calibrated_on_one_image_per_class() -> None:
    train, _ = problem(0, shots=1, classes=3, width=4)

    def fit(features: torch.Tensor, labels: torch.Tensor):  # noqa: ANN202
        return Ridge(features, labels, 3).head(1.0)

    head = fit(*tensors(train))
    assert calibrate_head(head, train, None, fit, 0) == (head, None)


def test_probe_without_out_writes_nothing(place: Path) -> None:
    assert probe("model", "photos").out is None
    assert sorted(path.name for path in place.iterdir()) == ["cache", "model", "photos"]
