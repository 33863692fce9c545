"""Mean attention distance with ViT-B/16 at 224 pixels: time and memory over the plain forward pass.

    python benchmarks/inspection.py                  # 32 images; memory with 128
    python benchmarks/inspection.py --images 128

Beside it transformers, which shows attention with its eager kernel only, and keeps every layer's
maps of a call: measured at once, and with the maps of all images kept, as its users do. Times
are processor time, taken in turns, ratios within a round; the peak of memory is a fresh process's,
over the model at rest.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import tyro
from measure import resident
from peers import build_contestant, mend_torchvision
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vitrail.inspection.distance import attention_distance, grid_distances
from vitrail.models import parse
from vitrail.models.spec import ViTSpec

MODEL = "ViT-B/16,activation=gelu"
PLAIN = "vitrail, forward alone"
KEPT = "transformers, eager, maps kept"

Step = Callable[[Iterator[Tensor]], Any]


def prepare(contestant: str) -> Step:
    """Build a contestant, and give what is measured: a call over batches of images."""
    torch.manual_seed(0)
    spec = parse(MODEL)
    assert isinstance(spec, ViTSpec)
    if contestant.startswith("vitrail"):
        model = build_contestant("vitrail", spec).eval()
        if contestant == PLAIN:
            return lambda batches: [model(batch) for batch in batches]
        return lambda batches: attention_distance(model, batches)
    mend_torchvision()
    peer: Any = build_contestant("transformers", spec).eval().get_submodule("model")
    if contestant == "transformers, forward alone":
        return lambda batches: [peer(batch).logits for batch in batches]
    peer.set_attn_implementation("eager")
    table = grid_distances(spec.grid, (16, 16)).float()

    def distance(maps: tuple[Tensor, ...]) -> Tensor:
        patches = torch.stack([weights[..., 1:, 1:] for weights in maps], dim=1)
        patches = patches / patches.sum(-1, keepdim=True)
        return (patches * table).sum(-1).mean(-1)

    def measure(batches: Iterator[Tensor]) -> Tensor:
        maps = (peer(batch, output_attentions=True).attentions for batch in batches)
        every = list(maps) if contestant == KEPT else maps
        return torch.cat([distance(each) for each in every]).mean(0)

    return measure


CONTESTANTS = (
    PLAIN,
    "vitrail, attention distance",
    "transformers, forward alone",
    "transformers, eager, by batch",
    KEPT,
)


def make_batches(images: int, batch: int) -> Iterator[Tensor]:
    """Draw images, a batch at a time."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(images // batch):
        yield torch.randn(batch, 3, 224, 224, generator=generator)


@torch.no_grad()
def measure_peak(contestant: str, images: int, batch: int, threads: int) -> int:
    """Give the bytes that a process with a model, which has run once, grows by at most."""
    torch.set_num_threads(threads)
    step = prepare(contestant)
    for each in make_batches(1, 1):  # what the libraries allocate once
        step(iter([each]))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # let the peak start here
    step(make_batches(images, batch))
    peak = resident("VmHWM")
    assert before is not None
    assert peak is not None
    return peak - before


@torch.no_grad()
def measure_times(images: int, batch: int, timed: tuple[str, ...]) -> dict[str, list[float]]:
    """Time contestants in turns, a batch a turn; the first round warms up and is left out."""
    steps = {contestant: prepare(contestant) for contestant in timed}
    seconds: dict[str, list[float]] = {contestant: [] for contestant in timed}
    for each in (*make_batches(batch, batch), *make_batches(images, batch)):
        for contestant, step in steps.items():
            start = time.process_time()
            step(iter([each]))
            seconds[contestant].append(time.process_time() - start)
    return {contestant: times[1:] for contestant, times in seconds.items()}


def main(
    *,
    images: int = 32,
    memory_images: int = 128,
    batch: int = 8,
    threads: int = 1,
    peers: bool = True,
) -> None:
    """Measure, and print a table.

    Args:
        images: Images that the times are of; 0 leaves them out.
        memory_images: Images that the peak of memory is of; 0 leaves it out.
        batch: Images a call.
        threads: Threads that torch may use.
        peers: Measure transformers too.
    """
    torch.set_num_threads(threads)
    names = CONTESTANTS if peers else CONTESTANTS[:2]
    timed = tuple(name for name in names if name != KEPT) if images else ()
    seconds = measure_times(images, batch, timed)
    peaks: dict[str, int] = {}
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        for name in names if memory_images else ():
            job = pool.submit(measure_peak, name, memory_images, batch, threads)
            peaks[name] = job.result()
    table = Table("contestant", "ms an image", "time / ours alone", "(quartiles)", "peak MB")
    for name in names:
        cells = ("", "", "")
        if name in seconds:
            pairs = zip(seconds[name], seconds[PLAIN], strict=True)
            low, middle, high = statistics.quantiles((own / plain for own, plain in pairs), n=4)
            each = 1e3 * statistics.median(seconds[name]) / batch
            cells = (f"{each:.0f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
        table.add_row(name, *cells, f"{peaks[name] / 1e6:,.0f}" if name in peaks else "")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
