"""Every configuration record refuses wrong types, numbers out of range and unused settings."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.config import Duration, InputError, Range, from_dict, from_flags, merge, to_dict
from vitrail.data.cache import CacheConfig
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment, RandAugment
from vitrail.models.pretraining.mim import DecoderConfig, MaskConfig, MIMConfig
from vitrail.recipes import RECIPES
from vitrail.studies.engine.sweep_plan import FewShot
from vitrail.training.losses import DistillConfig, LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.peft import TuneConfig
from vitrail.training.train_config import PreprocessConfig, TrainConfig

RECORDS: list[Any] = [
    TrainConfig(data="digits", model="ViT-Ti/16", out=Path("run")),
    *(OptimConfig(), ScheduleConfig(), TuneConfig(), LossConfig(), DistillConfig(teacher="x")),
    *(PreprocessConfig(), MIMConfig(), MaskConfig(), DecoderConfig(), Augment(), RandAugment()),
    *(LoaderConfig(), CacheConfig(), FewShot("digits")),
]
PATHS: dict[Any, str] = {
    TrainConfig: "",
    OptimConfig: "optim.",
    ScheduleConfig: "schedule.",
    TuneConfig: "tune.",
    LossConfig: "loss.",
    DistillConfig: "distill.",
    PreprocessConfig: "preprocess.",
    MIMConfig: "mim.",
    MaskConfig: "mim.mask.",
    DecoderConfig: "mim.decoder.",
    Augment: "augment.",
    RandAugment: "augment.randaugment.",
    LoaderConfig: "loader.",
    CacheConfig: "cache.",
    FewShot: "fewshot.",
}
FIELDS = [(record, field.name) for record in RECORDS for field in fields(record)]
UNBOUNDED = {"seed"}
"""Numbers of which every value means something."""
WRONG: list[Any] = [
    *(True, "word", 1.5, -1, object(), None, [], (1, 2, 3), {"no": 1}, float("nan"), float("inf")),
    *(2.0, Path("x"), b"x", Duration(1, "steps")),
]


def accepts(kind: Any, value: Any) -> bool:
    """Say whether a file may have a value for a type, by rules of this test's own."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = [each for each in args[1:] if isinstance(each, Range)]
        return accepts(args[0], value) and all(value in each for each in bounds)
    if origin in (Union, UnionType):
        return any(accepts(arg, value) for arg in args)
    if origin is Literal:
        return value in args and type(value) is str
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False
        several = args[:1] * len(value) if args[-1] is Ellipsis else args
        return len(several) == len(value) and all(map(accepts, several, value))
    if kind is bool or kind is type(None):
        return isinstance(value, kind)
    if kind in (int, float):
        number = type(value) in (int, float) and abs(value) < float("inf")
        return number and (kind is float or value == int(value))
    if kind is Path:
        return isinstance(value, (str, Path))
    return isinstance(value, kind)


@pytest.mark.parametrize(("record", "name"), FIELDS)
@given(value=st.sampled_from(WRONG))
def test_a_wrong_type_is_refused_with_its_field(record: Any, name: str, value: Any) -> None:
    kind = get_type_hints(type(record), include_extras=True)[name]
    if accepts(kind, value):
        return
    with pytest.raises(InputError, match=rf"(^|; |'){PATHS[type(record)]}{name}\b"):
        replace(record, **{name: value})


def numbers(kind: Any) -> list[Range]:
    """Give the ranges of a field's numbers; each must have one."""
    if get_origin(kind) is Annotated:
        first, *more = get_args(kind)
        own = [each for each in more if isinstance(each, Range)]
        return own or numbers(first)
    assert kind not in (int, float)
    return [found for arg in get_args(kind) if arg is not Ellipsis for found in numbers(arg)]


@pytest.mark.parametrize(("record", "name"), FIELDS)
def test_every_number_has_a_range(record: Any, name: str) -> None:
    """And what is just outside of it is refused, from Python and from a file alike."""
    if name in UNBOUNDED:
        return
    kind = get_type_hints(type(record), include_extras=True)[name]
    for allowed in numbers(kind):
        bounds = [float(each) for each in allowed.text[1:-1].split(",")]
        for bound, step in zip(bounds, (-1, 1), strict=True):
            for value in (bound, bound + step):
                if value in allowed or abs(value) == float("inf"):
                    continue
                one = getattr(record, name)
                given = (value,) * len(one) if isinstance(one, tuple) else value
                given = (value,) * 3 if name in ("mean", "std") else given
                said = rf"{name}(\[0\])? must be {wanted(allowed)}, got"
                with pytest.raises(InputError, match=rf"^{PATHS[type(record)]}{said}"):
                    replace(record, **{name: given})
                plain = to_dict(record) | {name: given}
                with pytest.raises(InputError, match=rf"^{said}"):
                    from_dict(type(record), plain)


def wanted(allowed: Range) -> str:
    return re.escape(str(allowed))


@pytest.mark.parametrize(
    ("record", "change", "said"),
    [
        (OptimConfig, {"momentum": 2}, r"optim.momentum must be in \[0, 1\), got 2"),
        (OptimConfig, {"kind": "lamb"}, "optim.kind: expected 'adamw', 'adam', 'sgd' or 'muon'"),
        (OptimConfig, {"momentum": 0.5}, "optim.momentum is not used with kind adamw, only with"),
        (OptimConfig, {"nesterov": True}, "optim.nesterov is not used with kind adamw"),
        (OptimConfig, {"kind": "sgd", "eps": 1e-6}, "optim.eps is not used with kind sgd"),
        (OptimConfig, {"kind": "sgd", "betas": (0.1, 0.2)}, "optim.betas is not used with"),
        (ScheduleConfig, {"kind": "rsqrt", "final": 0.1}, "schedule.final is not used with kind"),
        (ScheduleConfig, {"kind": "constant", "final": 0.1}, "schedule.final is not used with"),
        (ScheduleConfig, {"timescale": "5 steps"}, "schedule.timescale is not used with kind"),
        (ScheduleConfig, {"milestones": ["5 %"]}, "schedule.milestones is not used with kind"),
        (TuneConfig, {"mode": "head", "rank": 4}, "tune.rank is not used with mode head"),
        (TuneConfig, {"mode": "head", "blocks": 4}, "tune.blocks is not used with mode head"),
        (TuneConfig, {"mode": "last", "alpha": 4}, "tune.alpha is not used with mode last"),
        (TuneConfig, {"targets": ["key"]}, "tune.targets is not used with mode all"),
        (MIMConfig, {"distance": "absolute"}, "mim.distance is not used with target color"),
        (Augment, {"crop": "pad", "area": (0.5, 1)}, "augment.area is not used with crop pad"),
        (Augment, {"crop": "whole", "ratio": (1, 1)}, "augment.ratio is not used with crop"),
        (Augment, {"pad": 0.5}, "augment.pad is not used with crop inception, only with pad"),
    ],
)
def test_what_is_refused_is_said_in_one_way(record: Any, change: Any, said: str) -> None:
    """From a file and from Python."""
    section = PATHS[record].removesuffix(".")
    task = "mae" if record is MIMConfig else "classification"
    with pytest.raises(InputError, match=f"^{said}"):
        merge(RECORDS[0], {"task": task, section: change})
    with pytest.raises(InputError, match=f"^{said}"):
        record(**change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": {"smoothing": 0.1}}, "loss.smoothing is not used with task mae, only with class"),
        ({"loss": {"kind": "sigmoid"}}, "loss.kind is not used with task mae"),
        ({"tune": {"mode": "lora"}}, "tune.mode is not used with task mae"),
        ({"distill": {"teacher": "x"}}, "distill is not used with task mae"),
        ({"mim": {"mask": {"masked": 0.5}}}, "mim.mask.masked and mim.mask.replaced require"),
    ],
)
def test_settings_of_another_task_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}"):
        merge(RECORDS[0], {"task": "mae", **change})
    section, values = next(iter(change.items()))
    with pytest.raises(InputError, match=f"^{said}"):
        merge(merge(RECORDS[0], {"task": "mae"}), {section: values})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"val_data": "digits", "val_split": ""}, "val_data is not used without val_split; leave"),
        ({"tune": {"head": "keep-hidden"}}, "tune.head is only used with weights, whose head is"),
    ],
)
def test_settings_that_need_others_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}"):
        merge(RECORDS[0], change)


def test_masked_patches_has_no_decoder() -> None:
    with pytest.raises(InputError, match=r"mim\.decoder\.\* requires --task mae"):
        merge(RECORDS[0], {"task": "masked-patches", "mim": {"decoder": {"depth": 2}}})


@pytest.mark.parametrize("name", RECIPES)
def test_another_kind_takes_the_place_of_a_recipes(name: str) -> None:
    """What the recipe set for its own kind is no mistake of whoever asks for another."""
    config = RECIPES[name](
        RECORDS[0]
        if "jft" not in name and "21k" not in name and name != "mae-finetune"
        else replace(RECORDS[0], model="ViT-B/16")
    )
    for kind in ("adamw", "adam", "sgd", "muon"):
        changed = merge(config, {"optim": {"kind": kind}})
        assert changed.optim.lr == config.optim.lr
        if kind in ("adamw", "adam"):
            assert changed.optim.momentum == 0.9
    for task in ("classification", "masked-patches", "mae"):
        plain: dict[str, Any] = {"augment": {"mixup": 0, "cutmix": 0}}
        if task == "mae":
            plain["mim"] = {"mask": {"masked": 0.8, "replaced": 0.1}}
        assert merge(config, {"task": task}, plain).task == task
    assert from_dict(TrainConfig, to_dict(config)) == config


def test_flags_are_applied_at_once() -> None:
    """So that none puts back what another says, in whatever order they stand."""
    flags = [("optim.kind", "sgd"), ("optim.momentum", "0.8"), ("schedule.kind", "multistep")]
    flags += [("schedule.milestones", "50 %, 75 %"), ("tune.mode", "lora"), ("tune.rank", "2")]
    for order in (flags, flags[::-1]):
        config = merge(RECORDS[0], {"optim": {"momentum": 0.1}}, from_flags(order))
        assert (config.optim.kind, config.optim.momentum, config.tune.rank) == ("sgd", 0.8, 2)
        assert config.schedule.milestones == (Duration(50, "%"), Duration(75, "%"))
    for order in ([("loss.smoothing", "0.1"), ("task", "mae")], [("task", "mae")]):
        changes = ({"loss": {"smoothing": 0.2}}, from_flags(order))
        with pytest.raises(InputError, match=r"loss\.smoothing is not used with task mae"):
            merge(RECORDS[0], *changes)


def test_python_says_what_a_file_may_say() -> None:
    """Text for a path or a duration, and a dict for a record."""
    words: Any = {"out": "runs/x", "length": "7 epochs", "optim": {"kind": "sgd"}}
    config = TrainConfig(data="digits", model="ViT-Ti/16", **words)
    assert (config.out, config.length) == (Path("runs/x"), Duration(7, "epochs"))
    assert config.optim == OptimConfig(kind="sgd")
    assert all(is_dataclass(record) for record in RECORDS)
