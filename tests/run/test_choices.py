"""What a run chooses by itself: the loss, thresholds, precision, and which images choose."""

import json
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.faults.toy import fail_at, print_of, steps, toy
from tests.runs import train
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.open import open_dataset
from vitrail.data.transforms.apply import normalize
from vitrail.distributed import Processes
from vitrail.machine import ASSUMED
from vitrail.training.checkpoints.checkpoint_files import latest_checkpoint
from vitrail.training.losses import LossConfig
from vitrail.training.run_data import read_config
from vitrail.training_run import TrainingRun

CPU = torch.device("cpu")


def several_labels(count: int, seed: int) -> ArrayDataset:
    """Make images in whose halves a label each is to be seen."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (count, 2), dtype=np.uint8)
    pixels = rng.integers(0, 60, (count, 8, 8, 1), dtype=np.uint8)
    pixels[:, :4] += (labels[:, 0] * 180)[:, None, None, None]
    pixels[:, 4:] += (labels[:, 1] * 180)[:, None, None, None]
    return ArrayDataset("halves", ("top", "bottom"), labels, pixels)


def test_several_labels_are_learned_with_sigmoids_and_thresholds(tmp_path: Path) -> None:
    data = {"train": several_labels(64, 0), "val": several_labels(32, 1)}
    config = toy(tmp_path / "run", length=steps(30), batch=32, eval_every=steps(15))
    run = train(config, data=data)
    assert run.top1 is None
    assert run.map is not None
    assert run.map > 0.9
    model = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert model["activation"] == "sigmoid"
    assert len(model["thresholds"]) == 2
    assert vitrail.load(tmp_path / "run").thresholds == tuple(model["thresholds"])


def test_the_loss_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    config = toy(tmp_path / "run", length=steps(2), loss=LossConfig(kind="sigmoid"))
    assert train(config).top1 is not None
    assert vitrail.load(tmp_path / "run").activation == "sigmoid"


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_validation_has_the_loss_that_is_trained(
    tmp_path: Path, kind: Literal["softmax", "sigmoid"]
) -> None:
    run = train(toy(tmp_path / "run", length=steps(3), loss=LossConfig(kind=kind)))
    loaded, dataset = vitrail.load(tmp_path / "run"), open_dataset("digits", split="test")
    assert loaded.preprocess is not None
    batches = EvalBatches(dataset, loaded.preprocess, batch=len(dataset))
    with torch.inference_mode():
        logits = loaded.model(normalize(batches[0].images, loaded.preprocess))
    labels = torch.from_numpy(dataset.labels)
    if kind == "softmax":
        expected = F.cross_entropy(logits, labels)
    else:
        targets = F.one_hot(labels, 10).float()
        summed = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        expected = summed / len(dataset)
    assert run.loss == pytest.approx(expected.item(), rel=1e-4)
    found = vitrail.evaluate(tmp_path / "run", "digits", split="test")
    assert found.loss.value == pytest.approx(run.loss)


def test_thresholds_are_not_chosen_on_test_images(tmp_path: Path) -> None:
    """Without a validation split, training images choose them; test images only if asked to."""
    data = {"train": several_labels(64, 0), "test": several_labels(32, 1)}
    run = train(toy(tmp_path / "run", length=steps(4), batch=32), data=data)
    said = "evaluated on 6 images held out of the training split"
    assert said in (tmp_path / "run" / "log.txt").read_text()
    assert run.chosen_on == "halves (held out)"
    assert run.images == 6
    assert read_config(tmp_path / "run").hold_out == 0.1
    asked = train(toy(tmp_path / "asked", length=steps(4), val_split="test"), data=data)
    assert (asked.chosen_on, asked.images) == ("halves", 32)
    one_class = LossConfig(kind="softmax")  # has none to choose
    plain = train(toy(tmp_path / "plain", length=steps(4), loss=one_class), data=data)
    assert (plain.chosen_on, plain.images) == (None, 32)


def test_the_precision_that_auto_chose_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began in float32 goes on in it anywhere, one in bfloat16 where that is quick."""
    monkeypatch.setattr("vitrail.training.optimization.precision._LEAST_FEATURES", 0)
    processors = {"float32": "GenuineIntel avx512f", "bfloat16": "GenuineIntel avx512_bf16"}
    for name, other in (("float32", "bfloat16"), ("bfloat16", "float32")):
        monkeypatch.setenv(ASSUMED, processors[name])
        whole, config = toy(tmp_path / f"{name} whole"), toy(tmp_path / name)
        train(whole)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, 5)
            with pytest.raises(ZeroDivisionError):
                train(config)
        saved = latest_checkpoint(config.out / "checkpoints")
        assert saved is not None
        assert saved.metadata["precision"] == name
        monkeypatch.setenv(ASSUMED, processors[other])
        here = TrainingRun(config, Processes(0, 1, CPU)).trainer.autocast
        assert here == (torch.bfloat16 if other == "bfloat16" else None)
        if name == "bfloat16":
            with pytest.raises(InputError, match=r"^cannot resume: .* in bfloat16, which the cpu "):
                train(config)
            monkeypatch.setenv(ASSUMED, processors[name])
        train(config)
        assert print_of(config.out) == print_of(whole.out)
        said = (config.out / "log.txt").read_text()
        assert re.findall(r" on cpu in (\w+)", said) == [name, name]


@pytest.mark.parametrize("choice", [{"keep": "best"}, {"patience": 3}])
def test_what_is_reported_does_not_choose(tmp_path: Path, choice: dict[str, object]) -> None:
    """`digits` has a train and a test split; without a word, training images choose."""
    run = train(toy(tmp_path / "run", length=steps(4), **choice))
    assert run.chosen_on == "digits/train (held out)"
    assert read_config(tmp_path / "run").hold_out == 0.1
    again = train(toy(tmp_path / "run", length=steps(4), **choice))
    assert again == run
    asked = train(toy(tmp_path / "asked", length=steps(4), val_split="test", **choice))
    assert asked.chosen_on == "digits/test"


def test_no_validation_images_leave_nothing_to_choose_by(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep best needs evaluations"):
        train(toy(tmp_path / "run", val_split="", keep="best"))
