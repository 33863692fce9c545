"""Accuracy on CIFAR-10 from fresh weights at an equal budget: vitrail's small-data and its peers.

    python benchmarks/small_data.py --data cifar10:DIR                # all, 30 minutes each
    python benchmarks/small_data.py --data cifar10:DIR --minutes 10 --only vitrail

The budget is processor time, minutes x two cores, so that a busy machine costs nobody an epoch.
First all contestants take steps in turns, and how long those take decides how many steps each may
plan: the schedules end there. The times are kept in the folder and used again, so that contestants
can be run one after the other. Data loading and augmentation count; the one evaluation, on all
test images after the last step, does not. What a run really used is written beside it.

CCT and airbench94's CNN are in small_data_peers.py. timm's ViT-Ti has AdamW, cosine and
RandAugment; vit-pytorch's ViT has its README's shape, and the README's 64 tokens. The README names
no optimizer, so it has timm's, at a rate for its width. All compute in bfloat16 autocast, which is
fast on processors that multiply it (AVX-512-BF16, AMX).

Training FLOPs are 6 x multiply-accumulates of a forward pass x images.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from measure import turn_order
from peers import OURS, mend_torchvision, versions
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table
from small_data_peers import CCT, Airbench, airbench_steps, tensor_batches
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail import load, recipes
from vitrail.config import Duration
from vitrail.data.batches import EvalBatches, TrainBatches
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import process_group
from vitrail.evaluation.accuracy import measure_accuracy
from vitrail.models import parse
from vitrail.run import TrainConfig, train
from vitrail.signals import Signals
from vitrail.training.optimization.schedule import LRSchedule, rate_at
from vitrail.training_run import TrainingRun

CORES = 2
MODEL = (
    "Hybrid/1@32,stem=conv,stages=2-2-2,stem_width=32,depth=3,width=256,heads=4,mlp=512,pool=gap"
)
"""Ours: what docs/small-data.md advises for images of this size."""
HALF = (0.5, 0.5, 0.5)
INPUTS = Preprocess(size=(32, 32), mean=HALF, std=HALF, interpolation="bilinear", fit="stretch")
"""What all contestants are evaluated on."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How a peer is trained: AdamW, a linear warm-up and a cosine; crop and flip for everybody.

    airbench94 brings its own steps.
    """

    build: Callable[[], nn.Module]
    lr: float
    batch: int
    steps: Callable[[nn.Module, ArrayDataset, int, int], Iterator[float]] | None = None
    smoothing: float = 0.0
    weight_decay: float = 0.05
    warmup: float = 0.1
    """Part of the steps in which the rate rises."""
    clip: float = 1.0
    randaugment: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one contestant reached."""

    contestant: str
    minutes: float = 0
    """The budget, in minutes of two cores."""
    top1: float
    images: int
    """Test images that were measured."""
    parameters: int
    macs: int
    """Multiply-accumulates of one image's forward pass."""
    steps: int
    batch: int
    epochs: float
    used: float
    """Processor minutes of training, of all threads; the budget is twice `minutes`."""
    wall: float
    """Minutes by the clock, on a machine that others may have used too."""
    threads: int
    seed: int
    versions: dict[str, str]

    @property
    def petaflop(self) -> float:
        """Training FLOPs in units of 10^15: 6 x MACs x images."""
        return 6 * self.macs * self.steps * self.batch / 1e15


def main(
    *,
    data: str = "cifar10",
    minutes: float = 30,
    only: tuple[str, ...] = (),
    threads: int = CORES,
    seed: int = 0,
    out: Path = Path("small-data"),
) -> None:
    """Train by vitrail's small-data recipe and by its peers' set-ups for the same processor time.

    Args:
        data: CIFAR-10, or another set of 32 x 32 images.
        minutes: The budget of each, in minutes of two cores.
        only: Which contestants are run now; all unless given.
        threads: Of torch; the budget does not depend on it.
        seed: Of weights, order and augmentation.
        out: Folder of the results, of which all are shown at the end.
    """
    unknown = {*only} - {OURS, *PEERS}
    assert not unknown, f"no contestant {unknown}; there are {', '.join((OURS, *PEERS))}"
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(threads)
    mend_torchvision()
    out.mkdir(parents=True, exist_ok=True)
    contestants = only or (OURS, *PEERS)
    seconds = measure_steps(contestants, data, out)
    for contestant in contestants:
        steps = int(60 * CORES * minutes / seconds[contestant])
        result = replace(run(contestant, data, steps, seed, out), minutes=minutes)
        name = f"{contestant.replace(' ', '-').replace('/', '')}-{minutes:g}min-{seed}.json"
        (out / name).write_text(json.dumps(asdict(result), indent=1) + "\n")
    show([Result(**json.loads(path.read_text())) for path in sorted(out.glob("*min-*.json"))])


def run(contestant: str, data: str, steps: int, seed: int, out: Path) -> Result:
    """Train a contestant and measure it on all test images."""
    pixels = open_pixels(data, "train")
    start, wall, inputs = time.process_time(), time.monotonic(), INPUTS
    if contestant == OURS:
        model, batch, inputs = train_ours(our_config(data, steps, seed, out))
    else:
        model, batch = train_peer(PEERS[contestant], pixels, steps, seed)
    used, wall = time.process_time() - start, time.monotonic() - wall
    test = EvalBatches(open_pixels(data, "test"), inputs, batch=250)
    batches = map(test.__getitem__, range(len(test)))
    reached = measure_accuracy(model.eval(), batches, inputs, device=torch.device("cpu"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, *inputs.size))
    return Result(
        contestant=contestant,
        top1=reached.top1,
        images=reached.images,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        macs=counter.get_total_flops() // 2,
        steps=steps,
        batch=batch,
        epochs=steps * batch / len(pixels),
        used=used / 60,
        wall=wall / 60,
        threads=torch.get_num_threads(),
        seed=seed,
        versions=versions(),
    )


def measure_steps(
    contestants: Sequence[str], data: str, out: Path, rounds: int = 3
) -> dict[str, float]:
    """Give the processor seconds of each contestant's step, taken in turns, or those kept."""
    kept = out / "seconds.json"
    if kept.exists() and {*contestants} <= {*(known := json.loads(kept.read_text()))}:
        return known
    pixels = open_pixels(data, "train")
    steps = {
        name: our_steps(our_config(data, 1000, 0, out))
        if name == OURS
        else peer_steps(PEERS[name], PEERS[name].build(), pixels, 1000)
        for name in contestants
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for place in turn_order(len(steps), turn):
            name = list(steps)[place]
            start = time.process_time()
            next(steps[name])
            seconds[name].append(time.process_time() - start)
    medians = {name: float(np.median(times[1:])) for name, times in seconds.items()}
    kept.write_text(json.dumps(medians, indent=1) + "\n")
    return medians


def our_config(data: str, steps: int, seed: int, out: Path) -> TrainConfig:
    """Take the recipe's settings for a run of so many steps; the test split is not looked at."""
    config = TrainConfig(data=data, model=MODEL, out=out / f"run-{steps}-{seed}", seed=seed)
    return replace(
        recipes.small_data(config, short=True),
        length=Duration(steps, "steps"),
        val_split="",
        precision="bfloat16",
        # Made when they are asked for: whoever made them ahead would run in others' turns too.
        loader=LoaderConfig(workers=0),
    )


def our_steps(config: TrainConfig) -> Iterator[float]:
    """Take steps as `vitrail.training` does."""
    with process_group(None) as processes:
        session = TrainingRun(config, processes)
        inputs = replace(INPUTS, size=parse(MODEL).image)
        pixels = open_pixels(config.data, "train")
        batches = TrainBatches(
            pixels, config.augment, inputs, batch=config.batch, seed=config.seed, mixed=False
        )
        for step in range(session.intervals.total):
            yield session.trainer.step(step, batches[step], Signals()).loss


def train_ours(config: TrainConfig) -> tuple[nn.Module, int, Preprocess]:
    """Train as a person would; give the model, the batch, and what it is evaluated on."""
    reached = train(config, restart=True)
    loaded = load(str(reached.folder / "model"))
    assert loaded.preprocess is not None
    return loaded.model, config.batch, loaded.preprocess


def train_peer(peer: Peer, pixels: ArrayDataset, steps: int, seed: int) -> tuple[nn.Module, int]:
    """Train a peer's model; give it and the batch."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # timm's RandAugment draws from it
    model = peer.build()
    for step, loss in enumerate(peer_steps(peer, model, pixels, steps), 1):
        if step % 50 == 0 or step == steps:
            logging.info("step %d of %d, loss %.3f", step, steps, loss)
    return model, peer.batch


def peer_steps(peer: Peer, model: nn.Module, pixels: ArrayDataset, steps: int) -> Iterator[float]:
    """Take a peer's steps, each image once in an epoch."""
    if peer.steps is not None:
        yield from peer.steps(model, pixels, steps, peer.batch)
        return
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peer.lr, weight_decay=peer.weight_decay, fused=True
    )
    plan = LRSchedule(kind="cosine", total=steps, warmup=round(peer.warmup * steps))
    batches = _peer_batches(peer, pixels) if peer.randaugment else None
    batches, model = batches or tensor_batches(pixels, peer.batch, pad=4), model.train()
    for step in range(steps):
        images, labels = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=peer.smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), peer.clip)
        for group in optimizer.param_groups:
            group["lr"] = peer.lr * rate_at(step, plan)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


def _peer_batches(peer: Peer, pixels: ArrayDataset) -> Iterator[tuple[Tensor, Tensor]]:
    from timm.data.auto_augment import rand_augment_transform
    from torchvision.transforms import (
        Compose,
        Normalize,
        RandomCrop,
        RandomHorizontalFlip,
        ToTensor,
    )

    # timm's usual one but for "-mstd0.5", which at times asks Pillow for images of 0 bits.
    chain: list[Any] = [RandomCrop(32, padding=4), RandomHorizontalFlip()]
    chain += [rand_augment_transform("rand-m9-inc1", {}), ToTensor(), Normalize(HALF, HALF)]
    transform = cast("Callable[[Image.Image], Tensor]", Compose(chain))
    while True:
        order = torch.randperm(len(pixels)).numpy()
        for start in range(0, len(order) - peer.batch + 1, peer.batch):
            indices = order[start : start + peer.batch]
            images = [transform(Image.fromarray(image)) for image in pixels.take(indices)]
            yield torch.stack(images), torch.from_numpy(pixels.labels[indices])


def open_pixels(data: str, split: str) -> ArrayDataset:
    """Open a split that is held in memory."""
    source = open_data(data, split=split)
    assert isinstance(source, ArrayDataset), f"{data} is not held in memory, as CIFAR-10 is"
    return source


def build_timm(patch: int) -> nn.Module:
    """Build timm's ViT-Ti for small images."""
    import timm

    name = "vit_tiny_patch16_224"
    return timm.create_model(name, img_size=32, patch_size=patch, num_classes=10)


def build_vit_pytorch() -> nn.Module:
    """Build vit-pytorch's ViT as its README does, at an eighth of the resolution and patch."""
    from vit_pytorch import ViT

    shape: dict[str, Any] = {"dim": 1024, "depth": 6, "heads": 16, "mlp_dim": 2048}
    rates: dict[str, Any] = {"dropout": 0.1, "emb_dropout": 0.1}
    return ViT(image_size=32, patch_size=4, num_classes=10, **shape, **rates)


CCT_RECIPE: dict[str, Any] = {"lr": 1e-3, "batch": 128, "weight_decay": 0.06, "smoothing": 0.1}
PEERS = {
    "CCT-2/3x2": Peer(build=lambda: CCT(2), **CCT_RECIPE),
    "CCT-4/3x2": Peer(build=lambda: CCT(4), **CCT_RECIPE),
    "airbench CNN": Peer(build=Airbench, lr=11.5, batch=512, steps=airbench_steps),
    "timm ViT-Ti/4": Peer(build=lambda: build_timm(4), lr=1e-3, batch=64, randaugment=True),
    "timm ViT-Ti/8": Peer(build=lambda: build_timm(8), lr=1e-3, batch=64, randaugment=True),
    "vit-pytorch": Peer(build=build_vit_pytorch, lr=3e-4, batch=32),
}


def show(results: list[Result]) -> None:
    """Print a table of all results."""
    columns = (
        "minutes",
        "seed",
        "top-1",
        "parameters",
        "PFLOP",
        "epochs",
        "images / s",
        "used min",
    )
    table = Table("contestant", box=box.SIMPLE_HEAD, title="Equal processor time, two cores' worth")
    for column in columns:
        table.add_column(column, justify="right")
    for each in sorted(results, key=lambda each: (-each.minutes, -each.top1)):
        table.add_row(
            each.contestant,
            f"{each.minutes:g}",
            f"{each.seed}",
            f"{each.top1:.2%}",
            f"{each.parameters:,}",
            f"{each.petaflop:.3f}",
            f"{each.epochs:.1f}",
            f"{each.steps * each.batch / each.used / 60:,.0f}",
            f"{each.used:.1f}",
        )
    table.caption = (
        "Budget: minutes x 2 cores of processor time; steps planned from times taken in turns. "
        "Images / s and used min: of one core, as it was then."
    )
    Console(highlight=False).print(table)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
