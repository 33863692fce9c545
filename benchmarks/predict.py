"""A folder of JPEGs to predictions, end to end: vitrail's predictor and timm's inference script.

    python benchmarks/predict.py                                   # painted JPEGs, random weights
    python benchmarks/predict.py --weights DIR --photos DIR        # real ones

Both read, decode, resize, normalize, run the same ViT-Ti/16 and rank five classes. timm's side is
what its inference.py does: create_dataset, create_loader (2 worker processes, batches of 256, its
defaults) and the model; `timm, batch 8` is the same with our micro-batch. In a round every
contestant has one turn; ratios are taken within a round. Processor time, of all processes, does
not mind a busy machine; images a second do. Predictions must be the same in float32: every top-1
equal, logits within 1e-4.
"""

from __future__ import annotations

import json as json_format
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from data import make_files
from measure import turn_order
from peers import mend_torchvision, versions
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vitrail.data.image_inputs import find_images
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.deploy.backends.selection import select_backend, select_precision
from vitrail.machine import keep_freed_memory
from vitrail.models import build, parse
from vitrail.predictor import Predictor
from vitrail.predictor.fused import InferencePrecision
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.conversion.convert import convert
from vitrail.weights.model_folder import save_folder

OURS = "vitrail"
TOP = 5
Step = Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one contestant reached."""

    contestant: str
    speed: float
    """Images in a second of the clock, at the median of the rounds."""
    processor: float
    """Milliseconds of processor time for an image, at the median."""
    wall_ratio: float
    """The median of the rounds' ratios of its time to ours: above 1, ours is faster."""
    processor_ratio: float
    """The same of processor time."""


def main(
    *,
    weights: Path | None = None,
    photos: Path | None = None,
    images: int = 512,
    rounds: int = 5,
    threads: int | None = None,
    backend: str = "pytorch",
    precision: InferencePrecision = "float32",
    data: str | None = None,
    json: Path | None = None,
) -> None:
    """Compare how fast vitrail and timm predict a folder of JPEGs.

    Args:
        weights: A folder with timm's ViT-Ti/16 (model.safetensors and config.json); random
            weights unless given.
        photos: A folder of JPEGs; painted ones of 500 x 375 unless given.
        images: How many of them a turn takes.
        rounds: Turns that each contestant has.
        threads: Threads of both sides' models; one per core unless given. On a busy machine take
            one: torch's threads spin while they wait for each other, which costs timm's side.
        backend: What computes at ours, as `vitrail predict --backend` says.
        precision: The precision of ours, as `vitrail predict --precision` says.
        data: What calibrates int8.
        json: Write the figures here.
    """
    mend_torchvision()
    keep_freed_memory()  # as `vitrail predict` does, for timm too
    if threads:
        torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = weights or random_weights(folder)
        place = _link(photos, folder / "images", images)
        steps = prepare(model, place, threads, backend, precision, data)
        logits = {name: step() for name, step in steps.items()}  # warm, and compared
        same = {name: _compare(logits[OURS], other) for name, other in logits.items()}
        timings = measure(steps, len(logits[OURS]), rounds)
    show(timings, same)
    if json:
        figures = {"timings": [*map(asdict, timings)], "same": same, "versions": versions()}
        json.write_text(json_format.dumps({**figures, "cores": os.cpu_count()}, indent=1) + "\n")


def random_weights(folder: Path, name: str = "ViT-Ti/16") -> Path:
    """Write a model of random weights as timm does."""
    model = build(parse(f"{name},activation=gelu,position_resize=timm"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    half = (0.5,) * 3
    preprocess = Preprocess(
        size=(224, 224), mean=half, std=half, interpolation="bicubic", fit="crop", crop=0.9
    )
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    bundle = Checkpoint(spec=model.spec, tensors=tensors, preprocess=preprocess)
    save_folder(bundle, folder / "ours")
    convert(f"file:{folder / 'ours'}", folder / "theirs", "timm")
    return folder / "theirs"


def _link(photos: Path | None, folder: Path, count: int) -> Path:
    """Put JPEGs into one folder; fewer than asked for are taken more than once."""
    folder.mkdir()
    if photos is None:
        contents = make_files(375, 500)
        for number in range(count):
            (folder / f"{number:05}.jpg").write_bytes(contents[number % len(contents)])
        return folder
    files = sorted(p for p in photos.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    assert files, f"no JPEGs in {photos}"
    for number in range(count):
        (folder / f"{number:05}.jpg").symlink_to(files[number % len(files)].resolve())
    return folder


def prepare(
    weights: Path,
    folder: Path,
    threads: int | None,
    backend: str,
    precision: InferencePrecision,
    data: str | None,
) -> dict[str, Step]:
    """Build the contestants; a turn gives the logits of all images."""
    predictor = Predictor.load(weights)
    if threads:
        predictor.batching = replace(predictor.batching, workers=threads, threads=1)
    predictor = select_precision(select_backend(predictor, backend), precision, data)
    files = find_images([folder])

    def ours() -> Tensor:
        outputs = []
        for output in predictor.outputs(files):
            assert output.values is not None
            predictor.rank(output.values[None], top=TOP)
            outputs.append(output.values)
        return torch.stack(outputs)

    return {
        OURS: ours,
        "timm": _timm(weights, folder, 256),
        "timm, batch 8": _timm(weights, folder, 8),
    }


def _timm(weights: Path, folder: Path, batch: int) -> Step:
    """Do what timm's inference.py does on a processor."""
    import timm
    import timm.data

    create: Any = timm.create_model
    data: Any = timm.data
    architecture = json_format.loads((weights / "config.json").read_text())["architecture"]
    model = create(architecture, checkpoint_path=str(weights / "model.safetensors")).eval()
    config: dict[str, Any] = {
        "input_size": (3, 224, 224), "interpolation": "bicubic", "crop_pct": 0.9,
        "mean": (0.5,) * 3, "std": (0.5,) * 3,
    }  # fmt: skip

    def theirs() -> Tensor:
        dataset = data.create_dataset(name="", root=str(folder))
        loader = data.create_loader(
            dataset, batch_size=batch, num_workers=2, use_prefetcher=True,
            device=torch.device("cpu"), **config,
        )  # fmt: skip
        outputs = []
        with torch.inference_mode():
            for images, _ in loader:
                output = model(images)
                output.softmax(-1).topk(TOP)
                outputs.append(output)
        return torch.cat(outputs)

    return theirs


def _compare(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    agree = (ours.argmax(1) == theirs.argmax(1)).double().mean()
    return {"top1": float(agree), "largest": float((ours - theirs).abs().max())}


def measure(steps: dict[str, Step], count: int, rounds: int) -> list[Timing]:
    """Time the contestants in turns."""
    names = list(steps)
    walls, works = np.zeros((2, rounds, len(names)))
    for turn in range(rounds):
        for place in turn_order(len(names), turn):
            start, before = time.perf_counter(), _processor()
            steps[names[place]]()
            walls[turn, place] = time.perf_counter() - start
            works[turn, place] = _processor() - before
    return [
        Timing(
            contestant=name,
            speed=float(count / np.median(walls[:, place])),
            processor=float(1000 * np.median(works[:, place]) / count),
            wall_ratio=float(np.median(walls[:, place] / walls[:, 0])),
            processor_ratio=float(np.median(works[:, place] / works[:, 0])),
        )
        for place, name in enumerate(names)
    ]


def _processor() -> float:
    """Give the seconds that this process and its ended children have computed."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def show(timings: list[Timing], same: dict[str, dict[str, float]]) -> None:
    """Print the figures as a table."""
    columns = ("", "images / s", "ratio", "processor ms", "ratio", "top-1 as ours", "logits")
    table = Table(*columns)
    for row in timings:
        near = same[row.contestant]
        table.add_row(
            row.contestant, f"{row.speed:.1f}", f"{row.wall_ratio:.2f}", f"{row.processor:.1f}",
            f"{row.processor_ratio:.2f}", f"{near['top1']:.2%}", f"{near['largest']:.1e}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    tyro.cli(main)
