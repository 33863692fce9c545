"""Where a run's logs go in tests: terminals, files with a limit, event files."""

import io
import math
import re
import resource
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.training.logging.metrics_logger import MetricsLogger


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size: what a full disk does, half lines too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Gone(io.StringIO):
    """A stderr whose terminal has gone."""

    def write(self, text: str, /) -> int:
        raise OSError(5, "Input/output error")


IMAGE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


def read_events(folder: Path) -> Any:
    library = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return library.EventAccumulator(str(folder / "tensorboard")).Reload()


def single(value: float) -> float:
    """Round to the float32 that events hold."""
    return struct.unpack("f", struct.pack("f", value))[0]


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def left_on(screen: io.StringIO) -> list[str]:
    """Read the lines that stay on a terminal, without colors; the last is the cursor's."""
    lines = [line.rpartition("\x1b[2K")[2] for line in screen.getvalue().split("\n")]
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip("\r ") for line in lines]


TOTAL = 23


def tell(journal: MetricsLogger, steps: Sequence[int]) -> None:
    """Tell steps as a loop does: what they say is a function of the step alone."""
    for step in steps:
        loss = torch.tensor(1.0) / step if step != 10 else torch.tensor(math.nan)
        values = {"epoch": step / 7, "train/loss": loss, "lr": 1e-3 / (1 + step)}
        journal.train(step, values, images=32, waited=0.0)
        if step % 7 == 0:
            journal.evaluation(step, {"val/top1": torch.tensor(step / 30), "val/images": 10_000})
