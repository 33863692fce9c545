"""Progress on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from vitrail.training.logging.throughput import Throughput

if TYPE_CHECKING:
    from rich.console import Console

_BAR = 12
_DROPS = ("memory", "data", "epoch", "lr", "images", "loss")
"""Figures that a narrow terminal leaves out, in this order."""


@dataclass(frozen=True, kw_only=True)
class ProgressState:
    """Progress of a run; None is unknown."""

    step: int
    total: int
    epoch: float | None = None
    loss: float | None = None
    lr: float | None = None
    speed: Throughput | None = None
    memory: int | None = None
    left: float | None = None
    """Seconds to the end."""


def format_progress(figures: ProgressState, width: int | None = None) -> str:
    """Format the figures on one line, without the less important ones if it is too narrow."""
    parts = {"step": f"step {figures.step:,}/{figures.total:,}"}
    if figures.epoch is not None:
        parts["epoch"] = f"epoch {figures.epoch:.1f}"
    if figures.loss is not None:
        parts["loss"] = f"loss {figures.loss:#.4g}"
    if figures.lr is not None:
        parts["lr"] = f"lr {figures.lr:.1e}"
    if figures.speed is not None:
        images = figures.speed.images
        rate = f"{images:,.{0 if images >= 10 else 1}f}" if images >= 1 else f"{images:.2g}"
        parts["images"] = f"{rate} images/s"
        parts["data"] = f"data {100 * figures.speed.waiting:.0f} %"
    if figures.memory is not None:
        parts["memory"] = f"{figures.memory / 1e9:.1f} GB"
    if figures.left is not None:
        parts["ETA"] = f"ETA {timedelta(seconds=round(figures.left))}"
    for name in _DROPS:
        if width is None or len("  ".join(parts.values())) <= width:
            break
        parts.pop(name, None)
    return "  ".join(parts.values())


class LinePrinter:
    """A plain line now and then, for files and pipes."""

    period = 30.0
    """Seconds between lines."""
    span = 1
    """Number of periods that the speed is averaged over."""

    def show(self, figures: ProgressState) -> None:
        """Print the figures."""
        sys.stderr.write(format_progress(figures) + "\n")

    def close(self) -> None:
        """Leave stderr as it was."""


class ProgressBar:
    """A progress bar with figures; other output appears above it."""

    period = 0.5
    span = 20

    def __init__(self, total: int, step: int, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._console = console
        self._progress = Progress(
            BarColumn(bar_width=_BAR),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,  # no thread beside the run's
            redirect_stdout=sys.stdout.isatty(),  # a pipe keeps its results
        )
        self._task = self._progress.add_task("", total=total)
        self._progress.start()
        self.show(ProgressState(step=step, total=total))

    def show(self, figures: ProgressState) -> None:
        """Draw the figures."""
        text = format_progress(figures, self._console.width - _BAR - 1)
        self._progress.update(
            self._task,
            completed=figures.step,
            total=figures.total,
            description=text,
            refresh=True,
        )

    def close(self) -> None:
        """Stop the bar and leave it as it is."""
        self._progress.stop()


def open_progress(total: int, step: int) -> ProgressBar | LinePrinter:
    """Choose what stderr can show."""
    if not sys.stderr.isatty():
        return LinePrinter()
    from rich.console import Console

    console = Console(stderr=True)
    return LinePrinter() if console.is_dumb_terminal else ProgressBar(total, step, console)
