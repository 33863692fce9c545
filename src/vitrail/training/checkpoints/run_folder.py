"""The folder of a run: begun once, gone on with under the same settings, or cleared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vitrail.config import InputError, from_dict, read_file, to_dict
from vitrail.files import write_whole
from vitrail.training.checkpoints.checkpoint_files import clean_checkpoints
from vitrail.training.train_config import TrainConfig, free_settings

CHECKPOINTS, MODEL, CONFIG, RESULT = "checkpoints", "model", "config.yaml", "result.json"
MIM_HEAD, RECONSTRUCTIONS = "mim_head.safetensors", "reconstructions.png"
BAD_BATCH = "bad_batch_"
RESTART_HINT = "use --restart to begin again, or another --out"


def check_folder(config: TrainConfig) -> dict[str, Any] | None:
    """Hold a begun run's settings against these; give what a finished run has reached."""
    path, result, states = (config.out / name for name in (CONFIG, RESULT, CHECKPOINTS))
    clean_checkpoints(states)
    reached = json.loads(result.read_text()) if result.exists() else None
    if reached or (states.exists() and any(states.iterdir())):
        begun = from_dict(TrainConfig, read_file(path))
        check_settings(to_dict(begun), to_dict(config), free_settings(config))
    return reached


def prepare_folder(config: TrainConfig, *, restart: bool) -> dict[str, Any] | None:
    """Do as `check_folder`, and write the settings down; `restart` forgets all that was."""
    if restart:
        _clear(config.out)
    reached = check_folder(config)
    if reached is None:
        settings = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
        write_whole(config.out / CONFIG, settings)
    return reached


def _clear(folder: Path) -> None:
    """Remove what an old run left; its states before its settings, which say what they are of."""
    (folder / RESULT).unlink(missing_ok=True)
    for name in (CHECKPOINTS, MODEL, "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in (
        *folder.glob(f"{BAD_BATCH}*"),
        folder / MIM_HEAD,
        folder / RECONSTRUCTIONS,
        folder / CONFIG,
    ):
        path.unlink(missing_ok=True)


def check_settings(old: Mapping[str, Any], new: Mapping[str, Any], free: Collection[str]) -> None:
    """Refuse to go on with settings that a run was not begun with, but for those that are free."""
    was, now = (dict(_flatten(settings)) for settings in (old, new))
    changes = [
        f"{key} {was.get(key)} → {now.get(key)}"
        for key in {**was, **now}
        if was.get(key) != now.get(key) and not {key, key.partition(".")[0]} & set(free)
    ]
    if changes:
        raise InputError(f"cannot resume: {', '.join(changes)}; {RESTART_HINT}")


def _flatten(settings: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value
