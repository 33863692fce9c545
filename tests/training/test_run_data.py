"""A run's data: its report and its evaluation get exactly the images that training used."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.shelf import refusal
from vitrail.config import to_dict
from vitrail.data.dataset import ImageDataset
from vitrail.data.trained_on import record_images
from vitrail.training.checkpoints.run_folder import TRAINED_ON
from vitrail.training.run_data import open_datasets, open_run_data
from vitrail.training.train_config import TrainConfig


def save_folder(folder: Path, each: int = 20) -> str:
    """Write a dataset without splits: two classes, images of noise."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return str(folder)


def begin(out: Path, data: str, **settings: Any) -> TrainConfig:
    """Write the settings of a run, as training does."""
    config = TrainConfig(data=data, model="ViT-Ti/16", out=out, **settings)
    out.mkdir()
    (out / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    return config


def paths(dataset: ImageDataset | None) -> list[str]:
    assert dataset is not None
    return [dataset.where(index) for index in range(len(dataset))]


@pytest.mark.parametrize(
    "settings",
    [{}, {"seed": 5}, {"seed": 5, "hold_out": 0.3}, {"val_data": "other"}],
    ids=["plain", "seed", "hold_out", "val_data"],
)
def test_a_runs_data_is_what_training_used(tmp_path: Path, settings: dict[str, Any]) -> None:
    data = save_folder(tmp_path / "images")
    if "val_data" in settings:
        settings = {"val_data": save_folder(tmp_path / "other", each=10)}
    config = begin(tmp_path / "run", data, **settings)
    train, val = open_datasets(config)
    assert isinstance(train, ImageDataset)
    assert val is not None
    record_images(train, [val], tmp_path / "run" / TRAINED_ON)
    assert paths(open_run_data(tmp_path / "run")) == paths(val)
    assert paths(open_run_data(tmp_path / "run", "val")) == paths(val)
    assert paths(open_run_data(tmp_path / "run", "train")) == paths(train)
    if "val_data" not in settings:  # whose names say nothing of these
        assert not set(paths(open_run_data(tmp_path / "run"))) & set(paths(train))


def test_a_run_without_validation_has_its_training_images(tmp_path: Path) -> None:
    config = begin(tmp_path / "run", save_folder(tmp_path / "images"), val_split="")
    assert paths(open_run_data(config)) == paths(open_run_data(config, "train"))


def test_other_splits_are_those_of_the_dataset(tmp_path: Path) -> None:
    config = begin(tmp_path / "run", "digits", hold_out=0.1)
    assert open_run_data(config, "test").name == "digits/test"
    assert open_run_data(config).name == "digits/train (held out)"
    assert "no split 'tset'" in refusal(open_run_data, config, "tset")


def test_a_runs_images_without_labels_are_found_again(tmp_path: Path) -> None:
    data = save_folder(tmp_path / "images")
    config = begin(tmp_path / "run", f"{data}/cat", task="mae")
    train, val = open_datasets(config, labels=False)  # the run left no record
    assert isinstance(train, ImageDataset)
    assert len(train) == 18
    assert paths(open_run_data(tmp_path / "run")) == paths(val)
    assert paths(open_run_data(tmp_path / "run", "train")) == paths(train)


def test_only_one_setting_says_what_is_evaluated_on(tmp_path: Path) -> None:
    both = {"hold_out": 0.1, "val_data": "b"}
    text = refusal(TrainConfig, data="a", model="ViT-Ti/16", out=tmp_path, **both)
    assert text == "hold_out and val_data both say what is evaluated on; give one"


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, "--val-split ''"),
        ({"hold_out": 0.5}, "--hold-out 0 --val-split ''"),
        ({"folds": 2, "keep": "best"}, "--folds 0 --keep last --val-split ''"),
    ],
)
def test_one_image_a_class_can_only_be_trained_on(
    tmp_path: Path, settings: dict[str, Any], flags: str
) -> None:
    data = save_folder(tmp_path / "images", each=1)
    config = TrainConfig(data=data, model="ViT-Ti/16", out=tmp_path / "run", **settings)
    said = refusal(open_datasets, config)
    assert "each of 2 classes has one image, so none can be held out; expected two or more" in said
    assert said.endswith(f"train on all of them without measuring: {flags}")
    changed: dict[str, Any] = {"val_split": "", "hold_out": 0, "folds": 0, "keep": "last"}
    train, val = open_datasets(replace(config, **changed))
    assert (len(paths(cast(ImageDataset, train))), val) == (2, None)


def test_a_class_of_one_image_beside_larger_ones_goes_on(tmp_path: Path) -> None:
    data = save_folder(tmp_path / "images", each=3)
    for number in (1, 2):
        (tmp_path / "images" / "cat" / f"{number}.png").unlink()
    train, val = open_datasets(TrainConfig(data=data, model="ViT-Ti/16", out=tmp_path / "run"))
    assert isinstance(train, ImageDataset)
    assert val is not None
    assert (train.class_counts().tolist(), val.class_counts().tolist()) == ([1, 2], [0, 1])
