"""Images per second of one core, of every architecture that the catalog has weights for.

    OMP_NUM_THREADS=1 python benchmarks/zoo.py docs/zoo-speed.csv

Weights are random. Each is run as predict runs it, in float32, on batches that are in memory; the
faster of two passes counts, or the only one of a large model. Decoding is not part of it. Time
is processor time of one thread, which other programs on the machine change little. Rows that the
file has are kept, so that a run can be continued.
"""

from __future__ import annotations

import csv
import gc
import sys
import time
from pathlib import Path

import torch

from vitrail.models import build
from vitrail.models.cost.total import cost_of
from vitrail.predictor.fused import fuse
from vitrail.weights.published.catalog import CATALOG, PublishedWeights

COLUMNS: tuple[str, ...] = ("model", "pixels", "batch", "images/s")
MOST = 2e11
"""Multiply-adds per image beyond which a model is left out, as one image takes many seconds."""
WORK = 2e10
"""Multiply-adds of a batch, so that small models have large ones."""


def main(path: Path) -> None:
    """Measure what the file lacks, one row at a time."""
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    known = {(row["model"], row["pixels"]) for row in rows}
    for entry in sorted(CATALOG, key=work_of):
        name, pixels = key = architecture(entry)
        if key in known or work_of(entry) > MOST:
            continue
        known.add(key)
        batch, speed = measure(entry)
        rows.append(dict(zip(COLUMNS, (name, pixels, str(batch), f"{speed:.3g}"), strict=True)))
        print(name, pixels, f"{speed:.3g} images/s", flush=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def architecture(entry: PublishedWeights) -> tuple[str, str]:
    """Say what is measured: the model without its classes, which cost nothing, and its input."""
    return entry.model.partition(",classes=")[0], "x".join(map(str, entry.resolution))


def work_of(entry: PublishedWeights) -> int:
    """Count the multiply-adds of one image."""
    return cost_of(entry.spec).macs


@torch.inference_mode()
def measure(entry: PublishedWeights) -> tuple[int, float]:
    """Give the batch and the images per second of its fastest pass."""
    macs = work_of(entry)
    batch = max(1, min(32, int(WORK / macs)))
    with torch.device("meta"):
        model = build(entry.spec)
    model = model.to_empty(device="cpu").eval()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.uniform_(-0.02, 0.02)
    model = fuse(model)
    x = torch.randn(batch, entry.spec.channels, *entry.resolution)
    times = []
    for _ in range(1 if macs > 2 * WORK else 2):
        start = time.process_time()
        model(x)
        times.append(time.process_time() - start)
    del model
    gc.collect()
    return batch, batch / min(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
