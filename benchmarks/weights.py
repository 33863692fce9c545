"""Loading a ViT-B/16 file beside timm and transformers: time and peak memory.

    python benchmarks/weights.py

Each loads the same weights from a safetensors file in its own project's names, then reads every
weight once, since a mapped file is not loaded before. Times are taken in turns in one process, and
ratios within a round; memory is what a fresh process grows by.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch
from measure import resident
from peers import mend_torchvision
from rich.console import Console
from rich.table import Table
from torch import nn

import vitrail
from vitrail.models import build
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.conversion.convert import convert
from vitrail.weights.model_folder import save_folder

ROUNDS = 8
OURS = "vitrail, timm's file"


def prepare(folder: Path) -> None:
    """Write one random ViT-B/16 as our folder, as timm's and as Hugging Face's."""
    torch.manual_seed(0)
    model = build("ViT-B/16,activation=gelu,position_resize=timm")
    torch.nn.init.normal_(model.get_parameter("head.output.weight"), std=0.02)
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    save_folder(Checkpoint(spec=model.spec, tensors=tensors), folder / "vitrail")
    for to in ("timm", "hf"):
        convert(str(folder / "vitrail"), folder / to, to)


def load_ours(folder: Path) -> nn.Module:
    """Load our own folder: its checksum is verified."""
    return vitrail.load(str(folder / "vitrail")).model


def load_timms_file(folder: Path) -> nn.Module:
    """Load timm's folder with vitrail: it is hashed, and each number checked."""
    return vitrail.load(str(folder / "timm")).model


def load_timm(folder: Path) -> nn.Module:
    """Load timm's folder with timm."""
    mend_torchvision()
    import timm

    path = str(folder / "timm" / "model.safetensors")
    return timm.create_model("vit_base_patch16_224", checkpoint_path=path).eval()


def load_transformers(folder: Path) -> nn.Module:
    """Load Hugging Face's folder with transformers."""
    mend_torchvision()
    import transformers

    return transformers.ViTForImageClassification.from_pretrained(folder / "hf").eval()


def use(model: nn.Module) -> None:
    """Read every weight once."""
    for parameter in model.parameters():
        parameter.detach().sum()


CONTESTANTS: dict[str, Callable[[Path], nn.Module]] = {
    OURS: load_timms_file,
    "vitrail, its own folder": load_ours,
    "timm": load_timm,
    "transformers": load_transformers,
}


def measure_peak(contestant: str, folder: Path, small: Path) -> int:
    """Give the bytes that a process grows by while it loads, imports left out."""
    with suppress(Exception):  # a folder that is not there, so that only the imports happen
        CONTESTANTS[contestant](small)
    torch.randn(1000, 1000).sum()  # the threads' own memory
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # let the peak start here
    use(CONTESTANTS[contestant](folder))
    peak = resident("VmHWM")
    assert before is not None
    assert peak is not None
    return peak - before


def measure_times(folder: Path) -> dict[str, list[float]]:
    """Time each contestant in turns; the first round warms up and is left out."""
    seconds: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    for _ in range(ROUNDS + 1):
        for contestant, load in CONTESTANTS.items():
            gc.collect()
            start = time.perf_counter()
            use(load(folder))
            seconds[contestant].append(time.perf_counter() - start)
    return {contestant: times[1:] for contestant, times in seconds.items()}


def main() -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        size = (folder / "timm" / "model.safetensors").stat().st_size
        seconds = measure_times(folder)
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
            jobs = {c: pool.submit(measure_peak, c, folder, folder / "none") for c in CONTESTANTS}
            peaks = {contestant: job.result() for contestant, job in jobs.items()}
    table = Table("contestant", "median ms", "time / ours", "peak MiB", "peak / file")
    for contestant, times in seconds.items():
        ratios = [mine / ours for mine, ours in zip(times, seconds[OURS], strict=True)]
        table.add_row(
            contestant,
            f"{1e3 * statistics.median(times):.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{peaks[contestant] / 2**20:.0f}",
            f"{peaks[contestant] / size:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
