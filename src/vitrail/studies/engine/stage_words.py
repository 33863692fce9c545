"""The words of a cell, and the settings of the run that they ask for.

A word is one of `train` and `finetune` (data, model, weights, recipe, batch, lr, …), a setting by
its dotted path (`optim.lr`), an option of the model's name (`model.depth`), a subset of the data
(`data.take`, `data.per_class`, `data.seed`), or the length: `steps`, `epochs`, `flops` (of the
whole training) or `processor_minutes`. Words that begin with `then.` are those of a second run,
which starts from the first one's model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitrail.config import InputError, flatten, suggest, to_dict
from vitrail.data.datasets.open import open_data
from vitrail.models import parse
from vitrail.models.spec import BiTSpec, HybridSpec, Spec, ViTSpec
from vitrail.run_settings import configure_finetuning, resolve_settings
from vitrail.training.logging.run_facts import image_flops
from vitrail.training.train_config import TrainConfig

Words = Mapping[str, Any]

THEN = "then."
LENGTHS = ("steps", "epochs", "flops", "processor_minutes")
SUBSETS = ("take", "per_class", "seed")
_RUN_WORDS = ("recipe", "batch", "lr", "image", "steps", "epochs")
_WORDS = ("data", "model", "weights", "task", "tune", *_RUN_WORDS)
_SHORTHANDS = ("augment", "fewshot")  # sections that a text may stand for
_OWN = ("out", "seed")  # which the sweep gives each run


def split_stages(words: Words) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a cell's words into those of its first run and those of the run after it, if any."""
    first = {name: value for name, value in words.items() if not name.startswith(THEN)}
    second = {name.removeprefix(THEN): words[name] for name in words if name.startswith(THEN)}
    return first, second


def check_word(name: str) -> None:
    """Refuse a word that is none, with the nearest that is one."""
    word = name.removeprefix(THEN)
    known = _known_words()
    section, _, rest = word.partition(".")
    sections = {field.name for field in fields(TrainConfig)}
    unlisted = section in sections and rest and section not in known  # as of distill, which is None
    if word in _OWN:
        instead = "give seeds" if word == "seed" else "the sweep has one folder for all runs"
        raise InputError(f"{name} can't be varied or set: {instead}")
    if word in known or (unlisted and not any(each.startswith(f"{section}.") for each in known)):
        return
    raise InputError(f"{name!r} is not a setting{suggest(word, known) or ' (see docs/sweeps.md)'}")


@functools.cache
def takes_none(name: str) -> bool:
    """Tell whether `none` is a value of a word's own, such as `model.position`, and not nothing."""
    word = name.removeprefix(THEN)
    if word.startswith("model.") or word in _SHORTHANDS:
        return True
    kind: Any = TrainConfig
    for part in word.split("."):
        configs = [each for each in (kind, *get_args(kind)) if is_dataclass(each)]
        kind = get_type_hints(configs[0]).get(part) if configs else None
    return "none" in _literals(kind)


def _literals(kind: Any) -> set[Any]:
    inner = [_literals(each) for each in get_args(kind)] if get_origin(kind) is not Literal else []
    return set(get_args(kind)) if get_origin(kind) is Literal else set().union(*inner)


@functools.cache
def _known_words() -> frozenset[str]:
    settings = flatten(to_dict(TrainConfig(data="", model="", out=Path())))
    options = {field.name for spec in (ViTSpec, HybridSpec, BiTSpec) for field in fields(spec)}
    known = {*_WORDS, *LENGTHS, *_SHORTHANDS, *settings, *(f"data.{name}" for name in SUBSETS)}
    return frozenset(known | {f"model.{name}" for name in options} - set(_OWN))


def stage_data(words: Words) -> str:
    """Return a stage's data, its subset included."""
    options = [f"{name}={words[f'data.{name}']}" for name in SUBSETS if f"data.{name}" in words]
    return ",".join([str(words.get("data", "")), *options])


def stage_model(words: Words, name: str | None = None) -> str | None:
    """Return a stage's model with its options; `name` is the model where the words give none."""
    model = words.get("model") or name
    options = {
        word.removeprefix("model."): value
        for word, value in words.items()
        if word.startswith("model.")
    }
    if not options:
        return words.get("model") or name
    if model is None:
        raise InputError(f"model.{next(iter(options))} needs a model; give model, such as ViT-S/16")
    head, *said = model.split(",")
    kept = [each for each in said if each.partition("=")[0] not in options]
    return ",".join([head, *kept, *(f"{key}={_spell(value)}" for key, value in options.items())])


def _spell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def resolve_stage(
    words: Words, out: Path, *, seed: int = 0, model: str | None = None
) -> TrainConfig:
    """Gather the settings of a stage's run, as `train` or, with weights, `finetune` would.

    `model` names the weights' model where they are not there yet. A length in FLOPs or processor
    minutes is one step here: `solve_length` says how many.
    """
    given = [name for name in (*LENGTHS, "length") if words.get(name) is not None]
    if len(given) > 1:
        raise InputError(f"give one length, not {' and '.join(given)}")
    words = dict(words)
    if given and given[0] in LENGTHS[2:]:
        words["steps"] = 1
    handled = {*_WORDS, *LENGTHS}
    settings = {
        name: value
        for name, value in words.items()
        if name not in handled and name.partition(".")[0] not in ("model", "data")
    }
    settings.setdefault("loggers", ())
    run = {name: words[name] for name in _RUN_WORDS if words.get(name) is not None}
    common: dict[str, Any] = {**run, "out": out, "seed": seed, "settings": settings}
    data, name = stage_data(words), stage_model(words, model)
    if words.get("weights"):
        return configure_finetuning(
            data, weights=words["weights"], model=name, tune=words.get("tune"), **common
        ).config
    if words.get("tune"):
        raise InputError("tune is a word of fine-tuning; give weights, or use it as then.tune")
    return resolve_settings(data, model=name, task=words.get("task"), **common).config


def stage_flops(config: TrainConfig) -> int:
    """Compute the exact operations of training on one image."""
    teacher = config.distill.teacher if config.distill is not None else None
    taught = _teacher_spec(teacher) if teacher else None
    return image_flops(config, _trained_spec(config), taught)


def _trained_spec(config: TrainConfig) -> Spec:
    spec = parse(config.model)
    if config.task != "classification":
        return spec
    return replace(spec, classes=_count_classes(config.data))


@functools.lru_cache(maxsize=64)
def _count_classes(data: str) -> int:
    return len(open_data(data, split="train").classes)


@functools.lru_cache(maxsize=8)
def _teacher_spec(source: str) -> Spec:
    from vitrail.weights.load import read_checkpoint

    return read_checkpoint(source).spec


def solve_length(
    words: Words, config: TrainConfig, image_seconds: float | None = None
) -> int | None:
    """Say how many steps a budget allows; None where the length is not a budget.

    `image_seconds` is the processor time that training on an image takes.
    """
    if (flops := words.get("flops")) is not None:
        return _solve("flops", flops, stage_flops(config) * config.batch, config)
    if (minutes := words.get("processor_minutes")) is not None:
        assert image_seconds is not None, "which is measured before a sweep begins"
        step = image_seconds * config.batch / 60
        return _solve("processor_minutes", minutes, step, config)
    return None


def _solve(name: str, budget: Any, step: float, config: TrainConfig) -> int:
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise InputError(f"{name} must be a number above 0, got {budget!r}")
    if budget < step:
        raise InputError(
            f"{name}={budget:g} is too little for one step: {config.model} with a batch of "
            f"{config.batch} needs {step:.3g}; give more, or a smaller batch"
        )
    return int(budget // step)
