"""Configuration: durations, the strict codec, overrides and files; each refusal by its words."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.config import (
    Duration,
    InputError,
    from_dict,
    merge,
    override,
    read_file,
    suggest,
    to_dict,
)

WARMUP = Duration(500, "steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sgd:
    lr: float
    kind: Literal["sgd"] = "sgd"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Refuse what Adam does not refuse."""
        if self.lr <= 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    lr: float = 1e-3
    kind: Literal["adam"] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ema:
    decay: float = 0.999
    every: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    model: str
    optim: Sgd | Adam = field(default_factory=lambda: Sgd(lr=0.1))
    batch: int = 512
    clip: float | None = 1.0
    cache: bool = False
    out: Path = Path("runs/one")
    init: Optional[Path] = None  # noqa: UP045 -- the old spelling must work too
    warmup: Duration = WARMUP
    save: Duration | None = None
    size: int | tuple[int, int] = 224
    layers: tuple[int, ...] = ()
    patch: Literal[16, 32] = 16
    pool: Literal["cls", "gap"] = "cls"
    ema: Ema | None = None
    weight: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    heads: dict[str, Ema] = field(default_factory=dict)
    derived: int = field(default=0, init=False)


BASE = Train(model="ViT-B/16")


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert isinstance(error.value, InputError)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------- InputError, suggest


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/a?X-Amz-Signature=ab1&v=2", "https://h/a?X-Amz-Signature=…&v=2"),
        ("https://h/a?sv=1&sig=a%2Fb", "https://h/a?sv=1&sig=…"),
        ("https://h/a?x=1&access_token=ab", "https://h/a?x=1&access_token=…"),
        ("https://h/a?download=true&tokens=9", "https://h/a?download=true&tokens=9"),
    ],
)
def test_messages_never_show_a_urls_signature(url: str, shown: str) -> None:
    assert str(InputError(f"cannot read '{url}': gone")) == f"cannot read '{shown}': gone"


def test_an_input_error_is_one_line_whatever_it_quotes() -> None:
    error = InputError("first\nline", "second")
    assert str(error) == "first line; second"
    assert isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("word", "choices", "expected"),
    [
        ("lrr", ["lr", "momentum"], "; did you mean 'lr'?"),
        ("vit-b/16", ["ViT-B/16", "BiT-R50x1"], "; did you mean 'ViT-B/16'?"),
        ("step", ["steps", "stem", "x"], "; did you mean 'steps' or 'stem'?"),
        ("aaab", ["aaaa", "aaac", "aaad", "aaae"], 3),
        ("zzz", ["lr", "momentum"], ""),
        ("lr", [], ""),
    ],
)
def test_suggest(word: str, choices: list[str], expected: str | int) -> None:
    text = suggest(word, choices)
    if isinstance(expected, int):
        assert text.count("'") == 2 * expected
        assert text.count(", ") == 1
        assert text.count(" or ") == 1
    else:
        assert text == expected


# ---------------------------------------------------------------- Duration


@pytest.mark.parametrize(
    ("text", "expected", "printed"),
    [
        ("500 steps", Duration(500, "steps"), "500 steps"),
        ("1 step", Duration(1, "steps"), "1 step"),
        ("1 steps", Duration(1, "steps"), "1 step"),
        ("0 steps", Duration(0, "steps"), "0 steps"),
        ("1e4 steps", Duration(10_000, "steps"), "10_000 steps"),
        ("10_000 steps", Duration(10_000, "steps"), "10_000 steps"),
        ("2.0 steps", Duration(2, "steps"), "2 steps"),
        (" 7  Epochs ", Duration(7, "epochs"), "7 epochs"),
        ("1 epoch", Duration(1, "epochs"), "1 epoch"),
        ("0.5 epochs", Duration(0.5, "epochs"), "0.5 epochs"),
        ("5 %", Duration(5, "%"), "5 %"),
        ("5%", Duration(5, "%"), "5 %"),
        ("1 %", Duration(1, "%"), "1 %"),
        ("2.5%", Duration(2.5, "%"), "2.5 %"),
        ("100 %", Duration(100, "%"), "100 %"),
        ("1_000_000 images", Duration(1_000_000, "images"), "1_000_000 images"),
        ("1 image", Duration(1, "images"), "1 image"),
    ],
)
def test_duration_reads_and_prints(text: str, expected: Duration, printed: str) -> None:
    assert Duration.parse(text) == expected
    assert str(expected) == printed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("500", ["'500' has no known unit", "'500 steps', '500 epochs', '500 %' or '500 images'"]),
        ("1.5", ["'1.5' has no known unit", "'1.5 epochs'"]),
        ("5 stps", ["'5 stps' has no known unit", "'5 steps'"]),
        ("5 hours", ["'5 hours' has no known unit", "'5 epochs'"]),
        ("1.5 steps", ["whole number of steps", "1.5"]),
        ("0.5 images", ["whole number of images", "0.5"]),
        ("-5 steps", ["expected 0 to", "steps", "got -5"]),
        ("-0.5 epochs", ["expected 0 to", "epochs", "got -0.5"]),
        ("nan epochs", ["expected 0 to", "epochs", "got nan"]),
        ("inf steps", ["expected 0 to", "steps", "got inf"]),
        ("1e400 steps", ["expected 0 to", "got inf"]),
        ("100.5 %", ["expected 0 to 100 %", "got 100.5"]),
        ("1,000 steps", ["a duration such as '500 steps'", "'1,000 steps'"]),
        ("300k images", ["a duration such as", "'300k images'"]),
        ("true steps", ["a duration such as", "'true steps'"]),
        ("none", ["a duration such as", "'none'"]),
        ("steps", ["a duration such as", "'1_000_000 images'"]),
        ("", ["a duration such as"]),
        ("5 steps\n6", ["5 steps"]),
    ],
)
def test_duration_refuses(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        Duration.parse(text)
    for word in words:
        assert word in message(error)


def test_duration_is_a_value() -> None:
    assert Duration(7.0, "epochs") == Duration(7, "epochs")
    assert repr(Duration(7.0, "epochs")) == "Duration(amount=7, unit='epochs')"
    assert len({Duration(7.0, "epochs"), Duration(7, "epochs"), Duration(7, "steps")}) == 2
    with pytest.raises(FrozenInstanceError):
        Duration(7, "epochs").amount = 8  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InputError, match=r"whole number of steps, got 1\.5"):
        Duration(1.5, "steps")


whole_durations = st.builds(
    Duration, st.integers(0, 2**53), st.sampled_from(["steps", "images", "epochs"])
)
epochs = st.builds(Duration, st.floats(0, 2**53), st.just("epochs"))
percents = st.builds(Duration, st.floats(0, 100), st.just("%"))
durations = whole_durations | epochs | percents


@given(durations)
def test_duration_survives_its_text(duration: Duration) -> None:
    assert Duration.parse(str(duration)) == duration
    assert str(Duration.parse(str(duration))) == str(duration)


@pytest.mark.parametrize(
    ("text", "images", "batch", "total", "expected"),
    [
        ("500 steps", 1000, 10, None, 500),
        ("7 epochs", 50_000, 512, None, 684),  # 683.59
        ("0.3 epochs", 5, 1, None, 2),  # 1.5 by the decimal, 1.4999… by the float
        ("0.7 epochs", 5, 1, None, 4),  # 3.5, to even
        ("0.001 epochs", 10, 10, None, 1),
        ("0 epochs", 10, 10, None, 0),
        ("1_000_000 images", 1, 512, None, 1954),
        ("1 image", 1, 512, None, 1),
        ("0 images", 1, 512, None, 0),
        ("5 %", 1, 1, 10_000, 500),
        ("1 %", 1, 1, 10, 0),
        ("100 %", 1, 1, 777, 777),
        ("0.1 %", 1, 1, 15_000, 15),
    ],
)
def test_duration_in_steps(
    text: str, images: int, batch: int, total: int | None, expected: int
) -> None:
    assert Duration.parse(text).steps(images=images, batch=batch, total=total) == expected


def test_a_percentage_needs_its_total() -> None:
    with pytest.raises(InputError) as error:
        Duration(5, "%").steps(images=10, batch=1)
    assert "'5 %' requires a total" in message(error)


def nearest(value: Fraction) -> set[int]:
    """Return the one or, at a tie, two whole numbers that are nearest to value."""
    around = {math.floor(value), math.ceil(value)}
    least = min(abs(n - value) for n in around)
    return {n for n in around if abs(n - value) == least}


@given(
    st.integers(0, 10**6),
    st.integers(0, 4),
    st.integers(1, 10**8),
    st.integers(1, 10**5),
    st.integers(0, 10**7),
)
def test_steps_are_exact(digits: int, places: int, images: int, batch: int, total: int) -> None:
    """Hold the steps against fractions of the decimal digits that the text is made of."""
    amount = Fraction(digits, 10**places)
    number = f"{digits // 10**places}.{digits % 10**places:0{places}d}" if places else f"{digits}"

    steps = Duration.parse(f"{number} epochs").steps(images=images, batch=batch)
    assert steps in nearest(amount * images / batch) or (steps == 1 and amount > 0)
    assert (steps == 0) == (amount == 0)

    steps = Duration(digits, "images").steps(images=images, batch=batch)
    assert (steps - 1) * batch < digits <= steps * batch

    assert Duration(digits, "steps").steps(images=images, batch=batch) == digits
    if amount <= 100:
        steps = Duration.parse(f"{number} %").steps(images=images, batch=batch, total=total)
        assert steps in nearest(amount * total / 100)


# ---------------------------------------------------------------- from_dict


def test_from_dict_fills_in_defaults() -> None:
    assert from_dict(Train, {"model": "ViT-B/16"}) == BASE


def test_from_dict_reads_every_supported_type() -> None:
    plain = {
        "model": "ViT-L/16",
        "optim": {"lr": "1e-3", "kind": "adam", "betas": [0.8, 1]},
        "batch": 1e4,
        "clip": None,
        "cache": True,
        "out": "runs/two",
        "init": "weights.npz",
        "warmup": "5%",
        "save": "1 epoch",
        "size": [224, 384],
        "layers": [3, 11.0],
        "patch": 32,
        "pool": "gap",
        "ema": {"decay": 1},
        "weight": {"cat": 2, "dog": "0.5"},
        "notes": ["a", "b"],
        "heads": {"main": {"every": 2}},
    }
    config = from_dict(Train, plain)
    assert config == Train(
        model="ViT-L/16",
        optim=Adam(lr=1e-3, betas=(0.8, 1.0)),
        batch=10_000,
        clip=None,
        cache=True,
        out=Path("runs/two"),
        init=Path("weights.npz"),
        warmup=Duration(5, "%"),
        save=Duration(1, "epochs"),
        size=(224, 384),
        layers=(3, 11),
        patch=32,
        pool="gap",
        ema=Ema(decay=1.0),
        weight={"cat": 2.0, "dog": 0.5},
        notes=("a", "b"),
        heads={"main": Ema(every=2)},
    )
    # Equal is not enough: 1 == 1.0, and a type that is nearly right breaks something later.
    assert type(config.batch) is int
    assert [type(layer) for layer in config.layers] == [int, int]
    assert config.ema is not None
    assert type(config.ema.decay) is float
    assert isinstance(config.optim, Adam)
    assert [type(beta) for beta in config.optim.betas] == [float, float]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"zzz": 1}, ["unknown key 'zzz'", "the keys are model, optim, batch"]),
        ({"modle": 1}, ["unknown key 'modle'; did you mean 'model'?"]),
        ({"optim": {"lrr": 1, "lr": 1}}, ["unknown key 'optim.lrr'; did you mean 'optim.lr'?"]),
        ({"BATCH": 1}, ["unknown key 'BATCH'; did you mean 'batch'?"]),
        ({"derived": 1}, ["unknown key 'derived'"]),
        ({1: 1}, ["unknown key '1'"]),
        ({"optim": {"momentum": 0.5}}, ["missing key 'optim.lr'"]),
        ({"optim": {"lr": "fast"}}, ["optim.lr: expected a number, got 'fast'"]),
        ({"optim": {"lr": True}}, ["optim.lr: expected a number, got True"]),
        ({"optim": {"lr": "nan"}}, ["optim.lr: expected a number, got 'nan'"]),
        ({"optim": {"lr": math.inf}}, ["optim.lr: expected a number, got inf"]),
        ({"optim": {"lr": 10**400}}, ["optim.lr: expected a number, got 1000"]),
        ({"optim": {"lr": -1}}, ["optim: lr must be above 0, got -1.0"]),
        ({"optim": 5}, ["optim: expected keys and values (lr, kind, momentum) or", "got 5"]),
        ({"batch": 1.7}, ["batch: expected a whole number, got 1.7"]),
        ({"batch": "32"}, ["batch: expected a whole number, got '32'"]),
        ({"batch": True}, ["batch: expected a whole number, got True"]),
        ({"batch": math.inf}, ["batch: expected a whole number, got inf"]),
        ({"batch": None}, ["batch: expected a whole number, got None"]),
        ({"cache": 1}, ["cache: expected true or false, got 1"]),
        ({"cache": "true"}, ["cache: expected true or false, got 'true'"]),
        ({"model": 16}, ["model: expected text, got 16"]),
        ({"out": 16}, ["out: expected a path, got 16"]),
        ({"clip": "none"}, ["clip: expected a number or null, got 'none'"]),
        ({"warmup": 500}, ["warmup: '500' has no known unit; write '500 steps'"]),
        ({"warmup": "1.5 steps"}, ["warmup: expected a whole number of steps"]),
        ({"warmup": True}, ["warmup: expected a duration such as '500 steps'", "got True"]),
        ({"save": 500}, ["save: '500' has no known unit; write '500 steps'"]),
        (
            {"size": [1, 2, 3]},
            ["size: expected a whole number or a list of 2, got [1, 2, 3]"],
        ),
        (
            {"layers": [1, "x", 2, 0.5]},
            ["layers[1]: expected a whole number", "layers[3]", "0.5"],
        ),
        ({"layers": 3}, ["layers: expected a list, got 3"]),
        ({"notes": "ab"}, ["notes: expected a list, got 'ab'"]),
        ({"patch": "16"}, ["patch: expected 16 or 32, got '16'"]),
        ({"pool": "gp"}, ["pool: expected 'cls' or 'gap', got 'gp'"]),
        ({"pool": ["cls"]}, ["pool: expected 'cls' or 'gap', got ['cls']"]),
        ({"ema": {"decy": 1}}, ["unknown key 'ema.decy'; did you mean 'ema.decay'?"]),
        ({"weight": {"cat": "x"}}, ["weight.cat: expected a number, got 'x'"]),
        ({"weight": {1: 0.5}}, ["weight: expected dict[str, float], got {1: 0.5}"]),
        ({"weight": [1]}, ["weight: expected dict[str, float], got [1]"]),
        (
            {"heads": {"a": {"evry": 1}}},
            ["unknown key 'heads.a.evry'; did you mean 'heads.a.every'?"],
        ),
    ],
)
def test_from_dict_refuses(data: dict[Any, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        from_dict(Train, {"model": "ViT-B/16"} | data)
    for word in words:
        assert word in message(error)


def test_all_problems_come_at_once_and_in_order() -> None:
    optim = {"kind": "sgd", "lrr": 1, "momentum": "x"}
    data = {"batch": 1.7, "optim": optim, "zzz": 1, "layers": ["a", "b"]}
    with pytest.raises(InputError) as error:
        from_dict(Train, data)
    assert message(error) == (
        "batch: expected a whole number, got 1.7; "
        "unknown key 'optim.lrr'; did you mean 'optim.lr'?; "
        "optim.momentum: expected a number, got 'x'; "
        "missing key 'optim.lr'; "
        "unknown key 'zzz'; the keys are model, optim, batch, clip, cache, out, init, warmup, "
        "save, size, layers, patch, pool, ema, weight, notes, heads; "
        "layers[0]: expected a whole number, got 'a'; layers[1]: expected a whole number, got 'b'; "
        "missing key 'model'"
    )
    assert len(error.value.args) == 8


def test_where_goes_in_front() -> None:
    with pytest.raises(InputError) as error:
        from_dict(Sgd, {"lrr": 1}, where="train.optim")
    assert message(error) == (
        "unknown key 'train.optim.lrr'; did you mean 'train.optim.lr'?; "
        "missing key 'train.optim.lr'"
    )
    with pytest.raises(InputError, match=r"^train\.optim: lr must be above 0, got -1\.0$"):
        from_dict(Sgd, {"lr": -1}, where="train.optim")
    with pytest.raises(InputError, match=r"^lr must be above 0, got -1\.0$"):
        from_dict(Sgd, {"lr": -1})


@pytest.mark.parametrize("data", [None, [], "lr", 5])
def test_only_a_mapping_makes_a_dataclass(data: Any) -> None:
    with pytest.raises(InputError) as error:
        from_dict(Sgd, data)
    assert message(error) == f"expected keys and values (lr, kind, momentum), got {data!r}"


def test_long_values_are_cut_short() -> None:
    with pytest.raises(InputError) as error:
        from_dict(Train, {"model": "m", "batch": "x" * 10_000})
    assert len(message(error)) < 100


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"lr": 1}, Sgd(lr=1.0)),  # fits both: the first
        ({"betas": [0.5, 0.6]}, Adam(betas=(0.5, 0.6))),
        ({"kind": "adam", "lr": 1}, Adam(lr=1.0)),
        ({}, Adam()),  # Sgd needs its lr
    ],
)
def test_a_union_of_dataclasses_takes_the_one_that_fits(
    data: dict[str, Any], expected: Sgd | Adam
) -> None:
    assert from_dict(Train, {"model": "m", "optim": data}).optim == expected


def test_a_union_of_dataclasses_tells_of_the_nearest() -> None:
    with pytest.raises(InputError) as error:
        from_dict(Train, {"model": "m", "optim": {"kind": "adam", "lrr": 1, "lr": 1}})
    assert message(error) == "unknown key 'optim.lrr'; did you mean 'optim.lr'?"


def test_a_ready_object_is_taken_as_it_is() -> None:
    assert merge(BASE, {"optim": Adam(), "warmup": Duration(1, "%")}).optim == Adam()


# ---------------------------------------------------------------- to_dict


def test_to_dict_is_plain() -> None:
    config = Train(
        model="m", size=(1, 2), ema=Ema(), save=Duration(1, "steps"), heads={"a": Ema(every=3)}
    )
    assert to_dict(config) == {
        "model": "m",
        "optim": {"lr": 0.1, "kind": "sgd", "momentum": 0.9},
        "batch": 512,
        "clip": 1.0,
        "cache": False,
        "out": "runs/one",
        "init": None,
        "warmup": "500 steps",
        "save": "1 step",
        "size": [1, 2],
        "layers": [],
        "patch": 16,
        "pool": "cls",
        "ema": {"decay": 0.999, "every": 1},
        "weight": {},
        "notes": [],
        "heads": {"a": {"decay": 0.999, "every": 3}},
    }


finite = st.floats(allow_nan=False, allow_infinity=False)
sgds = st.builds(Sgd, lr=st.floats(1e-9, 1e9), momentum=finite)
adams = st.builds(Adam, lr=finite, betas=st.tuples(finite, finite))
emas = st.builds(Ema, decay=finite, every=st.integers())
paths = st.text(st.characters(codec="utf-8", exclude_characters="\0")).map(Path)
trains = st.builds(
    Train,
    model=st.text(),
    optim=sgds | adams,
    batch=st.integers(),
    clip=st.none() | finite,
    cache=st.booleans(),
    out=paths,
    init=st.none() | paths,
    warmup=durations,
    save=st.none() | durations,
    size=st.integers() | st.tuples(st.integers(), st.integers()),
    layers=st.lists(st.integers()).map(tuple),
    patch=st.sampled_from([16, 32]),
    pool=st.sampled_from(["cls", "gap"]),
    ema=st.none() | emas,
    weight=st.dictionaries(st.text(), finite),
    notes=st.lists(st.text()).map(tuple),
    heads=st.dictionaries(st.text(), emas),
)


@given(trains)
def test_plain_data_brings_the_object_back(config: Train) -> None:
    plain = to_dict(config)
    assert from_dict(Train, plain) == config
    assert from_dict(Train, json.loads(json.dumps(plain))) == config
    assert merge(config, plain) == config
    assert merge(config, {}) == config


# ---------------------------------------------------------------- merge


def test_merge_changes_only_what_is_named() -> None:
    start = merge(BASE, {"ema": {"every": 5}, "weight": {"cat": 1}, "heads": {"a": {"every": 7}}})
    before = json.dumps(to_dict(start))
    changes = {
        "optim": {"momentum": 0.5},
        "ema": {"decay": 0.5},
        "weight": {"dog": 2},
        "heads": {"a": {"decay": 0.1}, "b": {}},
        "layers": [1],
    }
    changed = merge(start, changes)
    assert changed.optim == Sgd(lr=0.1, momentum=0.5)
    assert changed.ema == Ema(decay=0.5, every=5)
    assert changed.weight == {"cat": 1.0, "dog": 2.0}
    assert changed.heads == {"a": Ema(decay=0.1, every=7), "b": Ema()}
    assert changed.layers == (1,)
    assert changed.model == "ViT-B/16"
    assert json.dumps(to_dict(start)) == before
    assert changes["heads"] == {"a": {"decay": 0.1}, "b": {}}
    assert merge(changed, {"ema": None}).ema is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "adam"}, Adam()),
        ({"betas": [0, 0]}, Adam(betas=(0.0, 0.0))),
        ({"lr": 2}, Sgd(lr=2.0, momentum=0.5)),
    ],
)
def test_merge_may_change_the_member_of_a_union(
    changes: dict[str, Any], expected: Sgd | Adam
) -> None:
    start = merge(BASE, {"optim": {"momentum": 0.5}})
    assert merge(start, {"optim": changes}).optim == expected


def test_a_bad_value_does_not_change_the_member_of_a_union() -> None:
    with pytest.raises(InputError, match="optim: lr must be above 0"):  # Adam would take it
        merge(BASE, {"optim": {"lr": -1}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optim": {"lrr": 1}}, "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
        ({"optim": {"lr": "fast"}}, "optim.lr: expected a number, got 'fast'"),
        (
            {"batch": None, "ema": {"evry": 1}},
            "batch: expected a whole number, got None; unknown key",
        ),
        ({"optim": None}, "optim: expected keys and values"),
    ],
)
def test_merge_refuses(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        merge(BASE, changes)
    assert words in message(error)


# ---------------------------------------------------------------- override


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("optim.momentum", "0.95", 0.95),
        ("optim.lr", "1e-3", 0.001),
        ("optim.lr", "1", 1.0),
        ("batch", "10_000", 10_000),
        ("batch", "1e4", 10_000),
        ("cache", "true", True),
        ("cache", "False", False),
        ("clip", "none", None),
        ("clip", "null", None),
        ("clip", "0.5", 0.5),
        ("model", "none", "none"),
        ("model", "5", "5"),
        ("model", "a,b", "a,b"),
        ("model", "", ""),
        ("init", "none", None),
        ("init", "5", Path("5")),
        ("out", "a/b", Path("a/b")),
        ("warmup", "5 %", Duration(5, "%")),
        ("save", "1 epoch", Duration(1, "epochs")),
        ("save", "none", None),
        ("size", "384", 384),
        ("size", "224, 384", (224, 384)),
        ("layers", "3,11", (3, 11)),
        ("layers", "3", (3,)),
        ("layers", "", ()),
        ("notes", "1,b", ("1", "b")),
        ("patch", "32", 32),
        ("pool", "gap", "gap"),
        ("ema.decay", "0.5", 0.5),
        ("ema", "none", None),
        ("weight.cat", "2", 2.0),
        ("heads.a.every", "4", 4),
        ("optim.betas", "0.9,0.99", (0.9, 0.99)),
    ],
)
def test_override(path: str, text: str, expected: object) -> None:
    value: Any = override(BASE, path, text)
    for key in path.split("."):
        value = value[key] if isinstance(value, dict) else getattr(value, key)
    assert value == expected
    assert type(value) is type(expected)
    assert Train(model="ViT-B/16") == BASE


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("optim.lrr", "1", "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
        ("optm.lr", "1", "unknown key 'optm'; did you mean 'optim'?"),
        ("", "1", "unknown key ''"),
        ("optim.", "1", "unknown key 'optim.'"),
        ("optim.lr", "fast", "optim.lr: expected a number, got 'fast'"),
        ("optim.lr", "-1", "optim: lr must be above 0, got -1.0"),
        ("optim.kind", "lamb", "optim.kind: expected 'sgd', got 'lamb'"),
        ("optim.lr.x", "1", "optim.lr: expected a number, got {'x': '1'}"),
        ("optim", "sgd", "optim: expected keys and values (lr, kind, momentum) or"),
        ("batch", "1.7", "batch: expected a whole number, got '1.7'"),
        ("batch", "none", "batch: expected a whole number, got 'none'"),
        ("cache", "1", "cache: expected true or false, got '1'"),
        (
            "size",
            "1,2,3",
            "size: expected a whole number or a list of 2, got '1,2,3'",
        ),
        ("warmup", "500", "warmup: '500' has no known unit"),
        ("pool", "max", "pool: expected 'cls' or 'gap', got 'max'"),
    ],
)
def test_override_refuses(path: str, text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        override(BASE, path, text)
    assert words in message(error)


@dataclass(frozen=True)
class Whole:
    parts: int = 1

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise InputError(f"parts is at least 1, not {self.parts}")


def test_override_says_what_is_wrong_with_a_number_that_it_could_read() -> None:
    with pytest.raises(InputError) as error:
        override(Whole(), "parts", "0")
    assert message(error) == "parts is at least 1, not 0"


# ---------------------------------------------------------------- read_file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "model: m\nbatch: 1e4\noptim:\n  lr: 1e-3\n  momentum: 0.5\n"),
        ("a.yml", "{model: m, batch: 1E+4, optim: {lr: '1e-3', momentum: .5}}"),
        ("a.toml", 'model = "m"\nbatch = 1e4\n[optim]\nlr = 1e-3\nmomentum = 0.5\n'),
        ("a.json", '{"model": "m", "batch": 1e4, "optim": {"lr": 1e-3, "momentum": 0.5}}'),
        ("A.JSON", '\ufeff{"model": "m", "batch": 10000, "optim": {"lr": 0.001, "momentum": 0.5}}'),
    ],
)
def test_read_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    data = read_file(str(tmp_path / name))
    expected = Train(model="m", batch=10_000, optim=Sgd(lr=1e-3, momentum=0.5))
    assert from_dict(Train, data) == expected


def test_yaml_merge_keys_are_no_duplicates(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: 2}\nouter:\n  deep: &d {<<: *b, x: 3}\nlast: {<<: *d}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert read_file(tmp_path / "a.yaml")["last"] == {"x": 3, "y": 2}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "a: 1\nb:\n  c: 1\n  c: 1\n", "line 4: duplicate key 'c'"),
        ("a.yaml", "a: 1\nb: [1\n", "line 3: expected ',' or ']'"),
        ("a.yaml", "a: 1\nb: c: d\n", "line 2: mapping values are not allowed here"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "line 1: could not determine"),
        ("a.yaml", "a: !!bool x", "does not fit its !!tag"),
        ("a.yaml", "a: 2020-13-45", "month"),
        ("a.yaml", "a: \x01", "special characters"),
        ("a.yaml", "a: 1\n---\nb: 1\n", "line 2"),
        ("a.yaml", "- 1\n", "expected keys and values at the top, got [1]"),
        ("a.yaml", "", "expected keys and values at the top, got None"),
        ("a.yaml", "[" * 5000, "recursion"),
        ("a.json", '{"a": 1, "b": {"c": 1, "c": 1}}', "duplicate key 'c'"),
        ("a.json", '{"a": 1,\n "b": }', "line 2 column 7"),
        ("a.json", "[1]", "expected keys and values at the top, got [1]"),
        ("a.json", "", "line 1"),
        ("a.toml", "a = 1\nb = \nc = 1\n", "line 2"),
        ("a.toml", "[x]\n[x]\n", "twice (at line 2"),
    ],
)
def test_read_file_refuses(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_file(path)
    assert message(error).startswith(f"{path}: ")
    assert words in message(error)


def test_read_file_names_what_it_cannot_open(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("a: 1")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    refusals = {
        "trian.yaml": "No such file or directory; did you mean 'train.yaml'",
        "no/such/folder.json": "No such file or directory",
        "folder.yaml": "Is a directory",
        "latin.json": "can't decode byte 0xe9",
        "train.ini": "expected a file that ends in .yaml, .yml, .toml or .json",
        "train": "expected a file that ends in .yaml, .yml, .toml or .json",
    }
    for name, words in refusals.items():
        with pytest.raises(InputError) as error:
            read_file(tmp_path / name)
        assert message(error).startswith(f"{tmp_path / name}: ")
        assert words in message(error)


# ---------------------------------------------------------------- the room itself


def test_importing_it_is_cheap() -> None:
    code = "import sys, vitrail.config; print({'torch', 'yaml', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
