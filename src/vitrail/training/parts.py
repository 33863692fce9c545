"""Parts of your own in a run: objects, or the import paths by which a resumed run finds them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import (
    OBJECT,
    InputError,
    check_callable,
    import_callable,
    is_import_path,
    path_of,
)
from vitrail.data.datasets.open import Data
from vitrail.models.model import Model
from vitrail.training.callbacks import Callback
from vitrail.training.checkpoints.state_dicts import flatten_state_dict
from vitrail.training.logging.loggers import LoggerFactory, find_logger
from vitrail.training.logging.metrics_logger import ACCURACIES
from vitrail.training.task import Metric, Task, TaskFactory
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.loaded import AnyModel, as_checkpoint

log = logging.getLogger("vitrail")

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""An augmentation: an image (height, width, channels) in uint8, and the generator to draw from."""
Schedule = Callable[[int, int], float]
"""A factor of the learning rate, from the step (counted from 0) and the number of steps."""
OptimizerFactory = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""An optimizer, from parameter groups; torch's own classes are such functions."""
ModelChange = Callable[[Any], Model]
"""What puts parts of your own into a model: takes the model that was built, returns it changed."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run has that its settings only name."""

    data: Data | None = None
    task: TaskFactory | None = None
    model: ModelChange | None = None
    optimizer: OptimizerFactory | None = None
    schedule: Schedule | None = None
    transform: Transform | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    loggers: Mapping[str, LoggerFactory] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    """The weights to start from, where they were read already."""

    def need_labels(self, config: TrainConfig) -> bool:
        """Tell whether the run learns from labels."""
        if self.task is None:
            return config.task in ("classification", "regression")
        return getattr(self.task, "needs_labels", True)

    @property
    def draw(self) -> bool:
        """Whether any of them may draw from the process's random generators."""
        single = (self.task, self.model, self.optimizer, self.schedule)
        return any(each is not None for each in single) or bool(self.metrics or self.callbacks)

    def has_objects(self, config: TrainConfig) -> bool:
        """Tell whether any of them has no import path, so that no other process can find it."""
        own = config.parts
        named = (own.task, own.model, own.optimizer, own.schedule, own.transform)
        every = (*named, *own.metrics, *own.callbacks, *config.loggers)
        return any(path is not None and OBJECT in path for path in every)

    def notes(self, config: TrainConfig) -> list[str]:
        """Say which settings parts of your own take the place of."""
        own, found = config.parts, list[str]()
        if self.optimizer is not None:
            used = "of optim.*, it gets lr, weight_decay, layer_decay and clip"
            found.append(f"the optimizer is {own.optimizer}: {used}")
        if self.schedule is not None:
            found.append(f"the schedule is {own.schedule}, in the place of schedule.*")
        return found


class OwnState:
    """What a run's task and callbacks keep between steps, for its checkpoints."""

    def __init__(self, task: Task, callbacks: Sequence[Callback]) -> None:
        """Refuse parts that can save what they keep but not load it, or what can't be saved."""
        self._parts: dict[str, Task | Callback] = {"task": task}
        self._parts |= {f"callback {number}": each for number, each in enumerate(callbacks, 1)}
        self._warned: set[str] = set()
        for part in self._parts.values():
            if _saves(part) != _loads(part):
                there, gone = ("", "load_") if _saves(part) else ("load_", "")
                raise InputError(
                    f"{type(part).__name__} has {there}state_dict but not {gone}state_dict; "
                    "give both"
                )
        self.save()

    def save(self) -> tuple[dict[str, Tensor], Any]:
        """Gather the states of those that have one, as tensors and plain data, None without any."""
        states = {name: part.state_dict() for name, part in self._parts.items() if _saves(part)}
        try:
            return flatten_state_dict(states) if states else ({}, None)
        except TypeError as error:
            raise InputError(f"state_dict: {error}; return tensors, numbers and text") from None

    def load(self, states: Mapping[str, Any]) -> None:
        """Hand the states back; a checkpoint of before a part had one lacks it."""
        for name, part in self._parts.items():
            if not _saves(part):
                continue
            if name in states:
                part.load_state_dict(states[name])
            else:
                log.warning("the checkpoint holds no state of %s", type(part).__name__)

    def warn(self, model: nn.Module) -> None:
        """Warn once of each part that keeps tensors without a state; the model's are saved."""
        saved = {id(each) for each in (*model.parameters(), *model.buffers())}
        for name, part in self._parts.items():
            found = [
                attribute
                for attribute, value in vars(part).items()
                if attribute not in part.constants and _holds_tensors(value, saved)
            ]
            if found and not _saves(part) and name not in self._warned:
                self._warned.add(name)
                log.warning(
                    "%s keeps tensors (%s) that no checkpoint holds, so a resumed run differs if "
                    "they change: give it state_dict and load_state_dict",
                    *(type(part).__name__, ", ".join(found)),
                )


def _saves(part: Task | Callback) -> bool:
    return type(part).state_dict not in (Task.state_dict, Callback.state_dict)


def _loads(part: Task | Callback) -> bool:
    return type(part).load_state_dict not in (Task.load_state_dict, Callback.load_state_dict)


def _holds_tensors(value: Any, saved: Collection[int]) -> bool:
    """Tell whether tensors are in a value, other than those that are saved anyway."""
    if isinstance(value, Tensor):
        return id(value) not in saved
    if isinstance(value, nn.Module):
        return any(id(each) not in saved for each in (*value.parameters(), *value.buffers()))
    if isinstance(value, Mapping):
        return any(_holds_tensors(each, saved) for each in value.values())
    return isinstance(value, list | tuple | deque) and any(
        _holds_tensors(each, saved) for each in value
    )


def split_task(task: str | TaskFactory | None) -> tuple[str | None, str | TaskFactory | None]:
    """Tell the name of a task of ours from a task of your own, by object or import path."""
    ours = isinstance(task, str) and not is_import_path(task)
    return (task, None) if ours else (None, task)  # type: ignore[return-value]


def split_model(model: Any) -> tuple[str | None, Any]:
    """Tell a model's name from an object or the import path of a function that changes models."""
    named = isinstance(model, str) and (":" not in model or "/" in model)
    return (model, None) if named else (None, model)


def split_weights(weights: AnyModel | None) -> tuple[str | None, Checkpoint | None]:
    """Return what the settings note of weights, and a copy of those that are loaded already."""
    if weights is None or isinstance(weights, str | PathLike):
        return (None if weights is None else fspath(weights)), None
    checkpoint = as_checkpoint(deepcopy(weights))  # which stays as it is
    return f"{OBJECT}{checkpoint.spec.name}", checkpoint


def gather_parts(
    config: TrainConfig,
    *,
    data: Data | None = None,
    checkpoint: Checkpoint | None = None,
    metrics: Mapping[str, str | Metric] | Sequence[str | Metric] = (),
    callbacks: Sequence[str | Callback | type[Callback]] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    **given: Any,
) -> tuple[TrainConfig, Parts]:
    """Note given parts in the settings by their import paths, and import those only noted there.

    `given` are task, model, optimizer, schedule and transform, as objects or import paths.
    """
    own = config.parts
    noted = {
        "task": own.task,
        "model": own.model,
        "optimizer": own.optimizer,
        "schedule": own.schedule,
        "transform": own.transform,
    }
    found: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for name, path in noted.items():
        part = given.get(name)
        if (part := path if part is None else part) is not None:
            found[name], paths[name] = _find(part, name)
    if config.weights is not None and config.weights.startswith(OBJECT) and checkpoint is None:
        import_callable(config.weights, "model")
    measured, paths["metrics"] = _find_metrics(metrics or own.metrics)
    called = [_find(each, "callbacks") for each in callbacks or own.callbacks]
    paths["callbacks"] = tuple(path for _, path in called)
    opened = dict(_find_logger(each) for each in loggers or config.loggers)
    parts = Parts(
        data=None if isinstance(data, str | PathLike) else data,
        checkpoint=checkpoint,
        metrics=measured,
        callbacks=tuple(_make_callback(each) for each, _ in called),
        loggers=opened,
        **found,
    )
    return replace(config, parts=replace(own, **paths), loggers=tuple(opened)), parts


def _find(part: Any, what: str) -> tuple[Any, str]:
    """Return a part and what the settings note of it."""
    if not isinstance(part, str):
        return check_callable(part, what) if what != "callbacks" else part, path_of(part)
    found = import_callable(part, what)
    path = path_of(found)  # one path for one object, however it was written
    return found, part if path.startswith(OBJECT) else path


def _find_metrics(
    given: Mapping[str, str | Metric] | Sequence[str | Metric],
) -> tuple[dict[str, Metric], tuple[str, ...]]:
    """Return metrics by name; the settings note `name=path` where the path has another name."""
    pairs = given.items() if isinstance(given, Mapping) else [("", each) for each in given]
    measured: dict[str, Metric] = {}
    noted: list[str] = []
    for said, each in pairs:
        name = said
        if isinstance(each, str) and "=" in each:
            name, _, each = each.partition("=")
        metric, path = _find(each, "metrics")
        last = path.replace(":", ".").rpartition(".")[2]
        name = name or last
        if name in measured or f"val/{name}" in (*ACCURACIES, "val/loss"):
            raise InputError(f"metrics: {name!r} is another metric's name; give them as a dict")
        measured[name] = metric
        noted.append(path if name == last else f"{name}={path}")
    return measured, tuple(noted)


def _find_logger(logger: str | LoggerFactory) -> tuple[str, LoggerFactory]:
    if isinstance(logger, str) and not is_import_path(logger):
        return logger, find_logger(logger)
    found, path = _find(logger, "loggers")
    return path, found


def _make_callback(callback: Any) -> Callback:
    try:
        made = callback() if isinstance(callback, type) else callback
    except TypeError as error:
        raise InputError(f"callbacks: {error}; give an instance") from None
    if not isinstance(made, Callback):
        kind = type(made).__name__
        raise InputError(f"callbacks: expected subclasses of vitrail.Callback, got {kind}")
    return made
