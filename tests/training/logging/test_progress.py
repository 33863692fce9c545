"""What a person watching a run sees, and the speed it is computed from."""

import io
import sys

import pytest
import torch
from rich.console import Console

from tests.training.logging.outputs import Terminal, left_on
from vitrail.training.logging.progress import (
    LinePrinter,
    ProgressBar,
    ProgressState,
    format_progress,
    open_progress,
)
from vitrail.training.logging.throughput import (
    Throughput,
    ThroughputMeter,
    ThroughputWindow,
    peak_memory,
)

FIGURES = ProgressState(
    step=120,
    total=2000,
    epoch=3.21,
    loss=1.2341,
    lr=3e-4,
    speed=Throughput(812.4, 0.012),
    memory=1_940_000_000,
    left=753.2,
)
LINE = (
    "step 120/2,000  epoch 3.2  loss 1.234  lr 3.0e-04  812 images/s  data 1 %  1.9 GB  ETA 0:12:33"
)


def test_a_line_tells_all() -> None:
    assert format_progress(FIGURES) == LINE
    assert format_progress(ProgressState(step=1, total=20_000)) == "step 1/20,000"


@pytest.mark.parametrize(
    ("images", "shown"),
    [
        (0.0, "0"),
        (0.04, "0.04"),
        (0.8, "0.8"),
        (3.44, "3.4"),
        (9.94, "9.9"),
        (10.4, "10"),
        (12345.6, "12,346"),
    ],
)
def test_slow_runs_have_digits_too(images: float, shown: str) -> None:
    figures = ProgressState(step=1, total=2, speed=Throughput(images, 1.0), loss=float("nan"))
    assert format_progress(figures) == f"step 1/2  loss nan  {shown} images/s  data 100 %"


def test_a_narrow_line_leaves_out_what_matters_least() -> None:
    shown = [format_progress(FIGURES, width) for width in range(len(LINE) + 1, 0, -1)]
    assert list(dict.fromkeys(shown)) == [
        LINE,
        LINE.replace("  1.9 GB", ""),
        "step 120/2,000  epoch 3.2  loss 1.234  lr 3.0e-04  812 images/s  ETA 0:12:33",
        "step 120/2,000  loss 1.234  lr 3.0e-04  812 images/s  ETA 0:12:33",
        "step 120/2,000  loss 1.234  812 images/s  ETA 0:12:33",
        "step 120/2,000  loss 1.234  ETA 0:12:33",
        "step 120/2,000  ETA 0:12:33",
    ]
    fitting = zip(shown, range(len(LINE) + 1, 0, -1), strict=True)
    assert all(len(text) <= width for text, width in fitting if text != shown[-1])


@pytest.mark.parametrize(("width", "figures"), [(70, format_progress(FIGURES, 57)), (130, LINE)])
def test_a_bar_shows_the_figures(width: int, figures: str) -> None:
    screen = io.StringIO()
    bar = ProgressBar(2000, 1000, Console(file=screen, force_terminal=True, width=width))
    assert left_on(screen) == ["━━━━━━╺━━━━━ step 1,000/2,000"]
    bar.show(FIGURES)
    assert left_on(screen) == [f"╸━━━━━━━━━━━ {figures}"]
    bar.close()
    assert left_on(screen) == [f"╸━━━━━━━━━━━ {figures}", "\x1b[?25h"]  # the cursor is back


def test_what_others_print_stands_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdout", pipe)
    monkeypatch.setenv("TERM", "xterm")
    bar = open_progress(2000, 0)
    assert isinstance(bar, ProgressBar)
    print("a [bold]warning[/bold]", file=sys.stderr)  # noqa: T201
    print("a result")  # noqa: T201
    bar.close()
    assert sys.stderr is screen
    above, last, _ = left_on(screen)
    assert above == "a [bold]warning[/bold]"
    assert last.endswith("━━━ step 0/2,000")
    assert pipe.getvalue() == "a result\n"


def test_elsewhere_are_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticker = open_progress(2000, 0)
    assert isinstance(ticker, LinePrinter)
    ticker.show(FIGURES)
    ticker.close()
    assert capsys.readouterr() == ("", LINE + "\n")
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_progress(2000, 0), LinePrinter)


def test_speed_is_counted_between_readings() -> None:
    pace = ThroughputMeter()
    gauge, wide = ThroughputWindow(pace), ThroughputWindow(pace, span=2)
    pace.skip(5.0)
    pace.step(10.0, 32, 9.0)  # the first step also sets up, and counts for nothing
    assert gauge.read() is None
    pace.step(12.0, 32, 0.5)
    pace.step(14.0, 32, 0.5)
    assert gauge.read() == Throughput(16.0, 0.25)
    assert wide.read() == Throughput(16.0, 0.25)
    pace.skip(100.0)  # an evaluation
    pace.step(101.0, 64, 0.0)
    assert gauge.read() == Throughput(64.0, 0.0)
    assert wide.read() == Throughput(128 / 5, 1 / 5)
    pace.step(102.0, 64, 3.0)  # more than there was: clocks differ
    assert gauge.read() == Throughput(64.0, 1.0)
    assert wide.read() == Throughput(64.0, 1.0)  # since the reading before the last
    assert gauge.read() is None


def test_memory_is_the_peak_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    held = torch.ones(50_000_000)
    peak = peak_memory()
    assert peak is not None
    assert held.nbytes < peak < 1e11
    del held
    assert peak_memory() == peak
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() is None
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.max_memory_reserved", lambda: 7)
    assert peak_memory() == 7
