"""A run's test set: checked before training, scored once at the end, never chosen by."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.faults.toy import steps
from tests.runs import train
from tests.shelf import refusal
from vitrail.data.datasets.open import open_dataset
from vitrail.data.loader import LoaderConfig
from vitrail.evaluation import final_score
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.final_score import check_test
from vitrail.evaluation.metrics.intervals import wilson
from vitrail.training.optimization.time_plan import Afterwards
from vitrail.training.parts import Parts
from vitrail.training.train_config import TrainConfig

TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"


def save_images(folder: Path, *, each: int, seed: int, names: tuple[str, ...] = ("a", "b")) -> str:
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{seed}-{number}.png")
    return str(folder)


def settings(tmp_path: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {"data": str(tmp_path / "data"), "model": TINY, "batch": 8}
    given |= {"out": tmp_path / "run", "length": steps(2), "loader": LoaderConfig(workers=0)}
    return TrainConfig(**{**given, "loggers": (), **changes})


@pytest.fixture
def data(tmp_path: Path) -> str:
    return save_images(tmp_path / "data", each=10, seed=0)


def test_the_kept_model_is_scored_once(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = save_images(tmp_path / "test", each=7, seed=1)
    plain = train(settings(tmp_path))
    assert plain.test is None
    run = train(settings(tmp_path, test_data=test))  # of a finished run
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert run.test is not None
    assert (run.test.data, run.test.images, run.test.of) == (test, 14, 14)
    found = evaluate(str(tmp_path / "run"), test)
    assert found.top1 is not None
    assert (run.test.metric, run.test.top1) == ("top-1", found.top1.value)
    right = round(found.top1.value * 14)
    assert run.test.interval == wilson(right, 14)[1:]
    assert any(str(line).startswith("test     top-1 ") for line in run.summary())
    kept = json.loads((tmp_path / "run" / "result.json").read_text())["test"]
    assert (kept["data"], kept["images"], kept["top1"]) == (test, 14, found.top1.value)

    monkeypatch.setattr(final_score, "_score", lambda *_: pytest.fail("scored twice"))
    shutil.rmtree(tmp_path / "test")
    again = train(settings(tmp_path, test_data=test))
    assert again.test == run.test
    assert weights == (tmp_path / "run" / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("keep", "count"), [("last", 6), ("best", 4)])
def test_images_that_were_trained_on_or_chose_are_left_out(
    tmp_path: Path, data: str, keep: str, count: int
) -> None:
    shutil.copytree(data, tmp_path / "test")
    for name in ("a", "b"):
        for number in (0, 1):
            rng = np.random.default_rng(5 + number)
            pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "test" / name / f"new-{number}.png")
    run = train(settings(tmp_path, test_data=str(tmp_path / "test"), keep=keep))
    assert run.test is not None
    assert (run.test.images, run.test.of) == (count, 24)  # one of ten a class was held out


@pytest.mark.parametrize(
    ("names", "changes", "said"),
    [
        (("a", "c"), {}, "does not know 1 of 2 classes of"),
        ((), {"test_data": "nothere"}, "no folder or dataset 'nothere'"),
        ((), {"test_data": "data"}, "has what is trained on, and no test split"),
    ],
)
def test_a_test_set_is_refused_before_the_first_step(
    tmp_path: Path,
    data: str,
    names: tuple[str, ...],
    changes: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if names:
        changes = {"test_data": save_images(tmp_path / "test", each=1, seed=1, names=names)}
    assert said in refusal(train, settings(tmp_path, **{"data": "data", **changes}))
    assert not (tmp_path / "run").exists()


def test_its_own_test_split_is_taken(tmp_path: Path) -> None:
    config = settings(tmp_path, data="digits", test_data="digits", keep="best")
    assert check_test(config, Parts()) == len(open_dataset("digits", split="test"))
    chosen = settings(tmp_path, data="digits", test_data="digits", keep="best", val_split="test")
    assert "its test split chooses the weights" in refusal(check_test, chosen, Parts())


def test_a_test_set_goes_with_one_model_and_labels(tmp_path: Path) -> None:
    assert "test_data is for one" in refusal(settings, tmp_path, test_data="digits", folds=2)
    assert "test_data" in refusal(settings, tmp_path, test_data="digits", task="mae")


def test_its_time_is_reserved() -> None:
    config = SimpleNamespace(task="classification", tune=SimpleNamespace(mode="all"))
    run: Any = SimpleNamespace(
        config=config, val_set=None, images=10, trainer=SimpleNamespace(autocast=None)
    )
    assert Afterwards(tested=300).passes(run) == pytest.approx(100)
