"""What pre-training without labels is worth: against from scratch, and against labels.

    python benchmarks/self_supervision.py --data shapes:medium cifar10:DIR
    python benchmarks/self_supervision.py --data cifar10:DIR --minutes 4 --ways scratch mae

A small ViT is pre-trained on a set, by masked patches (Appendix B.1.2), by MAE, or by its labels.
Then 10 images a class are learnt from its frozen features, and it is fine-tuned on the whole set;
`scratch` is fine-tuned from fresh weights. All measure on the set's test images, once.

The budget is processor time, minutes x two cores for each way: three quarters of it pre-train, one
quarter fine-tunes, and scratch has that quarter alone. How long a step takes is measured once, in
turns, and kept in the folder. All ways have the optimizer, the batch and the crop of `small-data`.
What is there is not run again, and a run that was stopped goes on.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro
from measure import turn_order
from rich import box
from rich.console import Console
from rich.table import Table

from vitrail import load, recipes
from vitrail.config import Duration
from vitrail.data.batches import TrainBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.subsets import shots
from vitrail.data.transforms.preprocess import default_preprocess
from vitrail.distributed import process_group
from vitrail.evaluation.features.extract import Features, extract
from vitrail.evaluation.probes.fewshot import fit_shots
from vitrail.models import Model, ViT, parse
from vitrail.models.pretraining.mim import DecoderConfig, encoder_spec
from vitrail.run import TrainConfig, TrainingRun, train
from vitrail.signals import Signals

CORES = 2
MODEL = "ViT/4@32,depth=4,width=96,heads=3,mlp=192,pool=gap"
DECODER = DecoderConfig(depth=1, width=64, heads=2)
"""MAE's, light beside this encoder as its own is beside ViT-L."""
FINE_TUNE = 0.25
"""Part of the budget that fine-tunes."""
SHOTS, DRAWS = 10, 3
L2 = tuple(2.0**power for power in range(-10, 21, 3))
"""Held-out training images choose one of them."""

Backend = Literal["scratch", "masked-patches", "mae", "supervised"]
BACKENDS: tuple[Backend, ...] = ("scratch", "masked-patches", "mae", "supervised")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one way reached with one seed."""

    data: str
    way: Backend
    seed: int
    minutes: float
    """The budget, in minutes of two cores."""
    pretrain_epochs: float
    finetune_epochs: float
    few_shot: float
    """Accuracy of 10 shots on frozen features, the mean of three draws."""
    fine_tuned: float
    used: float
    """Processor minutes of the two trainings, if neither was stopped in between."""


def main(
    *,
    data: tuple[str, ...] = ("shapes:medium",),
    minutes: float = 20,
    seeds: tuple[int, ...] = (0, 1, 2),
    ways: tuple[Backend, ...] = BACKENDS,
    threads: int = CORES,
    out: Path = Path("self-supervision"),
) -> None:
    """Pre-train in several ways for the same processor time, and see what each is worth.

    Args:
        data: Sets of 32 x 32 images.
        minutes: The budget of each way and seed, in minutes of two cores.
        seeds: Of weights, order and augmentation.
        ways: Which are run now; the table shows all that are there.
        threads: Of torch; the budget does not depend on it.
        out: Folder of the runs and of the results.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.set_num_threads(threads)
    for name in data:
        folder = out / name.partition(":")[0]
        folder.mkdir(parents=True, exist_ok=True)
        seconds = measure_steps(name, folder)
        for seed in seeds:
            for way in ways:
                path = folder / f"{way}-{minutes:g}min-{seed}.json"
                if not path.exists():
                    result = run(name, way, seed, minutes, seconds, folder)
                    path.write_text(json.dumps(asdict(result), indent=1) + "\n")
                    print(path.read_text(), flush=True)
    show([Result(**json.loads(path.read_text())) for path in sorted(out.glob("*/*min-*.json"))])


def run(
    data: str, way: Backend, seed: int, minutes: float, seconds: dict[str, float], folder: Path
) -> Result:
    """Pre-train, learn from a few shots, fine-tune, and measure."""
    source = open_source(data, "train")
    budget = 60 * CORES * minutes
    runs = folder / f"{way}-{minutes:g}min-{seed}"
    tune = settings(data, "supervised", seed, runs / "fine-tuned")
    steps = int(FINE_TUNE * budget / seconds["supervised"])
    tune = replace(tune, length=Duration(steps, "steps"), val="test")
    start, before = time.process_time(), 0
    if way != "scratch":
        pretrain = settings(data, way, seed, runs / "pre-trained")
        before = int((1 - FINE_TUNE) * budget / seconds[way])
        train(replace(pretrain, length=Duration(before, "steps")))
        tune = replace(tune, weights=f"run:{pretrain.out}")
    used = time.process_time() - start
    few = measure_few_shot(start_model(tune), source, open_source(data, "test"))
    start = time.process_time()
    reached = train(tune)
    used += time.process_time() - start
    assert reached.top1 is not None
    return Result(
        data=data.partition(":")[0],
        way=way,
        seed=seed,
        minutes=minutes,
        pretrain_epochs=before * tune.batch / len(source),
        finetune_epochs=steps * tune.batch / len(source),
        few_shot=few,
        fine_tuned=reached.top1,
        used=used / 60,
    )


def settings(data: str, way: Backend, seed: int, out: Path) -> TrainConfig:
    """Give the settings of a pre-training, or, as `supervised`, of a fine-tuning."""
    config = recipes.small_data(
        TrainConfig(data=data, model=MODEL, out=out, seed=seed, val_split="", loggers=()),
        short=True,
    )
    if way == "masked-patches":
        config = replace(config, task=way, mim=recipes.masked_patches(config).mim)
    elif way == "mae":
        config = replace(config, task=way, mim=recipes.mae(config).mim)
        config = replace(config, mim=replace(config.mim, decoder=DECODER))
    return replace(
        config,
        eval_every=Duration(100, "%"),
        save_every=Duration(10, "%"),
        # Made when they are asked for: whoever made them ahead would run in others' turns too.
        loader=LoaderConfig(workers=0),
    )


def measure_steps(data: str, folder: Path, rounds: int = 5) -> dict[str, float]:
    """Give the processor seconds of each way's step, taken in turns, or those kept."""
    kept = folder / "seconds.json"
    if kept.exists():
        return json.loads(kept.read_text())
    ways: list[Backend] = [way for way in BACKENDS if way != "scratch"]
    steps = [take_steps(settings(data, way, 0, folder / "unused")) for way in ways]
    seconds = np.zeros((rounds + 1, len(ways)))
    for turn in range(rounds + 1):
        for place in turn_order(len(ways), turn):
            start = time.process_time()
            next(steps[place])
            seconds[turn, place] = time.process_time() - start
    medians: dict[str, float] = {}
    medians |= zip(ways, np.median(seconds[1:], axis=0).tolist(), strict=True)
    kept.write_text(json.dumps(medians, indent=1) + "\n")
    return medians


def take_steps(config: TrainConfig) -> Iterator[float]:
    """Take steps as `vitrail.training` does."""
    spec = parse(config.model)
    plain = default_preprocess(spec.image, spec.channels)
    source = open_source(config.data, "train")
    with process_group(None) as processes:
        session = TrainingRun(replace(config, length=Duration(1000, "steps")), processes)
        batches = TrainBatches(
            source, config.augment, plain, batch=config.batch, seed=config.seed, mixed=False
        )
        for step in range(session.intervals.total):
            yield session.trainer.step(step, batches[step], Signals()).loss


def start_model(config: TrainConfig) -> Model:
    """Give the encoder that a fine-tuning starts from."""
    if config.weights:
        return load(config.weights).model
    torch.manual_seed(config.seed)
    return ViT(encoder_spec(parse(config.model)))


def measure_few_shot(model: Model, train: ImageDataset, test: ImageDataset) -> float:
    """Learn from 10 images a class in three draws; others choose l2."""
    spec = model.spec
    plain = default_preprocess(spec.image, spec.channels)
    found: list[Features] = []
    for source in (shots(train, 4 * SHOTS, seed=0), test):  # 10 to learn from, 10 to choose by
        found.append(extract(model, source, plain, loader=LoaderConfig(workers=0)))
    [ten] = fit_shots(found[0], found[1], shots=(SHOTS,), seeds=DRAWS, l2=L2)
    assert ten.best is not None
    return float(ten.accuracy[ten.best].mean())


def open_source(data: str, split: str) -> ImageDataset:
    """Open a split of a set that is no stream."""
    source = open_data(data, split=split)
    assert isinstance(source, ImageDataset), f"{data} is a stream"
    return source


def show(results: list[Result]) -> None:
    """Print a table of means and stds over seeds."""
    columns = ("minutes", "seeds", "epochs before", "epochs after", "10 shots", "fine-tuned")
    table = Table(
        "data", "way", box=box.SIMPLE_HEAD, title="Equal processor time, two cores' worth"
    )
    for column in columns:
        table.add_column(column, justify="right")
    keys = sorted({(each.data, each.minutes, BACKENDS.index(each.way)) for each in results})
    for name, minutes, place in keys:
        wanted = name, minutes, BACKENDS[place]
        of = [each for each in results if (each.data, each.minutes, each.way) == wanted]
        accuracies = np.array([(each.few_shot, each.fine_tuned) for each in of])
        means, spreads = accuracies.mean(0), accuracies.std(0, ddof=1 if len(of) > 1 else 0)
        cells = [f"{mean:.2%} ± {spread:.2%}" for mean, spread in zip(means, spreads, strict=True)]
        epochs = f"{of[0].pretrain_epochs:.1f}", f"{of[0].finetune_epochs:.1f}"
        table.add_row(name, BACKENDS[place], f"{minutes:g}", f"{len(of)}", *epochs, *cells)
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
