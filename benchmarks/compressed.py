"""A ViT's forward pass in fewer bits and with fewer tokens: how fast, and how accurate.

    python benchmarks/compressed.py                               # random weights: speed only
    python benchmarks/compressed.py --model RUN --data photos/    # a fine-tuned model, labels

timm is plain PyTorch in float32, as every peer runs it, and under autocast; the others compute the
same weights by our predictor. All keep freed memory as `vitrail predict` does. int8 is calibrated
on 64 training images, and all are judged on the test split. In a round every contestant has one
turn on the same batches; ratios are taken within a round. Counted is the processor time of one
thread, which does not mind a busy machine.
"""

from __future__ import annotations

import json as json_format
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from measure import turn_order
from peers import mend_torchvision, versions
from predict import random_weights
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vitrail.data.transforms.apply import normalize
from vitrail.deploy.backends.backends import BACKENDS, BackendContext, calibration_images
from vitrail.deploy.backends.token_merging import MergedViT
from vitrail.deploy.exporting.samples import take_samples
from vitrail.machine import keep_freed_memory
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.fused import fuse
from vitrail.predictor.int8 import measure_ranges
from vitrail.weights.conversion.convert import convert

Engine = Callable[[Tensor], Tensor]
PEER, OURS = "timm", "vitrail"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one contestant reached."""

    contestant: str
    milliseconds: float
    """Of processor time per image, at the median of the rounds."""
    against_peer: float
    """The median of the rounds' ratios of timm's time in float32 to its."""
    against_ours: float
    """The same of our time in float32."""
    top1: float | None
    agreement: float
    """Fraction of images with timm's class."""


def main(
    *,
    model: Path | None = None,
    data: str | None = None,
    name: str = "ViT-B/16",
    images: int = 16,
    batch: int = 8,
    rounds: int = 5,
    json: Path | None = None,
) -> None:
    """Compare precisions and token merging.

    Args:
        model: A run or model folder; random weights unless given.
        data: Images labeled with its classes, in a training and a test split.
        name: The model of random weights.
        images: How many a turn takes.
        batch: Images per forward pass.
        rounds: Turns that each contestant has.
        json: Write the figures here.
    """
    mend_torchvision()
    keep_freed_memory()  # for timm too
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        folder = Path(temporary)
        if model is None:
            source = random_weights(folder, name)
        else:
            convert(f"file:{_model_folder(model)}", source := folder / "theirs", "timm")
        predictor = Predictor.load(model or source, device="cpu")
        samples = take_samples(
            data, predictor.preprocess, count=512, split="test" if data else "val"
        )
        inputs = normalize(samples.inputs(), predictor.preprocess)
        engines = make_engines(predictor, source, folder, data, batch)
        judged = len(inputs) if data else batch
        logits = {each: _run(run, inputs[:judged], batch) for each, run in engines.items()}
        seconds = measure(engines, inputs[:images], batch, rounds)
    labels = None
    if data and predictor.classes and samples.labels is not None:
        known = {label: index for index, label in enumerate(predictor.classes)}
        labels = torch.tensor([known[samples.classes[label]] for label in samples.labels])
    rows = judge(seconds, logits, labels, min(images, len(inputs)))
    show(rows, judged)
    if json:
        figures = {"rows": [*map(asdict, rows)], "versions": versions(), "judged": judged}
        json.write_text(json_format.dumps(figures, indent=1) + "\n")


def _model_folder(model: Path) -> Path:
    return model / "model" if (model / "model").is_dir() else model


def make_engines(
    predictor: Predictor, timm_folder: Path, folder: Path, data: str | None, batch: int
) -> dict[str, Engine]:
    """Make what computes logits of normalized images."""
    import timm

    create: Any = timm.create_model
    config = json_format.loads((timm_folder / "config.json").read_text())
    theirs = create(
        config["architecture"],
        num_classes=predictor.model.spec.classes,
        checkpoint_path=str(timm_folder / "model.safetensors"),
    ).eval()

    def autocast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return theirs(x)

    model = predictor.model
    images = calibration_images(predictor, data)
    parts = (normalize(part, predictor.preprocess) for part in images.split(batch))
    ranges = measure_ranges(model, parts)
    context = BackendContext(predictor, folder, data)
    one = BatchingConfig(batch_size=batch, workers=1, threads=1)
    openvino = BACKENDS["openvino"].make(context, one)
    halved = BACKENDS["openvino"].make(replace(context, precision="bfloat16"), one)
    assert openvino is not None
    assert halved is not None
    return {
        PEER: theirs,
        "timm, autocast bfloat16": autocast,
        OURS: fuse(model),
        "openvino": openvino,
        "openvino, bfloat16": halved,
        "bfloat16": fuse(model, precision="bfloat16"),
        "int8": fuse(model, precision="int8", ranges=ranges),
        "merged": MergedViT(fuse(model, prune=False), 0.08),
        "merged 0.04": MergedViT(fuse(model, prune=False), 0.04),
        "bfloat16, merged": MergedViT(fuse(model, prune=False, precision="bfloat16"), 0.08),
        "int8, merged": MergedViT(fuse(model, prune=False, precision="int8", ranges=ranges), 0.08),
    }


def _run(run: Engine, inputs: Tensor, batch: int) -> Tensor:
    return torch.cat([run(part).float() for part in inputs.split(batch)])


def measure(engines: dict[str, Engine], inputs: Tensor, batch: int, rounds: int) -> np.ndarray:
    """Time the contestants in turns: processor seconds (rounds, contestants)."""
    seconds = np.zeros((rounds, len(engines)))
    runs = list(engines.values())
    for turn in range(rounds):
        for place in turn_order(len(runs), turn):
            start = time.process_time()
            _run(runs[place], inputs, batch)
            seconds[turn, place] = time.process_time() - start
    return seconds


def judge(
    seconds: np.ndarray, logits: dict[str, Tensor], labels: Tensor | None, images: int
) -> list[Row]:
    """Give each contestant's speed, and its accuracy where there are labels."""
    names = list(logits)
    peer, ours = (seconds[:, names.index(name), None] / seconds for name in (PEER, OURS))
    return [
        Row(
            contestant=name,
            milliseconds=float(1000 * np.median(seconds[:, place]) / images),
            against_peer=float(np.median(peer[:, place])),
            against_ours=float(np.median(ours[:, place])),
            top1=None if labels is None else _share(logits[name].argmax(1) == labels),
            agreement=_share(logits[name].argmax(1) == logits[PEER].argmax(1)),
        )
        for place, name in enumerate(names)
    ]


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def show(rows: list[Row], judged: int) -> None:
    """Print the figures as a table."""
    columns = ("", "ms / image", "times timm's speed", "times ours in float32", "top-1", "as timm")
    table = Table(*columns, title=f"top-1 of {judged} images")
    for row in rows:
        table.add_row(
            row.contestant, f"{row.milliseconds:.2f}", f"{row.against_peer:.2f}",
            f"{row.against_ours:.2f}", "" if row.top1 is None else f"{row.top1:.2%}",
            f"{row.agreement:.2%}",
        )  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    tyro.cli(main)
