"""A run's settings from the words that a person gives: defaults, recipe, file, then the words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, Unpack

from vitrail.config import (
    Duration,
    InputError,
    flatten,
    from_flags,
    merge,
    read_file,
    suggest,
    to_dict,
)
from vitrail.data.checks.output_place import check_output_place
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.datasets.open import Data, names_targets, open_data
from vitrail.data.transforms.augment import parse_augment
from vitrail.distributed import choose_device
from vitrail.models import BiT, ViT
from vitrail.models.names import as_size, at_size
from vitrail.recipes import apply_recipe, fit_batch, shorten_warmup, transfer_of
from vitrail.training.checkpoints.default_folder import choose_out
from vitrail.training.checkpoints.run_folder import CONFIG
from vitrail.training.logging.loggers import check_loggers
from vitrail.training.parts import Parts, gather_parts, split_model, split_task, split_weights
from vitrail.training.run_data import check_can_hold_out
from vitrail.training.task import TaskFactory
from vitrail.training.train_config import TrainConfig
from vitrail.training.train_iterator import count_images
from vitrail.weights.load import read_spec
from vitrail.weights.loaded import AnyModel, LoadedModel
from vitrail.weights.published.default_weights import choose_default_weights

OWN_PARTS = {
    "optimizer",
    "schedule",
    "transform",
    "metrics",
    "callbacks",
    "loggers",
    "task",
    "model",
}
"""Arguments of `train` and `finetune` that take objects of one's own."""
_ANY_MODEL, _ANY_WEIGHTS = "ViT-Ti/16", "file:weights"
"""What settings are tried with before weights are looked for."""


class RunWords(TypedDict, total=False):
    """The words of `vitrail train` and `finetune`; where none is given, the recipe decides."""

    out: str | Path | None
    """The run's folder. Default: runs/ and the name of the data, with a number if that is taken."""
    recipe: str | None
    """Settings to begin with, such as small-data or finetune:pets."""
    steps: int | None
    epochs: float | None
    test: str | None
    """Images that the kept model is scored on once, at the end."""
    minutes: float | None
    """Length as a time; a few real steps plan how many there are."""
    more: str | Duration | None
    """How long the finished run in `out` continues, such as "5 epochs"; the schedule restarts."""
    group: str | None
    """Images that are held out together: a column of a list, or a pattern of their names."""
    folds: int | None
    """Train so many times, with another part of the training images held out each time."""
    batch: int | None
    """Images per step, over all processes."""
    lr: float | None
    seed: int | None
    image: str | int | None
    """Image size: 384, or "384x512"."""
    config_file: str | Path | None
    """Settings as YAML, TOML or JSON."""
    settings: Mapping[str, Any]
    """Other settings by dotted path: {"optim.momentum": 0.95}; text is read as their type says.

    A section's record is taken too, and those at the top may be words themselves:
    `augment=Augment(crop="whole")`, `val_data="other/"`.
    """


@dataclass(frozen=True)
class Configured:
    """Settings, and what was read to find them."""

    config: TrainConfig
    row: str | None = None
    """The row of the paper's Table 4 that the protocol goes by."""


def configure(
    data: Data,
    *,
    model: str | None = None,
    task: str | None = None,
    weights: str | None = None,
    **words: Unpack[RunWords],
) -> TrainConfig:
    """Gather a run's settings: defaults, then the recipe, then the file, then the words.

    Without a model's name, the model is that of the weights.
    """
    return resolve_settings(data, model=model, task=task, weights=weights, **words).config


def resolve_settings(
    data: Data,
    *,
    model: str | None = None,
    task: str | None = None,
    weights: str | None = None,
    choose_weights: Callable[[int | None, str | None], str] | None = None,
    own_task: bool = False,
    **words: Unpack[RunWords],
) -> Configured:
    """Gather settings as `configure` does.

    `choose_weights`, from the number of training images and a model's name, is asked where nobody
    names any. Settings, data and folder are checked before weights are looked for, which may take a
    download; what a task of one's own needs of data, nobody knows yet.
    """
    words = continue_settings(words)
    if task is None and names_targets(data):
        task = "regression"
    given = (_daily_settings(task, words), _more_settings(words))
    given_out, path = words.get("out"), words.get("config_file")
    out = Path("runs/run" if given_out is None else given_out)
    file = dict(read_file(path)) if path else {}
    if words.get("more") is None:  # another run of the settings of one that was continued
        file = {name: each for name, each in file.items() if name not in ("more", "more_from")}
    said = _check_file(TrainConfig(data="", model="", out=out), file, path)
    data, weights = data or said.data, weights or said.weights
    if not data:
        raise InputError("no data; give DATA, such as a folder of images, or a --config with data")
    text, model = data_text(data), model or said.model or None
    recipe = words.get("recipe") or (task if task in ("masked-patches", "mae") else None)

    @cache
    def opened() -> ImageDataset | ImageStream:
        return open_data(data, split="train", labels=False)

    def count() -> int | None:
        return count_images(opened())

    def gather(model: str, weights: str | None) -> tuple[TrainConfig, Duration]:
        """Apply recipe, file and words to a model's defaults; also say what warm-up is planned."""
        config = TrainConfig(data=text, model=model, out=out, weights=weights)
        if recipe is not None:
            if task == "regression":
                config = replace(config, task="regression")
            config = apply_recipe(config, recipe, file, *given)
        named = {"data": text, "model": config.model, "out": str(out), "weights": weights}
        found = merge(config, file | named, *given)
        if any("loggers" in each for each in (file, *given)):
            check_loggers(found.loggers)
        return found, config.schedule.warmup

    if weights is not None or choose_weights is not None:
        size = as_size(words.get("image"))
        tried = at_size(model or _ANY_MODEL, size) if size else model or _ANY_MODEL
        config = gather(tried, weights or _ANY_WEIGHTS)[0]
        check_output_place(out, data)
        if not own_task:
            check_can_hold_out(config, data, opened())
    if weights is None and choose_weights is not None:
        weights = choose_weights(count(), model)
    config, planned = gather(_name_model(model, weights, words.get("image")), weights)
    if recipe is not None and not any("batch" in each for each in (file, *given)):
        config = _fit_batch(config, count, scale_lr=words.get("lr") is None)
    if config.schedule.warmup == planned:
        config = _fit_warmup(config, count)
    if given_out is None:
        config = replace(config, out=choose_out(config))
    return Configured(config)


def continue_settings(words: RunWords) -> RunWords:
    """Take the settings of the run that is to be continued, unless a file is given."""
    if words.get("more") is None:
        return words
    out = words.get("out")
    if out is None:
        raise InputError("--more needs --out, the folder of the finished run")
    file = Path(out) / CONFIG
    if not file.is_file():
        raise InputError(f"--more continues a finished run, and {out} holds none")
    return {**words, "config_file": words.get("config_file") or file}


def configure_finetuning(
    data: Data,
    *,
    weights: str | None = None,
    model: str | None = None,
    tune: str | None = None,
    task: str | None = None,
    own_task: bool = False,
    protocol: str | None = None,
    rates: Sequence[float] = (),
    **words: Unpack[RunWords],
) -> Configured:
    """Gather the settings of a fine-tuning run, or of the runs of a protocol."""
    words = continue_settings(words)
    recipe, settings, row = words.get("recipe"), {**words.get("settings", {})}, None
    if protocol is not None:
        row = transfer_of(recipe.partition(":")[2] if recipe else data_text(data))
        if words.get("lr") is not None or "optim.lr" in settings:
            raise InputError("the protocol chooses the learning rate: give --rates instead of --lr")
    elif rates:
        raise InputError("--rates requires --protocol paper; without it, give one --lr")
    if tune is not None:
        settings = {"tune.mode": tune, **settings}
    words["recipe"] = recipe or (f"finetune:{row}" if row else "finetune-default")
    words["settings"] = settings

    def choose(images: int | None, model: str | None) -> str:
        device = choose_device(settings.get("device")).type
        return choose_default_weights(images, device, words.get("minutes"), model)

    given: Any = {"model": model, "task": task, "own_task": own_task, "weights": weights, **words}
    return replace(resolve_settings(data, choose_weights=choose, **given), row=row)


def prepare_run(
    config: TrainConfig | Data,
    words: RunWords,
    *,
    data: Data | None = None,
    model: Any = None,
    task: str | TaskFactory | None = None,
    weights: AnyModel | None = None,
    **given: Any,
) -> tuple[TrainConfig, Parts]:
    """Return a run's settings and parts from what `train` takes; `given` is as for its parts."""
    named, change = split_model(model)
    kind, own_task = split_task(task)
    if isinstance(change, LoadedModel | ViT | BiT):
        weights, change = change, None
    source, checkpoint = split_weights(weights)
    named = named or (checkpoint and checkpoint.spec.name)
    if isinstance(config, TrainConfig):
        if words:
            raise InputError(f"{', '.join(words)}: change the TrainConfig instead, or give DATA")
        own = None if data is None else data_text(data)
        noted = {"model": named, "task": kind, "data": own, "weights": source}
        config = merge(config, {name: text for name, text in noted.items() if text is not None})
    else:
        data = config if data is None else data
        own: Any = {"own_task": own_task is not None}
        found = resolve_settings(data, model=named, task=kind, weights=source, **own, **words)
        config = found.config
    return gather_parts(
        config, data=data, checkpoint=checkpoint, task=own_task, model=change, **given
    )


def data_text(data: Data) -> str:
    """Return data as the settings note it: its text, or `object:` and its type."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    return f"object:{getattr(data, 'name', type(data).__name__)}"


def _check_file(config: TrainConfig, file: dict[str, Any], path: str | Path | None) -> TrainConfig:
    """Read a file's settings; what is wrong in it is told with its name."""
    try:
        return merge(config, file)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _name_model(model: str | None, weights: str | None, image: str | int | None) -> str:
    """Say which model is trained at which resolution."""
    if not model:
        if weights is None:
            raise InputError(
                "no model; give --model, such as ViT-S/16, or a --config that names one"
            )
        model = read_spec(weights).name  # of many processes only one may need the weights
    size = as_size(image)
    return at_size(model, size) if size else model


def _daily_settings(task: str | None, words: RunWords) -> dict[str, Any]:
    steps, epochs, lr = words.get("steps"), words.get("epochs"), words.get("lr")
    lengths = [f"--{name}" for name in ("steps", "epochs", "minutes") if words.get(name)]
    if len(lengths) > 1:
        raise InputError(f"give {' or '.join(lengths)}, not both")
    length = None if steps is None else f"{steps} steps"
    found: dict[str, Any] = {
        "task": task,
        "group": words.get("group"),
        "folds": words.get("folds"),
        "test_data": words.get("test"),
        "batch": words.get("batch"),
        "seed": words.get("seed"),
        "length": length if epochs is None else f"{epochs} epochs",
        "minutes": words.get("minutes"),
        "more": None if words.get("more") is None else str(words.get("more")),
        "optim": None if lr is None else {"lr": lr},
    }
    return {key: value for key, value in found.items() if value is not None}


def _more_settings(words: RunWords) -> dict[str, Any]:
    """Nest the settings that are given by dotted path; refuse those that there are not."""
    own = RunWords.__annotations__
    others = {word: value for word, value in words.items() if word not in own}
    for word in others:
        check_setting(word, OWN_PARTS, typed=False)
    settings = {**others, **(words.get("settings") or {})}
    for path in words.get("settings") or {}:
        check_setting(path)
    if isinstance(augment := settings.get("augment"), str):
        settings["augment"] = to_dict(parse_augment(augment))
    if isinstance(settings.get("fewshot"), str):
        settings["fewshot.data"] = settings.pop("fewshot")
    return from_flags(settings.items())


def check_setting(name: str, flags: Iterable[str] = (), *, typed: bool = True) -> None:
    """Refuse a setting that there is not, as a flag or as an argument; `flags` may be meant."""
    known = {field.name for field in fields(TrainConfig)}
    path = name.replace("-", "_")
    if path.partition(".")[0] in known:
        return
    words = known | RunWords.__annotations__.keys() - {"settings", "config_file"} | set(flags)
    if not typed:
        near = suggest(name, words) or _in_sections(path, "settings={{{!r}: …}}")
        raise InputError(f"unknown argument {name}{near or ' (see docs/settings.md)'}")
    near = suggest(f"--{name}", (f"--{word.replace('_', '-')}" for word in words))
    raise InputError(f"unknown option --{name}{_in_sections(path) or f'{near} (see --help)'}")


def _fit_batch(
    config: TrainConfig, count: Callable[[], int | None], *, scale_lr: bool
) -> TrainConfig:
    """Cut a recipe's batch where it is larger than the whole training split."""
    images = count()
    return config if images is None else fit_batch(config, images=images, scale_lr=scale_lr)


def _in_sections(name: str, form: str = "") -> str:
    """Ask whether a setting of that name was meant that is in a section."""
    everything = flatten(to_dict(TrainConfig(data="", model="", out=Path())))
    found = [path for path in everything if path.rpartition(".")[2] == name and path != name]
    flags = [form.format(path) if form else f"--{path.replace('_', '-')}" for path in found]
    return f"; did you mean {' or '.join(flags)}?" if flags else ""


def _fit_warmup(config: TrainConfig, count: Callable[[], int | None]) -> TrainConfig:
    """Shorten a recipe's warm-up where the run is far shorter than the recipe's."""
    images: int | None = 0
    if config.schedule.warmup.unit == "%":
        return config
    if "epochs" in (config.length.unit, config.schedule.warmup.unit):
        images = count()
    return config if images is None else shorten_warmup(config, images=images)
