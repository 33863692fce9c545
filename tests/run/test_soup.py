"""Soups of runs against plain means of their files, and greedy ones against trying by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.coin_flips import HONEST, learn_by_heart, write_noise
from tests.commands import run as command
from tests.evaluation.sets import save_tiny, write_images
from tests.faults.toy import steps, toy
from tests.runs import train
from vitrail import open_data, soup
from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.models.pretraining.mim import MIMConfig
from vitrail.recipes.folds import FoldsResult
from vitrail.run import Run, TrainConfig
from vitrail.training.checkpoints.state_dicts import load_tensors
from vitrail.training.optimization.optim import OptimConfig
from vitrail.weights.load import load, read_checkpoint
from vitrail.weights.model_folder import save_folder

LEARNS: dict[str, Any] = {
    "length": steps(8),
    "batch": 64,
    "augment": Augment(crop="whole", flip=0.0),
    "optim": OptimConfig(lr=1e-2),
    "eval_every": steps(8),
    "save_every": steps(6),
    "ema": 0.0,
    "loader": LoaderConfig(workers=0),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Train three: two fine from one start, and one that has learned nothing of use."""
    out = tmp_path_factory.mktemp("soup")
    start = train(toy(out / "start", **LEARNS))
    again = toy(out, **{**LEARNS, "weights": str(start.folder / "model"), "length": steps(8)})
    bad = OptimConfig(kind="sgd", lr=3e3, clip=None)
    return [
        start,
        train(replace(again, out=out / "a", seed=1)),
        train(replace(again, out=out / "b", seed=2)),
        train(replace(again, out=out / "bad", seed=3, optim=bad, length=steps(2))),
    ]


def names(runs: list[Run]) -> list[str]:
    return [str(run.folder) for run in runs]


def files(runs: list[Run]) -> list[dict[str, torch.Tensor]]:
    return [load_tensors(run.folder / "model" / "model.safetensors") for run in runs]


def save_digits(folder: Path, count: int) -> str:
    """Write some digits of the test split as files."""
    images = open_data("digits", split="test")
    assert isinstance(images, ImageDataset)
    for index in range(count):
        place = folder / images.classes[int(images.labels[index])]
        place.mkdir(parents=True, exist_ok=True)
        pixels = images.read(index)
        assert isinstance(pixels, np.ndarray)
        Image.fromarray(pixels[..., 0]).save(place / f"{index}.png")
    return str(folder)


def test_a_uniform_soup_is_the_mean_of_the_files(runs: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "soup"
    made = soup(names(runs[1:3]), out=out)
    found = load_tensors(out / "model.safetensors")
    one, two = files(runs[1:3])
    for name, tensor in found.items():
        mean = ((one[name].double() + two[name].double()) / 2).float()
        assert torch.equal(tensor, mean), name
    assert made.chosen == made.candidates == tuple(names(runs[1:3]))
    assert (made.scores, made.score, made.images) == (None, None, 0)
    loaded = [load(name) for name in names(runs[1:3])]
    assert soup(loaded, out=tmp_path / "same").chosen == ("model 1", "model 2")
    same = load_tensors(tmp_path / "same" / "model.safetensors")
    assert all(torch.equal(same[name], tensor) for name, tensor in found.items())
    saved, first = read_checkpoint(str(out)), read_checkpoint(str(runs[1].folder))
    assert (saved.classes, saved.preprocess) == (first.classes, first.preprocess)
    assert saved.provenance is not None
    assert saved.provenance.changes == (f"mean of {runs[1].folder}, {runs[2].folder}",)


def test_a_greedy_soup_leaves_out_what_does_not_help(runs: list[Run], tmp_path: Path) -> None:
    """Chosen on images of a folder that no run has seen: digits of the test split."""
    data = save_digits(tmp_path / "new", 60)
    made = soup(names(runs[1:]), out=tmp_path / "soup", greedy=True, data=data)
    assert made.choosing_images == made.images == 60
    assert made.evaluated_on == made.chosen_on
    assert made.scores is not None
    assert made.score is not None
    assert made.score >= max(made.scores)
    assert str(runs[3].folder) not in made.chosen
    again = soup(list(made.chosen), out=tmp_path / "again", data=data)
    assert again.score == made.score
    assert "60 images of" in str(made.selected)


def test_images_that_runs_were_trained_on_choose_nothing(runs: list[Run], tmp_path: Path) -> None:
    """Nor does the test split."""
    for data in (None, "digits"):
        with pytest.raises(
            InputError,
            match=r"all 1,442 images of digits/train were trained on by .*, so none can choose",
        ):
            soup(names(runs[1:]), out=tmp_path / "soup", greedy=True, data=data)
    for split in ("test", "val"):
        with pytest.raises(
            InputError, match=f"split '{split}' of digits has test images; train with --h"
        ):
            soup(names(runs[1:]), out=tmp_path / "soup", greedy=True, data="digits", split=split)
    assert not (tmp_path / "soup").exists()


def test_what_all_runs_held_out_chooses_and_the_test_split_evaluates(tmp_path: Path) -> None:
    configs = [
        replace(toy(tmp_path / f"run-{number}", **LEARNS), seed=number, hold_out=fraction)
        for number, fraction in enumerate((0.1, 0.2))
    ]
    runs = [train(config) for config in configs]
    made = soup(names(runs), out=tmp_path / "soup", greedy=True)
    assert made.chosen_on == "digits/train (unseen)"
    assert made.choosing_images == 145  # a tenth of 1,442 images: what no run was trained on
    assert made.scores is not None
    assert made.scores[0] == runs[0].top1
    assert (made.evaluated_on, made.images) == ("digits/test", 355)
    alone = soup([str(made.model)], out=tmp_path / "again", data="digits")
    assert alone.score == made.score
    with pytest.raises(InputError, match="all 1,442 images of digits/train were trained on by"):
        soup([str(made.model), str(train(toy(tmp_path / "all", **LEARNS)).folder)],
             out=tmp_path / "none", greedy=True, data="digits")  # fmt: skip


def test_weights_without_a_record_choose_on_all(runs: list[Run], tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    write_images(folder)
    own = save_tiny(tmp_path / "tiny")
    made = soup([str(own)], out=tmp_path / "one", greedy=True, data=folder)
    assert made.chosen_on == made.evaluated_on
    assert made.choosing_images == 14
    assert "was trained on is not recorded" in str(made.selected)
    assert str([*made.summary()][-1]).endswith("images that chose: there are no others")


def test_only_classifiers_are_averaged(tmp_path: Path) -> None:
    one = read_checkpoint(str(save_tiny(tmp_path / "plain")))
    save_folder(replace(one, activation="none"), tmp_path / "numbers")
    with pytest.raises(InputError, match="predicts numbers; a soup is of models that predict cl"):
        soup([str(tmp_path / "numbers")], out=tmp_path / "none")
    config = toy(tmp_path / "run", **{**LEARNS, "length": steps(2), "save_every": steps(2)})
    mim = MIMConfig(target="pixels")
    train(replace(config, task="masked-patches", mim=mim))
    with pytest.raises(InputError, match="has no head; a soup is of models that predict classes"):
        soup([str(config.out)], out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_no_member_chooses_on_what_it_was_trained_on(tmp_path: Path) -> None:
    """Folds of labels by a coin: each knows the others' fold by heart, together they know all."""
    photos = write_noise(tmp_path / "photos", 40)
    folds = learn_by_heart(photos, tmp_path / "folds", folds=2, steps=30)
    assert isinstance(folds, FoldsResult)
    with pytest.raises(InputError, match=r"all 80 images of .* were trained on by one of"):
        soup(names([*folds.runs]), out=tmp_path / "soup", greedy=True)
    made = soup(names([folds.runs[0]]), out=tmp_path / "soup", greedy=True)
    assert made.choosing_images == folds.runs[0].images
    assert made.score is not None
    assert made.score <= HONEST


def test_thresholds_are_averaged(tmp_path: Path) -> None:
    one = read_checkpoint(str(save_tiny(tmp_path / "plain")))
    several = replace(one, activation="sigmoid", thresholds=(0.25, 0.5, 0.75))
    save_folder(several, tmp_path / "one")
    save_folder(replace(several, thresholds=(0.75, 0.5, 0.5)), tmp_path / "two")
    soup([str(tmp_path / "one"), str(tmp_path / "two")], out=tmp_path / "soup")
    assert read_checkpoint(str(tmp_path / "soup")).thresholds == (0.5, 0.5, 0.625)
    with pytest.raises(InputError, match=r"was trained with softmax, .* with sigmoid"):
        soup([str(tmp_path / "one"), str(tmp_path / "plain")], out=tmp_path / "none")


def test_models_may_differ_in_dropout_alone(runs: list[Run], tmp_path: Path) -> None:
    def other(**changes: Any) -> TrainConfig:
        settings = {**LEARNS, "length": steps(1), **changes}
        return toy(tmp_path / str(len(list(tmp_path.iterdir()))), **settings)

    model = toy(tmp_path).model
    calm = train(other(model=model.replace("dropout=0.1", "dropout=0.0")))
    soup([str(runs[0].folder), str(calm.folder)], out=tmp_path / "soup")
    deep = train(other(model=model.replace("depth=2", "depth=3")))
    with pytest.raises(InputError, match=r"depth=3.*, .* is .*depth=2.*expected one architecture"):
        soup([str(runs[0].folder), str(deep.folder)], out=tmp_path / "none")
    odd = replace(read_checkpoint(str(runs[0].folder)), classes=tuple("abcdefghij"))
    save_folder(odd, tmp_path / "odd")
    with pytest.raises(InputError, match=r"has other classes than .*models of one task"):
        soup([str(runs[0].folder), str(tmp_path / "odd")], out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_command(runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "soup")
    code, said, err = command(capsys, "soup", *names(runs[1:3]), "--out", out, "--json")
    assert (code, err) == (0, "")
    assert json.loads(said)["model"] == out
    code, said, _ = command(capsys, "soup", *names(runs[1:]), "--out", out, "--data", "digits")
    assert code == 0
    assert said.splitlines()[-1].startswith(f"{out}: the mean of ")
    for arguments, message in {
        ("--greedy",): "--greedy requires --data",
        ("--split", "val"): "--split requires --data or --greedy",
        ("--data", "shapes"): "has other classes",
    }.items():
        model = str(runs[1].folder / "model")
        code, said, err = command(capsys, "soup", model, "--out", out + "2", *arguments)
        assert (code, said) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert not Path(out + "2").exists()
