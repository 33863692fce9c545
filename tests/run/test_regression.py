"""Numbers from images: read from a list, learned in scaled form, predicted in their own units."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

import vitrail
from tests.commands import run
from tests.parity import peers
from tests.runs import train
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.open import open_dataset
from vitrail.data.transforms.preprocess import default_preprocess
from vitrail.evaluation.metrics.errors import mean_r2, score_targets
from vitrail.evaluation.regression_result import RegressionResult
from vitrail.tasks.regression import Regression
from vitrail.training.run_data import read_config
from vitrail.weights.load import load, read_checkpoint

MODEL = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"
WORDS: dict[str, Any] = {"model": MODEL, "batch": 16, "loggers": (), "lr": 3e-3}


def write_photos(folder: Path, count: int = 60) -> str:
    """Write gray images, whose brightness is a temperature in kelvin, and their list."""
    rng, rows = np.random.default_rng(0), ["path,kelvin,red,split"]
    for number in range(count):
        value = rng.integers(40, 216)
        noise = rng.integers(-9, 10, size=(8, 8, 3))
        Image.fromarray((value + noise).astype(np.uint8)).save(folder / f"{number}.png")
        kelvin = 273 + value / 10
        rows.append(f"{number}.png,{kelvin},{value / 255},{'train' if number % 4 else 'val'}")
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    return f"csv:{folder / 'list.csv'},targets=kelvin+red"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def trained(photos: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "kelvin"
    train(photos, out=out, epochs=30, settings={"augment.crop": "whole"}, **WORDS)
    return out


def test_errors_are_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    true, predicted = rng.normal(5, 2, (50, 2)), rng.normal(5, 2, (50, 2))
    for column, found in enumerate(score_targets(predicted, true, ("x", "y"))):
        own, target = predicted[:, column], true[:, column]
        assert found.r2.value == pytest.approx(r2_score(target, own))
        assert found.mae.value == pytest.approx(mean_absolute_error(target, own))
        assert found.rmse.value == pytest.approx(root_mean_squared_error(target, own))
    assert mean_r2(predicted, true).value == pytest.approx(r2_score(true, predicted))


def test_numbers_are_read_from_a_list(photos: str) -> None:
    dataset = open_dataset(photos, split="train")
    assert dataset.regression
    assert not dataset.multilabel
    assert dataset.classes == ("kelvin", "red")
    assert dataset.labels.dtype == np.float64
    assert dataset.labels.shape == (45, 2)
    np.testing.assert_allclose((dataset.labels[:, 0] - 273) * 10 / 255, dataset.labels[:, 1], 1e-4)


def test_a_model_predicts_numbers_in_their_own_units(photos: str, trained: Path) -> None:
    assert read_config(trained).task == "regression"
    found = vitrail.evaluate(str(trained), photos)
    assert isinstance(found, RegressionResult)
    kelvin, red = found.targets
    assert kelvin.r2.value > 0.9
    assert red.r2.value > 0.9
    assert kelvin.mae.value < 2  # of numbers near 285
    result = json.loads((trained / "result.json").read_text())
    assert result["r2"] == pytest.approx((kelvin.r2.value + red.r2.value) / 2, abs=1e-5)
    assert result["mae"] == pytest.approx((kelvin.mae.value + red.mae.value) / 2, rel=1e-4)


def test_the_head_undoes_the_scaling(photos: str, trained: Path) -> None:
    """Starting from what is saved scales again: the outputs times the std plus the mean."""
    dataset = open_dataset(photos, split="train")
    config = replace(read_config(trained), weights=f"run:{trained}")
    saved = read_checkpoint(str(trained))
    scaled = Regression(config, dataset).start(saved)
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        raw, trains = saved.build()(x), scaled.build()(x)
    std, mean = dataset.labels.std(0), dataset.labels.mean(0)
    np.testing.assert_allclose(trains.numpy() * std + mean, raw.numpy(), rtol=1e-4, atol=1e-3)


def test_fine_tuning_keeps_targets_of_the_same_name(
    photos: str, trained: Path, tmp_path: Path
) -> None:
    only = photos.replace("kelvin+red", "red")
    settings = {"optim.lr": 0.0, "augment.crop": "whole"}
    words = {"batch": 16, "loggers": (), "settings": settings}
    vitrail.finetune(
        only, weights=f"run:{trained}", steps=1, out=tmp_path / "red", report=False, **words
    )
    before = vitrail.evaluate(str(trained), photos)
    after = vitrail.evaluate(str(tmp_path / "red"), only)
    assert isinstance(before, RegressionResult)
    assert isinstance(after, RegressionResult)
    assert after.targets[0].r2.value == pytest.approx(before.targets[1].r2.value, abs=1e-3)


@pytest.mark.parametrize("kind", ["l1", "l2", "huber"])
def test_losses_are_torchs(kind: str, photos: str, tmp_path: Path) -> None:
    config = vitrail.configure(photos, model=MODEL, out=tmp_path, settings={"loss.kind": kind})
    task = Regression(config, open_dataset(photos, split="train"))
    a, b = torch.randn(5, 2), torch.randn(5, 2)
    theirs = {"l1": torch.nn.L1Loss, "l2": torch.nn.MSELoss, "huber": torch.nn.HuberLoss}[kind]
    assert task.distance(a, b).mean() == pytest.approx(float(theirs()(a, b)), rel=1e-5)


def test_predictions_are_values(
    trained: Path, photos: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = Path(photos.removeprefix("csv:")).parent / "0.png"
    prediction = vitrail.Predictor.load(str(trained)).predict(str(image))
    assert prediction.values is not None
    assert list(prediction.values) == ["kelvin", "red"]
    assert 270 < prediction.values["kelvin"] < 300
    code, _, _ = run(
        capsys, "predict", str(trained), str(image), "--json", "--csv", str(tmp_path / "p.csv")
    )
    assert code == 0
    with (tmp_path / "p.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert list(row) == ["path", "kelvin", "red", "error"]
    assert float(row["kelvin"]) == pytest.approx(prediction.values["kelvin"], rel=1e-6)


def test_an_evaluation_leaves_its_files(trained: Path, photos: str, tmp_path: Path) -> None:
    vitrail.evaluate(str(trained), photos, out=tmp_path / "out")
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left >= {"targets.csv", "images.csv", "report.json", "scatter.png"}
    with (tmp_path / "out" / "images.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15
    assert {"image", "kelvin", "kelvin predicted", "red", "red predicted"} <= set(rows[0])


def test_a_report_shows_the_scatter(trained: Path) -> None:
    report = vitrail.inspect(str(trained))
    assert "scatter" in [plot.key for plot in report.plots]
    page = report.html()
    assert "Predicted numbers" in page
    assert "Most likely classes" not in page


def test_it_is_exported_for_transformers(trained: Path, tmp_path: Path) -> None:
    hf: Any = peers.load("transformers.models.vit.modeling_vit")
    vitrail.export(str(trained), tmp_path / "hub", to="hub")
    theirs = hf.ViTForImageClassification.from_pretrained(tmp_path / "hub")
    assert theirs.config.problem_type == "regression"
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        ours = load(str(trained)).model(x)
        np.testing.assert_allclose(theirs(x).logits.numpy(), ours.numpy(), rtol=1e-4)
    again = load(str(tmp_path / "hub"))
    assert (again.activation, again.classes) == ("none", ("kelvin", "red"))
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "image-regression" in card
    assert "R2 0.9" in card


BAD = {
    "kelvin,purple": (["targets=purple"], "has no column 'purple'"),
    "text": (["targets=path"], "line 2: path: expected a number, got '0.png'"),
    "twice": (["targets=red+red"], "expected columns, each once"),
    "both": (["label=red", "targets=kelvin"], "label and targets both say what is learned"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_targets_are_refused(
    case: str,
    photos: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    options, said = BAD[case]
    data = ",".join([photos.partition(",")[0], *options])
    code, out, err = run(capsys, "train", data, "--model", MODEL, "--out", "run")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss.kind": "softmax"}, "loss.kind of regression must be l1, l2 or huber"),
        ({"loss.smoothing": 0.1}, "loss.smoothing is for classes"),
        ({"balance": "weights"}, "balance"),
        ({"augment.mixup": 0.2}, "mixed images"),
    ],
)
def test_settings_of_classes_are_refused(
    settings: dict[str, Any], said: str, photos: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        train(photos, out=tmp_path / "run", steps=1, settings=settings, model=MODEL)


def test_numbers_and_classes_are_not_mixed_up(trained: Path, photos: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"targets=kelvin\+red"):
        vitrail.evaluate(str(trained), "digits")
    with pytest.raises(InputError, match=r"loss\.kind of classification must be softmax or"):
        train("digits", out=tmp_path / "a", steps=1, model=MODEL, settings={"loss.kind": "l1"})
    with pytest.raises(InputError, match="has no numbers to predict; name their columns"):
        train("digits", out=tmp_path / "b", steps=1, model=MODEL, task="regression")
    with pytest.raises(InputError, match="numbers per image; expected one class each"):
        vitrail.probe(str(trained), photos)
    with pytest.raises(InputError, match="predicts numbers"):
        vitrail.predict(str(trained), [np.zeros((8, 8, 3), np.uint8)], unsure="5%")


@pytest.mark.parametrize(
    "numbers",
    [[20230515.0, 20230516.0, 20230517.0], [1.7e9, 1.7e9 + 7, 1.7e9 + 20], [0.1, 0.2, 0.7]],
    ids=["dates", "Unix times", "fractions"],
)
def test_numbers_keep_their_digits(tmp_path: Path, numbers: list[float]) -> None:
    """float32 reads the date 20230515 as ...516, and takes Unix times of a minute for one."""
    given = [numbers[index % 3] for index in range(12)]
    for index in range(12):
        Image.fromarray(np.full((8, 8, 3), 20 * index, np.uint8)).save(tmp_path / f"{index}.png")
    rows = [f"{index}.png,{number!r}" for index, number in enumerate(given)]
    (tmp_path / "list.csv").write_text("\n".join(["path,when", *rows]) + "\n")
    data = f"csv:{tmp_path / 'list.csv'},targets=when"
    dataset = open_dataset(data, split="all")
    assert dataset.labels[:, 0].tolist() == given
    config = vitrail.configure(data, model=MODEL, out=tmp_path / "run")
    task = Regression(config, dataset)
    task.setup(default_preprocess((8, 8), 3), torch.device("cpu"))
    batch = EvalBatches(dataset, task.preprocess, batch=12)[0]
    exact = np.array(given)
    scaled = (exact - exact.mean()) / exact.std()
    targets = task.prepare(batch).targets
    assert targets.dtype == torch.float32
    np.testing.assert_allclose(targets[:, 0].numpy(), scaled, rtol=1e-6)
    evaluated = {"val_split": "train"}
    run = train(data, out=tmp_path / "run", steps=2, settings=evaluated, **WORDS)
    assert run.mae is not None  # the head says the mean, whose error is known
    assert run.mae == pytest.approx(np.abs(exact - exact.mean()).mean(), rel=0.2)
    kept = read_checkpoint(f"run:{tmp_path / 'run'}").tensors["head.output.bias"]
    assert kept.dtype == torch.float32
    rounding = float(np.spacing(np.float32(exact.mean())))
    assert float(kept) == pytest.approx(exact.mean(), abs=0.1 * exact.std() + rounding)


def test_numbers_that_float32_holds_have_the_fingerprint_of_older_runs() -> None:
    pixels = np.zeros((3, 2, 2, 1), np.uint8)
    exact, more = (np.array([[1.5], [2.0], [last]]) for last in (4.0, 0.1))
    single, double = (
        ArrayDataset("x", ["a"], exact.astype(kind), pixels).fingerprint()
        for kind in (np.float32, np.float64)
    )
    assert single == double
    rounded = more.astype(np.float32).astype(np.float64)
    prints = {ArrayDataset("x", ["a"], each, pixels).fingerprint() for each in (more, rounded)}
    assert len(prints) == 2
