"""Loggers: TensorBoard, Weights & Biases, MLflow, Trackio, or a class of your own.

Their packages are imported when one is opened. A resumed run continues the same W&B or MLflow run,
whose id is kept in the run's folder; a restarted one gets a new one.
"""

from __future__ import annotations

import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from vitrail.config import InputError, import_callable, is_import_path, suggest

log = logging.getLogger("vitrail")


class Logger(Protocol):
    """Takes values and images; called with the run's folder and the step that it starts from."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take a step's values."""
        ...

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        """Take an image, height x width x 3 in uint8."""
        ...

    def close(self, *, failed: bool = False) -> None:
        """Flush and close; `failed` marks the run as failed where that is possible."""
        ...


class TensorBoard:
    """Event files in the folder `tensorboard` of a run.

    Unlike SummaryWriter's they are written at once: its thread loses events when it is killed, and
    prints a traceback when the disk is full.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2").Summary
        library = import_module("tensorboard.summary.writer.record_writer")
        path = folder / "tensorboard"
        try:
            with ExitStack() as stack:
                path.mkdir(exist_ok=True)
                self._file = stack.enter_context(_next_events(path).open("xb"))
                self._records = library.RecordWriter(self._file)
                self._begin(step)
                stack.pop_all()
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None

    def _begin(self, step: int) -> None:
        """Let TensorBoard drop later steps of older files, which a killed run wrote."""
        self._write(file_version="brain.Event:2")
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(step=step + 1 if step else 0, session_log=start)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's values, a scalar each."""
        scalars = [self._summary.Value(tag=tag, simple_value=x) for tag, x in values.items()]
        self._write(step=step, summary=self._summary(value=scalars))

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        """Write an image."""
        png = io.BytesIO()
        Image.fromarray(array).save(png, "png")
        height, width, channels = array.shape
        encoded = self._summary.Image(
            height=height,
            width=width,
            colorspace=channels,
            encoded_image_string=png.getvalue(),
        )
        value = self._summary.Value(tag=name, image=encoded)
        self._write(step=step, summary=self._summary(value=[value]))

    def close(self, *, failed: bool = False) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, **fields: Any) -> None:
        event = self._event.Event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()


def _next_events(folder: Path) -> Path:
    """Name a new event file so that it sorts after the others, whatever the clock says."""
    names = [re.match(r"events\.out\.tfevents\.(\d+)", path.name) for path in folder.iterdir()]
    newest = max((int(name[1]) for name in names if name), default=0)
    return folder / f"events.out.tfevents.{max(int(time.time()), newest + 1):010d}.vitrail"


class WeightsAndBiases:
    """A W&B run, configured by its own settings (WANDB_PROJECT, WANDB_MODE, …)."""

    def __init__(self, folder: Path, step: int) -> None:
        known = _read_id(folder, "wandb") if step else None
        self._wandb: Any = import_module("wandb")
        self._run: Any = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "vitrail"),
            name=folder.resolve().name,
            dir=folder,
            id=known,
            resume="allow" if known else None,
            settings=self._wandb.Settings(console="off"),  # it would tear the progress bar
        )
        self._first: int = self._run.step  # what it has is what would be sent again
        _write_id(folder, "wandb", self._run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a step's values."""
        if step >= self._first:
            self._run.log(dict(values), step=step)

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        """Send an image."""
        if step >= self._first:
            self._run.log({name: self._wandb.Image(array)}, step=step)

    def close(self, *, failed: bool = False) -> None:
        """Wait until all is sent."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """An MLflow run, configured by its own settings (MLFLOW_TRACKING_URI, …).

    What was sent after the step at which a run resumes is sent again, with the same values.
    """

    def __init__(self, folder: Path, step: int) -> None:
        known = _read_id(folder, "mlflow") if step else None
        self._mlflow: Any = import_module("mlflow")
        run = self._mlflow.start_run(run_id=known, run_name=folder.resolve().name)
        _write_id(folder, "mlflow", run.info.run_id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a step's values."""
        self._mlflow.log_metrics(dict(values), step=step)

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        """Send an image."""
        self._mlflow.log_image(array, key=name, step=step)

    def close(self, *, failed: bool = False) -> None:
        """End the run."""
        self._mlflow.end_run(status="FAILED" if failed else "FINISHED")


class Trackio:
    """A Trackio run, kept on this machine unless its settings say otherwise (TRACKIO_SPACE_ID, …).

    A run is known by its name, the run folder's; a resumed one continues under it.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._trackio: Any = import_module("trackio")
        self._run: Any = self._trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "vitrail"),
            name=folder.resolve().name,
            resume="allow" if step else "never",
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a step's values."""
        self._run.log(dict(values), step=step)

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        """Send an image."""
        self._run.log({name: self._trackio.Image(array)}, step=step)

    def close(self, *, failed: bool = False) -> None:
        """Wait until all is sent; Trackio does not tell failed runs from others."""
        self._run.finish()


LoggerFactory = Callable[[Path, int], Logger]
"""A Logger class, or a function that makes one."""

LOGGERS: dict[str, LoggerFactory] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def find_logger(name: str) -> LoggerFactory:
    """Find a logger by its name, or one of your own by its import path."""
    if name in LOGGERS:
        return LOGGERS[name]
    if is_import_path(name):
        return import_callable(name, "loggers")
    hint = suggest(name, LOGGERS) or f"; there are: {', '.join(LOGGERS)}"
    raise InputError(f"unknown logger {name!r}{hint}")


def check_loggers(names: Iterable[str]) -> None:
    """Refuse loggers that somebody asked for and whose packages are missing, all at once."""
    asked = list(names)
    for name in asked:
        find_logger(name)
    missing = [name for name in asked if name in LOGGERS and not is_installed(name)]
    if missing:
        packages = ["'vitrail[tb]'" if name == "tensorboard" else name for name in missing]
        which = f"{'logger' if len(missing) == 1 else 'loggers'} {', '.join(missing)}"
        raise InputError(f"{which}: not installed; pip install {' '.join(packages)}")


def is_installed(package: str) -> bool:
    """Tell whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def open_logger(
    name: str, folder: Path, step: int, make: LoggerFactory | None = None
) -> Logger | None:
    """Open a logger for a run that continues after `step`; `make` makes one without a path.

    TensorBoard is the default, so None is returned if its package is missing, and the log says so
    if it is broken. For the others, which somebody asked for, that is an error.
    """
    make = make or find_logger(name)
    try:
        return make(folder, step)
    except InputError:
        raise
    except Exception as error:  # no package, no key, no network: all have types of their own
        said = (str(error) or type(error).__name__).splitlines()[0]
        if name == "tensorboard":
            if not isinstance(error, ModuleNotFoundError):
                log.info("no TensorBoard events: %s", said)
            return None
        lacking = isinstance(error, ImportError) and name in LOGGERS
        mend = f"; pip install {name}" if lacking else ""
        raise InputError(f"logger {name!r} cannot be opened: {said}{mend}") from error


def _id_file(folder: Path, name: str) -> Path:
    return folder / f"{name}-run.txt"


def _read_id(folder: Path, name: str) -> str | None:
    path = _id_file(folder, name)
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def _write_id(folder: Path, name: str, identity: str) -> None:
    _id_file(folder, name).write_text(identity + "\n", encoding="utf-8")
