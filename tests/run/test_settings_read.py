"""That no run ignores a setting: each is read while it trains, or another value is refused."""

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.material import ROOT
from tests.runs import train
from vitrail.config import Duration, InputError, from_flags, merge
from vitrail.training.train_config import TrainConfig

SOURCE = str(ROOT / "src" / "vitrail")
WORDS: dict[str, Any] = {
    "data": "digits",
    "model": "ViT/4@16,depth=2,width=32,heads=2,mlp=64",
    "length": "2 steps",
    "batch": 8,
    "loader": {"workers": 0},
    "loggers": [],
}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one": {
        "optim": {"kind": "sgd"}, "schedule": {"kind": "rsqrt"}, "augment": {"crop": "pad"},
        "tune": {"mode": "head"}, "val_split": "",
    },
    "two": {
        "optim": {"kind": "muon"}, "schedule": {"kind": "constant"}, "augment": {"crop": "whole"},
        "tune": {"mode": "last"}, "loader": {"workers": 2}, "hold_out": 0.1,
    },
    "three": {
        "optim": {"kind": "adam"}, "schedule": {"kind": "linear"}, "augment": {"crop": "area"},
        "tune": {"mode": "lora"},
    },
    "four": {
        "schedule": {"kind": "multistep", "milestones": ["50 %"]}, "val_data": "digits",
        "augment": {"randaugment": {}, "mixup": 0.2}, "preprocess": {"fit": "stretch"},
    },
    "five": {"distill": {"hard": True}},
    "masked-patches": {"task": "masked-patches"},
    "simmim": {"task": "masked-patches", "mim": {"target": "pixels"}},
    "mae": {
        "task": "mae",
        "mim": {"target": "pixels", "decoder": {"depth": 1, "width": 16, "heads": 2}},
    },
}  # fmt: skip
OTHERS = {
    "val_data": "shapes", "hold_out_of": "train", "augment.window": "0.8", "loss.reduction": "mean",
    "mim.mask.rounding": "up", "mim.pixels": "input", "distill.reduction": "mean",
    "checkpoint_every": "2", "mim.mask.ratio": "0.4", "mim.mask.masked": "0.7",
    "mim.mask.replaced": "0.05", "mim.mask.unit": "2", "mim.target": "colors",
    "mim.distance": "absolute", "mim.decoder.depth": "3", "mim.decoder.width": "24",
    "mim.decoder.heads": "4", "augment.area": "0.3,0.9", "augment.ratio": "0.9,1.1",
    "augment.pad": "0.2", "loss.kind": "sigmoid", "loss.smoothing": "0.1", "balance": "weights",
    "distill": "x", "distill.temperature": "2", "optim.betas": "0.8,0.9", "optim.eps": "1e-6",
    "optim.momentum": "0.8", "optim.nesterov": "true", "schedule.milestones": "50 %",
    "schedule.final": "0.2", "schedule.timescale": "3 steps", "tune.mode": "head",
    "tune.blocks": "2", "tune.rank": "2", "tune.alpha": "2", "tune.targets": "key",
    "tune.head": "keep-hidden", "loader.kind": "processes", "loader.prefetch": "3",
    "cache.folder": "kept", "cache.short_side": "10",
    "fold": "1", "fewshot.shots": "2", "fewshot.seeds": "2", "fewshot.every": "1 steps",
}  # fmt: skip
"""Other values of settings that some run does not read."""
DOCUMENTED = {("two", "val_split")}
"""`hold_out` is evaluated on instead, as the setting says."""


def records(record: Any) -> Iterator[Any]:
    """Give a record and those in it."""
    yield record
    for field in fields(record):
        inner = getattr(record, field.name)
        if is_dataclass(inner) and not isinstance(inner, Duration):
            yield from records(inner)


def leaves(record: Any, path: str = "") -> Iterator[tuple[str, tuple[type, str]]]:
    """Name each setting by its path, and by its record and field."""
    for field in fields(record):
        inner = getattr(record, field.name)
        if is_dataclass(inner) and not isinstance(inner, Duration):
            yield from leaves(inner, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", (type(record), field.name)


def is_use(frame: FrameType | None) -> bool:
    """Tell reading a setting to go by it from checking, comparing or writing all of them."""
    while frame is not None and frame.f_code.co_name.startswith("<"):  # a comprehension
        frame = frame.f_back
    if frame is None:
        return False
    file = frame.f_code.co_filename
    names = []
    while frame is not None and len(names) < 6:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    inside = file.startswith(SOURCE) and f"{SOURCE}/config/" not in file
    return inside and not {"__post_init__", "check_settings", "free_settings"} & {*names}


def trace(patch: pytest.MonkeyPatch, config: TrainConfig) -> set[tuple[type, str]]:
    """Note from now on which fields of which records are used."""
    used: set[tuple[type, str]] = set()
    for kind in {type(each) for each in records(config)}:
        names = {field.name for field in fields(kind)}

        def get(self: Any, name: str, kind: type = kind, names: set[str] = names) -> Any:
            if name in names and is_use(sys._getframe(1)):
                used.add((kind, name))
            return object.__getattribute__(self, name)

        patch.setattr(kind, "__getattribute__", get)
    return used


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("teacher") / "run"
    train(configure(out, {}))
    return f"run:{out}"


def configure(out: Path, changes: dict[str, Any]) -> TrainConfig:
    return merge(TrainConfig(data="", model="", out=out), WORDS, changes)


@pytest.mark.parametrize("name", RUNS)
def test_no_setting_is_ignored(
    name: str, tmp_path: Path, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = dict(RUNS[name])
    if "distill" in changes:
        changes["distill"] = {"teacher": teacher, **changes["distill"]}
    config = configure(tmp_path / "run", changes)
    with monkeypatch.context() as patch:
        used = trace(patch, config)
        train(config)
    assert {(TrainConfig, "batch"), (TrainConfig, "seed")} <= used
    for path, field in leaves(config):
        if field in used or (name, path) in DOCUMENTED:
            continue
        assert path in OTHERS, f"a run like {name!r} does not read {path}"
        with pytest.raises(InputError):
            merge(config, from_flags([(path, OTHERS[path])]))


def test_an_ignored_setting_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that are only checked, compared and written do not count as used."""
    config = configure(tmp_path / "run", {"schedule": {"kind": "constant"}})
    used = trace(monkeypatch, config)
    merge(config, {"seed": 3})
    assert not used
    assert config.optim.lr == 1e-3  # read, but not by the package
    assert not used
