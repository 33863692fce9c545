"""The run folder: started once, resumed with the same settings, or cleared.

`run.json` holds the run's id and lists the files that belong to it. Nothing else is ever removed,
and a folder with a file of such a name that is not the run's is refused before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitrail.config import OBJECT, InputError, flatten, from_dict, read_file, to_dict
from vitrail.data.trained_on import load_images
from vitrail.files import settle_folder, write_whole
from vitrail.text import expand, quoted
from vitrail.training.checkpoints.checkpoint_files import clean_checkpoints
from vitrail.training.checkpoints.run_lock import LOCK
from vitrail.training.logging.metrics_logger import LOG, METRICS, SPEED
from vitrail.training.train_config import FREE, TrainConfig, free_settings
from vitrail.weights.model_folder import check_replaceable

RUN, CONFIG, RESULT = "run.json", "config.yaml", "result.json"
CHECKPOINTS, MODEL = "checkpoints", "model"
MIM_HEAD, RECONSTRUCTIONS = "mim_head.safetensors", "reconstructions.png"
MACHINE = "machine.json"
TRAINED_ON = "trained_on"
"""What the run trains on and holds out (data/trained_on.py)."""
BAD_BATCH = "bad_batch_"
RESTART_HINT = "use --restart to begin again, or another --out"

_CLEARED = (
    *(RESULT, CHECKPOINTS, MODEL, MACHINE, TRAINED_ON, "tensorboard", "report.html"),
    *(MIM_HEAD, RECONSTRUCTIONS, CONFIG),  # the settings go last: they say what the rest is of
)
_KEPT = (METRICS, SPEED, LOG, "wandb-run.txt", "mlflow-run.txt")
"""Files that a restarted run truncates or appends to."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What run.json holds."""

    version: int
    id: str
    files: tuple[str, ...]
    """The files in the folder that belong to the run."""


def read_run_record(folder: Path) -> RunRecord | None:
    """Read a folder's run.json; None if it is not a run folder."""
    path = folder / RUN
    if not path.exists():
        return None
    try:
        return from_dict(RunRecord, read_file(path))
    except InputError as error:
        raise InputError(f"{path} was not written by this vitrail ({error}); {_ANOTHER}") from None


_ANOTHER = "choose another --out"


def check_folder(config: TrainConfig, *, restart: bool = False) -> dict[str, Any] | None:
    """Refuse a folder that a run can't use; return what a finished run has reached."""
    out = config.out
    check_owned(out, restart=restart)
    if restart:
        return None
    path, result, checkpoints = (out / name for name in (CONFIG, RESULT, CHECKPOINTS))
    if checkpoints.exists() and not checkpoints.is_dir():
        raise InputError(f"{checkpoints} is a file, not a folder; {RESTART_HINT}")
    clean_checkpoints(checkpoints)
    settle_folder(out / MODEL)
    check_replaceable(out / MODEL, own=True)
    reached = _read_reached(result, checkpoints)
    if reached:  # a run that goes on writes it again
        load_images(out / TRAINED_ON)
    if reached or (checkpoints.exists() and any(checkpoints.iterdir())):
        try:
            begun = from_dict(TrainConfig, read_file(path))
        except InputError as error:
            raise InputError(f"cannot resume: {path}: {error}; {RESTART_HINT}") from None
        check_settings(to_dict(begun), to_dict(config), free_settings(config))
    return reached


def check_owned(folder: Path, *, restart: bool) -> None:
    """Refuse a folder in which a run would overwrite or remove what is not its own."""
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder; {_ANOTHER}")
    if read_run_record(folder) is not None:
        return
    there = set(os.listdir(folder)) - {LOCK, f".{RUN}.new"}
    if "states" in there and CONFIG in there:
        raise InputError(
            f"{folder} is a run folder of an older version (states/), which can't be continued; "
            + _ANOTHER
        )
    if restart and there:
        raise InputError(f"{folder} is not a run folder, so --restart removes nothing; {_ANOTHER}")
    if strangers := sorted(there & {*_CLEARED, *_KEPT, "wandb"}):
        raise InputError(
            f"{folder} holds {quoted(strangers)}, which no run of vitrail wrote; {_ANOTHER}"
        )


def write_result(folder: Path, values: Mapping[str, Any]) -> None:
    """Write what a run reached, with a checksum of all but `machine`, which differs each time."""
    sealed = {**values, "checksum": _checksum(values)}
    write_whole(folder / RESULT, json.dumps(sealed, indent=1) + "\n")


def read_result(path: Path) -> dict[str, Any]:
    """Read what a run reached; refuse what was changed since, where there is a checksum to tell."""
    found = read_file(path)
    if not {"ending", "steps"} <= found.keys():
        raise InputError(f"{path} is not the result of a run")
    digest = found.get("checksum")  # older runs have none
    if digest is not None and digest != _checksum(found):
        raise InputError(f"{path} was changed since the run wrote it (checksum)")
    return found


def _checksum(values: Mapping[str, Any]) -> str:
    told = {name: value for name, value in values.items() if name not in ("machine", "checksum")}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _read_reached(path: Path, checkpoints: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        return read_result(path)
    except InputError as error:
        kept = checkpoints.is_dir() and any(checkpoints.iterdir())
        again = "; without that file, the same command takes it from the last checkpoint"
        raise InputError(f"{error}; {RESTART_HINT}{again if kept else ''}") from None


def prepare_folder(
    config: TrainConfig, *, restart: bool, again: bool = False
) -> dict[str, Any] | None:
    """Check the folder, then write the settings; `restart` removes what the run left before.

    A finished run that continues, or whose model is written `again`, is not finished any more.
    """
    reached = check_folder(config, restart=restart)
    if restart:
        clear_run(config.out)
    continues = reached is not None and (again or reached["steps"] == config.more_from)
    if reached is None or continues:
        if restart or read_run_record(config.out) is None:
            names = (*_CLEARED, *_KEPT, "wandb", f"{BAD_BATCH}*.txt", LOCK)
            record = RunRecord(version=1, id=os.urandom(8).hex(), files=names)
            write_whole(config.out / RUN, json.dumps(to_dict(record), indent=1) + "\n")
        settings = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
        write_whole(config.out / CONFIG, settings)
    if continues:
        (config.out / RESULT).unlink()
    return reached


def clear_run(folder: Path, *, whole: bool = False) -> None:
    """Remove what a run has computed; `whole`: all of its files, and the folder if empty then.

    Only files that its run.json lists, and that this version writes, are touched.
    """
    record = read_run_record(folder)
    if record is None:
        return
    listed = set(record.files)
    for name in (*_CLEARED, *(_KEPT if whole else ())):
        if name in listed:
            _remove(folder / name)
    for path in folder.glob(f"{BAD_BATCH}*.txt"):
        path.unlink(missing_ok=True)
    if whole:
        for name in (RUN, LOCK):
            _remove(folder / name)
        if not os.listdir(folder):
            folder.rmdir()


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be removed: {error.strerror}") from None


def check_settings(old: Mapping[str, Any], new: Mapping[str, Any], free: Collection[str]) -> None:
    """Refuse to resume a run with other settings than it started with, except for `free` ones."""
    was, now = flatten(old), flatten(new)
    changes = [
        f"{key} {was.get(key)} → {now.get(key)}"
        for key in {**was, **now}
        if was.get(key) != now.get(key) and not {key, key.partition(".")[0]} & set(free)
    ]
    if changes:
        again = "give the same object again, " if OBJECT in ", ".join(changes) else ""
        raise InputError(f"cannot resume: {', '.join(changes)}; {again}{RESTART_HINT}")


def identify_run(config: TrainConfig) -> dict[str, str]:
    """Return what a checkpoint records of its run: its id, and a hash of its settings.

    Defaults are left out of the hash, so that a version with a new setting resumes old runs.
    """
    record = read_run_record(config.out)
    if record is None:
        raise InputError(f"{config.out} was deleted or emptied during its run")
    defaults = flatten(to_dict(TrainConfig(data="", model="", out=Path())))
    bound = {
        key: value
        for key, value in flatten(to_dict(config)).items()
        if value != defaults.get(key) and not {key, key.partition(".")[0]} & set(FREE)
    }
    text = json.dumps(bound, sort_keys=True).encode()
    return {"run": record.id, "settings": hashlib.sha256(text).hexdigest()}


def find_run(model: object) -> Path | None:
    """Find the run folder that a model's text is, or is inside of."""
    if not isinstance(model, str | os.PathLike):
        return None
    folder = expand(os.fspath(model).removeprefix("run:"))
    for place in (folder, folder.parent):
        if os.path.isfile(place / METRICS) and os.path.isfile(place / CONFIG):
            return place
    return None
