"""The folder of a run where nobody names one."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from vitrail.config import InputError, from_dict, read_file, to_dict
from vitrail.training.checkpoints.run_folder import CONFIG, RESULT, check_settings
from vitrail.training.train_config import TrainConfig, free_settings

_RUNS = Path("runs")


def choose_out(config: TrainConfig) -> Path:
    """Choose a run's folder, `runs/` and the name of its data, with a number if that is taken.

    A run that was begun with the same settings and has not finished is resumed.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("no folder for the run; several processes need --out, such as runs/photos")
    name = data_name(config.data)
    number = 1
    while True:
        folder = _RUNS / (name if number == 1 else f"{name}-{number}")
        if not folder.exists() or _is_begun(folder, config):
            return folder
        number += 1


def data_name(data: str) -> str:
    """Give a short name to DATA: the folder's, the file's or the dataset's."""
    text = re.sub(r",\w+=[^,]*", "", data)
    path = text if os.path.exists(text) else text.partition(":")[2] or text
    name = Path(os.path.abspath(path) if os.path.exists(path) else path).name
    stem = name.rsplit(".", 1)[0] if os.path.isfile(path) else name
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "run"


def _is_begun(folder: Path, config: TrainConfig) -> bool:
    """Tell whether a folder's run has these settings, and is not finished."""
    last = folder
    if config.folds and not config.fold:
        folder, last = (folder / f"fold-{number}" for number in (1, config.folds))
        config = replace(config, fold=1)
    if (last / RESULT).exists():
        return False
    try:
        begun = from_dict(TrainConfig, read_file(folder / CONFIG))
        config = replace(config, out=folder)
        if read_time_plan(config) is not None:
            config = replace(config, length=begun.length, model=begun.model)
            if begun.tune != config.tune:  # and so what the recipe chooses by it
                config = replace(config, tune=begun.tune, optim=begun.optim)
                config = replace(config, batch=begun.batch, augment=begun.augment)
        check_settings(to_dict(begun), to_dict(config), free_settings(config))
    except InputError:
        return False
    return True


def read_time_plan(config: TrainConfig) -> TrainConfig | None:
    """Read what the folder's run was planned to; None unless it has the same `minutes`."""
    if config.minutes is None or not (config.out / CONFIG).exists():
        return None
    begun = from_dict(TrainConfig, read_file(config.out / CONFIG))
    return begun if begun.minutes == config.minutes else None
