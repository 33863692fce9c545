"""Soups of runs against plain means of their files, and greedy ones against trying by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import run as command
from tests.evaluation.sets import save_tiny, write_images
from tests.faults.toy import steps, toy
from tests.runs import train
from vitrail import soup
from vitrail.config import InputError
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.models.pretraining.mim import MIMConfig
from vitrail.run import Run, TrainConfig
from vitrail.training.checkpoints.resume import TENSORS
from vitrail.training.checkpoints.state_dicts import load_tensors
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.peft import TuneConfig
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
    made = soup(names(runs[1:]), out=tmp_path / "soup", greedy=True, choose_on_test=True)
    assert made.scores == tuple(run.top1 for run in runs[1:])
    assert made.chosen_on_test
    assert (made.chosen_on, made.evaluated_on) == ("digits/test", "digits/test")
    assert made.choosing_images == made.images == 355
    assert made.score is not None
    assert made.score >= max(run.top1 or 0 for run in runs[1:])
    assert str(runs[3].folder) not in made.chosen
    again = soup(list(made.chosen), out=tmp_path / "again", data="digits")
    assert again.score == made.score
    assert "chosen on test images: the score is optimistic" in [*made.summary()]


def test_images_that_runs_were_trained_on_choose_nothing(runs: list[Run], tmp_path: Path) -> None:
    """Nor does the test split, unless it is asked for."""
    for data in (None, "digits"):
        with pytest.raises(InputError, match="all training images of digits were trained on"):
            soup(names(runs[1:]), out=tmp_path / "soup", greedy=True, data=data)
    for split in ("test", "val"):
        with pytest.raises(InputError, match=f"split '{split}' of digits has test images; .*--c"):
            soup(names(runs[1:]), out=tmp_path / "soup", greedy=True, data="digits", split=split)
    assert not (tmp_path / "soup").exists()


def test_what_all_runs_held_out_chooses_and_the_test_split_evaluates(tmp_path: Path) -> None:
    configs = [
        replace(toy(tmp_path / f"run-{number}", **LEARNS), seed=number, hold_out=fraction)
        for number, fraction in enumerate((0.1, 0.2))
    ]
    runs = [train(config) for config in configs]
    made = soup(names(runs), out=tmp_path / "soup", greedy=True)
    assert made.chosen_on == "digits/train (held out)"
    assert made.choosing_images == 145  # a tenth of 1,442 images: what no run was trained on
    assert made.scores is not None
    assert made.scores[0] == runs[0].top1
    assert (made.evaluated_on, made.images) == ("digits/test", 355)
    assert not made.chosen_on_test
    alone = soup([str(made.model)], out=tmp_path / "again", data="digits")
    assert alone.score == made.score
    assert soup(names(runs), out=tmp_path / "same", greedy=True, hold_out=0.1).score == made.score


def test_weights_that_are_no_runs_choose_on_held_out_images(
    runs: list[Run], tmp_path: Path
) -> None:
    models = [str(run.folder / "model") for run in runs[1:3]]
    made = soup(models, out=tmp_path / "soup", greedy=True, data="digits")
    assert (made.chosen_on, made.choosing_images) == ("digits/train (held out)", 145)
    assert made.notes == (
        "digits/train (held out): the models may have been trained on these images",
    )
    folder = tmp_path / "photos"
    write_images(folder)
    own = save_tiny(tmp_path / "tiny")
    made = soup([str(own)], out=tmp_path / "one", greedy=True, data=folder)
    assert made.notes == ()  # a folder in one piece has a validation split, and no test split
    assert made.chosen_on == made.evaluated_on
    assert str([*made.summary()][-1]).endswith("images that chose: there are no others")


def test_thresholds_are_averaged(tmp_path: Path) -> None:
    one = read_checkpoint(str(save_tiny(tmp_path / "plain")))
    several = replace(one, activation="sigmoid", thresholds=(0.25, 0.5, 0.75))
    save_folder(several, tmp_path / "one")
    save_folder(replace(several, thresholds=(0.75, 0.5, 0.5)), tmp_path / "two")
    soup([str(tmp_path / "one"), str(tmp_path / "two")], out=tmp_path / "soup")
    assert read_checkpoint(str(tmp_path / "soup")).thresholds == (0.5, 0.5, 0.625)
    with pytest.raises(InputError, match=r"was trained with softmax, .* with sigmoid"):
        soup([str(tmp_path / "one"), str(tmp_path / "plain")], out=tmp_path / "none")


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_checkpoints_of_a_run_are_what_it_would_have_kept(tmp_path: Path, ema: float) -> None:
    run = train(toy(tmp_path / "run", **{**LEARNS, "ema": ema}))
    soup([f"run:{run.folder}"], out=tmp_path / "soup", checkpoints=True)
    states = [load_tensors(run.folder / f"checkpoints/step-0000000{n}" / TENSORS) for n in (6, 8)]
    part = "ema" if ema else "model"
    for name, tensor in load_tensors(tmp_path / "soup" / "model.safetensors").items():
        one, two = (state[f"{part}:{name}"].double() for state in states)
        assert torch.equal(tensor, ((one + two) / 2).float()), name


def test_checkpoints_of_low_rank_updates_are_plain_models(runs: list[Run], tmp_path: Path) -> None:
    config = replace(
        toy(tmp_path / "run", **LEARNS),
        weights=str(runs[0].folder / "model"),
        tune=TuneConfig(mode="lora", rank=2),
        length=steps(4),
        save_every=steps(4),
    )
    train(config)
    soup([str(config.out)], out=tmp_path / "soup", checkpoints=True)  # a single one
    kept = load(str(config.out)).model.state_dict()
    found = load(str(tmp_path / "soup")).model.state_dict()
    assert found.keys() == kept.keys()
    assert all(torch.allclose(found[name], kept[name], atol=1e-7) for name in kept)


def test_checkpoints_without_labels_are_encoders(tmp_path: Path) -> None:
    config = toy(tmp_path / "run", **{**LEARNS, "length": steps(2), "save_every": steps(2)})
    mim = MIMConfig(target="pixels")
    train(replace(config, task="masked-patches", mim=mim))
    soup([str(config.out)], out=tmp_path / "soup", checkpoints=True)  # a single one
    kept, found = (load(str(tmp_path / name)).model.state_dict() for name in ("run", "soup"))
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name]) for name in kept)


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
    code, said, _ = command(
        capsys, "soup", *names(runs[1:]), "--out", out, "--greedy", "--choose-on-test"
    )
    assert code == 0
    assert said.splitlines()[-1].startswith(f"{out}: the mean of ")
    for arguments, message in {
        ("--greedy",): "--greedy requires --data",
        ("--choose-on-test",): "--choose-on-test requires --greedy",
        ("--split", "val"): "--split requires --data or --greedy",
        ("--hold-out", "0"): "--hold-out requires --data or --greedy",
        ("--data", "shapes"): "has other classes",
        ("--checkpoints",): "is not a run folder",
    }.items():
        model = str(runs[1].folder / "model")
        code, said, err = command(capsys, "soup", model, "--out", out + "2", *arguments)
        assert (code, said) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert not Path(out + "2").exists()
