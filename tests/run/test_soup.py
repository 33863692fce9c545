"""Soups of runs against plain means of their files, and greedy ones against trying by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import run as command
from tests.faults.toy import steps, toy
from vitrail.config import InputError
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.model_soup import cook
from vitrail.models.pretraining.masked import MIMConfig
from vitrail.run import Run, TrainConfig, train
from vitrail.training.checkpoints.resume import TENSORS
from vitrail.training.checkpoints.state_dicts import load_tensors
from vitrail.training.optim import OptimConfig
from vitrail.training.peft import TuneConfig
from vitrail.weights.checkpoint import save_folder
from vitrail.weights.load import load, read_checkpoint

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
    """Train three: two fine from one start, and one that has learnt nothing of use."""
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
    made = cook(names(runs[1:3]), out)
    found = load_tensors(out / "model.safetensors")
    one, two = files(runs[1:3])
    for name, tensor in found.items():
        mean = ((one[name].double() + two[name].double()) / 2).float()
        assert torch.equal(tensor, mean), name
    assert made.chosen == made.candidates == tuple(names(runs[1:3]))
    assert (made.alone, made.top1, made.images) == (None, None, 0)
    bundle, first = read_checkpoint(str(out)), read_checkpoint(str(runs[1].folder))
    assert (bundle.classes, bundle.preprocess) == (first.classes, first.preprocess)
    assert bundle.provenance is not None
    assert bundle.provenance.changes == (f"mean of {runs[1].folder}, {runs[2].folder}",)


def test_a_greedy_soup_leaves_out_what_does_not_help(runs: list[Run], tmp_path: Path) -> None:
    made = cook(names(runs[1:]), tmp_path / "soup", greedy=True, data="digits")
    assert made.alone == tuple(run.top1 for run in runs[1:])
    assert made.images == 355
    assert made.top1 is not None
    assert made.top1 >= max(run.top1 or 0 for run in runs[1:])
    assert str(runs[3].folder) not in made.chosen
    again = cook(list(made.chosen), tmp_path / "again", data="digits")
    assert again.top1 == made.top1


def test_a_soup_is_measured_where_runs_held_images_out(runs: list[Run], tmp_path: Path) -> None:
    made = cook(names(runs[1:2]), tmp_path / "soup", data="digits", hold_out=0.1)
    assert made.images == 145  # of 1,442


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_checkpoints_of_a_run_are_what_it_would_have_kept(tmp_path: Path, ema: float) -> None:
    run = train(toy(tmp_path / "run", **{**LEARNS, "ema": ema}))
    cook([f"run:{run.folder}"], tmp_path / "soup", checkpoints=True)
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
    cook([str(config.out)], tmp_path / "soup", checkpoints=True)  # a single one
    kept = load(str(config.out)).model.state_dict()
    found = load(str(tmp_path / "soup")).model.state_dict()
    assert found.keys() == kept.keys()
    assert all(torch.allclose(found[name], kept[name], atol=1e-7) for name in kept)


def test_checkpoints_without_labels_are_encoders(tmp_path: Path) -> None:
    config = toy(tmp_path / "run", **{**LEARNS, "length": steps(2), "save_every": steps(2)})
    mim = MIMConfig(target="pixels")
    train(replace(config, task="masked-patches", mim=mim))
    cook([str(config.out)], tmp_path / "soup", checkpoints=True)  # a single one
    kept, found = (load(str(tmp_path / name)).model.state_dict() for name in ("run", "soup"))
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name]) for name in kept)


def test_models_may_differ_in_dropout_alone(runs: list[Run], tmp_path: Path) -> None:
    def other(**changes: Any) -> TrainConfig:
        settings = {**LEARNS, "length": steps(1), **changes}
        return toy(tmp_path / str(len(list(tmp_path.iterdir()))), **settings)

    model = toy(tmp_path).model
    calm = train(other(model=model.replace("dropout=0.1", "dropout=0.0")))
    cook([str(runs[0].folder), str(calm.folder)], tmp_path / "soup")
    deep = train(other(model=model.replace("depth=2", "depth=3")))
    with pytest.raises(InputError, match=r"depth=3.*, .* is .*depth=2.*models of one shape"):
        cook([str(runs[0].folder), str(deep.folder)], tmp_path / "none")
    odd = replace(read_checkpoint(str(runs[0].folder)), classes=tuple("abcdefghij"))
    save_folder(odd, tmp_path / "odd")
    with pytest.raises(InputError, match=r"names other classes than .*models of one task"):
        cook([str(runs[0].folder), str(tmp_path / "odd")], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_command(runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "soup")
    code, said, err = command(capsys, "soup", *names(runs[1:3]), "--out", out, "--json")
    assert (code, err) == (0, "")
    assert json.loads(said)["model"] == out
    code, said, _ = command(
        capsys, "soup", *names(runs[1:]), "--out", out, "--greedy", "--data", "digits"
    )
    assert code == 0
    assert said.splitlines()[-1].startswith(f"{out}: the mean of ")
    for arguments, message in {
        ("--greedy",): "a greedy soup needs --data",
        ("--data", "shapes"): "has other classes",
        ("--checkpoints",): "is no run folder",
    }.items():
        model = str(runs[1].folder / "model")
        code, said, err = command(capsys, "soup", model, "--out", out + "2", *arguments)
        assert (code, said) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert not Path(out + "2").exists()
