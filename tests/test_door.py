"""Every command is a function of `vitrail` with the command's words, for text and for objects."""

import inspect
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import vitrail
from vitrail.cli import COMMANDS, main
from vitrail.config import InputError
from vitrail.result import Result

TINY = "ViT/4@16,depth=2,width=32,heads=2,mlp=64"

RUN = {
    "no_report": "report", "no_calibration": "calibrate", "config": "config_file", "dry_run": None
}  # fmt: skip
SWEEP = {
    "data": "plan", "model": "plan", "settings": "plan", "measure": "measures", "dry_run": None
}  # fmt: skip
OTHER_WORDS = {"train": RUN, "finetune": RUN, "sweep": SWEEP}
"""Flags that have another name in Python; --dry-run is `estimate` or `estimate_sweep`."""

FUNCTIONS = {
    "models": "list_models",
    "data check": "check_data",
    "data fetch": "fetch_data",
    "data list": "list_data",
    "data show": "show_data",
    "weights list": "list_weights",
    "weights show": "show_weights",
    "cross-validate": "cross_validate",
    "sweep show": "show_sweep",
}


def words_of(function: Any) -> set[str]:
    """Name what a function takes, also by a record of flags or a TypedDict of options."""
    taken = inspect.signature(function).parameters
    grouped = {"flags", "options", "words"} & taken.keys()
    hints = get_type_hints(function, include_extras=True) if grouped else {}
    words = set[str]()
    for name, parameter in taken.items():
        hint = hints.get(name)
        if get_origin(hint) is Unpack:
            words |= get_type_hints(get_args(hint)[0]).keys()
        elif parameter.kind != parameter.VAR_KEYWORD:
            kind = get_args(hint)[0] if name == "flags" else None
            words |= {each.name for each in fields(kind)} if is_dataclass(kind) else {name}
    return words


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_a_function_with_its_words(command: str) -> None:
    function = getattr(vitrail, FUNCTIONS.get(command, command))
    flags = words_of(COMMANDS[command]) - {"json"}
    others = OTHER_WORDS.get(command, {})
    words = {word for flag in flags if (word := others.get(flag, flag)) is not None}
    assert words - words_of(function) - ({"data"} if command == "train" else set()) == set()


@pytest.mark.parametrize(
    ("command", "function", "key"),
    [
        (["models"], vitrail.list_models, "models"),
        (["weights", "list"], vitrail.list_weights, "weights"),
        (["data", "list"], vitrail.list_data, "data"),
    ],
)
def test_a_list_is_a_result(
    command: list[str], function: Any, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = function()
    assert isinstance(found, Result)
    main([*command, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(found.to_dict()[key]))
    assert len(printed) > 5
    assert "<table>" in (found._repr_html_() or "")
    main(command)
    first = printed[-1].get("name") or printed[-1]["source"]
    assert first in capsys.readouterr().out


def test_loaded_models_are_shown_and_converted(tmp_path: Path) -> None:
    model = vitrail.build(TINY, classes=3, seed=0)
    shown = vitrail.show_weights(model)
    assert (shown.spec, shown.parameters) == (
        str(model.spec),
        sum(map(torch.numel, model.parameters())),
    )
    done = vitrail.convert(model, tmp_path / "timm", "timm")
    assert done.max_difference < 1e-6
    again = vitrail.load(tmp_path / "timm").model
    for name, tensor in model.state_dict().items():
        assert_array_equal(again.state_dict()[name], tensor)


@pytest.mark.parametrize("size", [32, "32", "32x32", (32, 32), [32, 32]])
def test_a_size_may_be_given_as_people_do(size: Any) -> None:
    assert vitrail.describe(TINY, image=size).image == (32, 32)
    model = vitrail.build(TINY, classes=3, seed=0)
    loaded = vitrail.load(
        vitrail.to_state_dict(model, "timm"), model=f"{TINY},classes=3", image=size
    )
    assert loaded.model.spec.image == (32, 32)


@pytest.mark.parametrize(
    ("name", "given", "words", "said"),
    [
        ("describe", TINY, {"image": 1.5}, "1.5 is not a size; give 384, or (384, 512)"),
        ("describe", TINY, {"image": (32,)}, "'(32,)' is not a size"),
        ("describe", TINY, {"image": True}, "'True' is not a size"),
        ("describe", TINY, {"image": (32, 0)}, "'32x0' is not a size"),
        ("describe", Path("x"), {}, "expected a model's name, such as ViT-B/16, got PosixPath"),
        ("build", None, {}, "expected a model's name, such as ViT-B/16, got NoneType"),
        ("build", TINY, {"classes": ["a", "b"]}, "classes must be at least 0, got ['a', 'b']"),
        ("load", None, {}, "expected a source of weights or a state dict, got NoneType"),
    ],
)
def test_what_is_no_size_model_or_source_is_refused(
    name: str, given: Any, words: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        getattr(vitrail, name)(given, **words)
    assert said in str(refused.value)


def test_datasets_of_ones_own_are_checked() -> None:
    noise = [(np.full((8, 8, 3), number, np.uint8), number % 2) for number in range(10)]
    noise[7] = noise[1]
    found = vitrail.check_data({"train": noise, "val": noise[2:4], "test": noise[:1]}, workers=1)
    assert (found.images, found.splits) == (13, {"train": 10, "val": 2, "test": 1})
    assert [len(group) for group in found.leaks] == [2, 2, 2]
    assert [len(group) for group in found.duplicates] == [2]
    with pytest.raises(InputError, match="no folder to list unreadable files in"):
        vitrail.check_data({"train": noise}, fix=True, workers=1)
    with pytest.raises(InputError, match="--workers must be at least 1, got 0"):
        vitrail.check_data("digits", workers=0)


def test_a_loaded_model_is_served_from_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The model processes read it there while the server runs."""
    served: dict[str, Any] = {}

    def run(config: Any, on_start: Any) -> None:
        served.update(config.worker.models)
        served["logits"] = vitrail.load(served["mine"]).model(torch.ones(1, 3, 16, 16))

    monkeypatch.setattr("vitrail.deploy.serving.server.run_server", run)
    model = vitrail.build(TINY, classes=3, seed=0).eval()
    vitrail.serve({"mine": model, "other": "runs/photos"})
    assert torch.equal(served["logits"], model(torch.ones(1, 3, 16, 16)))
    assert served["other"] == "runs/photos"
    assert not Path(served["mine"]).exists()
    vitrail.serve({"mine": vitrail.save(model, tmp_path / "saved")})
    assert served["mine"] == str(tmp_path / "saved")


def test_a_loaded_model_is_fine_tuned_and_estimated(tmp_path: Path) -> None:
    model = vitrail.build(TINY, classes=3, seed=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    short: dict[str, Any] = {"steps": 2, "batch": 8, "out": tmp_path / "run"}
    short["settings"] = {"optim.lr": 0.0, "loader.workers": 0, "device": "cpu"}
    estimate = vitrail.estimate_finetuning("digits", weights=model, **short)
    assert isinstance(estimate, Result)
    assert estimate.to_dict()["steps"] == 2
    assert not (tmp_path / "run").exists()
    vitrail.finetune("digits", weights=model, report=False, **short)
    kept = vitrail.load(tmp_path / "run").model.state_dict()
    for name, tensor in before.items():
        assert_array_equal(model.state_dict()[name], tensor)
        if "head" not in name:
            assert_array_equal(kept[name], tensor)
    with pytest.raises(InputError, match="opens data, weights and parts for each run: give text"):
        vitrail.finetune("digits", weights=model, protocol="paper", out=tmp_path / "other")
