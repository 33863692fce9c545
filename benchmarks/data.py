"""Images a second that one core makes ready for training: vitrail's way and its peers'.

    python benchmarks/data.py                         # JPEGs of two sizes, and small images
    python benchmarks/data.py --photos DIR            # your own JPEGs as a case more
    python benchmarks/data.py --case cifar-pad --rounds 30

A turn makes a batch from files in memory: decoded, cut by torchvision's rule (5 to 100 % of the
area), resized bilinearly to 224, flipped, stacked and normalized. Small images are held as
pixels. In a round every contestant has one turn; ratios are taken within a round, and of processor
time, so that a busy machine slows both sides of a ratio.

vitrail decodes large JPEGs at a half, a quarter or an eighth, and rounds boxes to those pixels. How
far its images are from a full decoding by Pillow, with the boxes as drawn, is measured too.
"""

from __future__ import annotations

import gc
import io
import json as json_format
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from measure import turn_order
from peers import AGAIN, OURS, mend_torchvision, versions
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vitrail.data.rng import CounterRNG
from vitrail.data.transforms.apply import normalize, train_image, train_pixels
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.geometry import random_box
from vitrail.data.transforms.preprocess import Preprocess

Step = Callable[[], Tensor]

BATCH, SMALL_BATCH = 32, 512
AREA, RATIO = (0.05, 1.0), (0.75, 1.33)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JPEGS = {"jpeg-500x375": (375, 500), "jpeg-2000x1500": (1500, 2000)}
TORCHVISIONS = Augment(crop="area", area=AREA, ratio=RATIO)
"""Our crop by torchvision's and timm's rule: so all contestants have the same boxes to make."""
SMALL = {
    "cifar-pad": Augment(crop="pad"),
    "cifar-area": TORCHVISIONS,
    "cifar-inception": replace(TORCHVISIONS, crop="inception"),
}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one contestant reached in a case."""

    case: str
    contestant: str
    speed: float
    """Images in a second of processor time, at the median of the rounds."""
    ratio: float
    """The median of the rounds' ratios of its time to ours: above 1, ours is faster."""
    ratio_low: float
    """Their lower quartile."""
    ratio_high: float
    """Their upper quartile."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far our values, of 255, are from Pillow's with the same boxes."""

    case: str
    mean: float
    high: float
    """What 99 of 100 values do not exceed."""
    most: float


def main(
    *,
    case: tuple[str, ...] = (),
    rounds: int = 12,
    photos: Path | None = None,
    json: Path | None = None,
) -> None:
    """Compare how fast vitrail and its peers make training batches on one core.

    Args:
        case: Which cases; all unless given.
        rounds: Turns that each contestant has in each case.
        photos: A folder of JPEGs, which make a case of their own.
        json: Write the figures here.
    """
    torch.set_num_threads(1)
    mend_torchvision()
    timings: list[Timing] = []
    differences: list[Difference] = []
    for name in case or (*JPEGS, *(["photos"] if photos else []), *SMALL):
        if name in SMALL:
            timings += measure(name, prepare_small(SMALL[name]), SMALL_BATCH, rounds)
            continue
        files = read_photos(photos) if photos and name == "photos" else make_files(*JPEGS[name])
        timings += measure(name, prepare_jpegs(files), BATCH, rounds)
        differences.append(compare(name, files))
    show(timings, differences)
    if json:
        figures = {"timings": [*map(asdict, timings)], "versions": versions()}
        figures["differences"] = [*map(asdict, differences)]
        json.write_text(json_format.dumps(figures, indent=1) + "\n")


def make_files(height: int, width: int) -> list[bytes]:
    """Paint images with a photograph's spectrum, about 1 / f, and encode them at quality 90."""
    down, across = np.fft.fftfreq(height, 1 / height), np.fft.rfftfreq(width, 1 / width)
    frequency = np.hypot(down[:, None], across)
    frequency[0, 0] = 1
    generator = np.random.default_rng(0)

    def cloud(power: float) -> np.ndarray:
        real, imaginary = generator.normal(size=(2, *frequency.shape))
        painted = np.fft.irfft2((real + 1j * imaginary) / frequency**power, (height, width))
        return painted / painted.std()

    files = []
    for _ in range(BATCH):
        light = cloud(1.45)
        colors = np.stack([light + 0.25 * cloud(1.6) for _ in range(3)], axis=-1)
        pixels = (128 + 50 * colors).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(file := io.BytesIO(), "JPEG", quality=90, subsampling="4:2:0")
        files.append(file.getvalue())
    return files


def read_photos(folder: Path) -> list[bytes]:
    """Read as many JPEGs as a batch has; fewer are taken more than once."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    assert paths, f"no JPEGs in {folder}"
    return [paths[place % len(paths)].read_bytes() for place in range(BATCH)]


def prepare_jpegs(files: list[bytes]) -> dict[str, Step]:
    """Build what makes a batch of encoded images."""
    from timm.data.loader import fast_collate
    from timm.data.transforms_factory import create_transform

    transform = _torchvision_transform(_torchvision_crop(224))
    options = {"scale": AREA, "ratio": RATIO, "interpolation": "bilinear", "color_jitter": None}
    build: Callable[..., Any] = create_transform
    prefetched = build(224, is_training=True, use_prefetcher=True, **options)
    mean, std = (255 * torch.tensor([MEAN, STD]))[:, None, :, None, None]

    def torchvision() -> Tensor:
        return torch.stack([transform(_open(file)) for file in files])

    def timm() -> Tensor:  # as its loader does, which normalizes the batch
        batch, _ = fast_collate([(prefetched(_open(file)), 0) for file in files])
        return batch.float().sub_(mean).div_(std)

    ours, again = _prepare_ours(files), _prepare_ours(files)
    return {OURS: ours, AGAIN: again, "torchvision": torchvision, "timm": timm}


def prepare_small(augment: Augment) -> dict[str, Step]:
    """Build what makes a batch of 32 x 32 images that are held as pixels."""
    from torchvision.transforms import RandomCrop

    pixels = np.random.default_rng(0).integers(0, 256, (SMALL_BATCH, 32, 32, 3), np.uint8)
    preprocess = _preprocess(32)
    crop = RandomCrop(32, padding=4) if augment.crop == "pad" else _torchvision_crop(32)
    transform = _torchvision_transform(crop)

    def ours() -> Tensor:
        draws = CounterRNG(0, "image", next(turns), np.arange(SMALL_BATCH))
        return normalize(
            torch.from_numpy(train_pixels(pixels, augment, preprocess, draws)), preprocess
        )

    def torchvision() -> Tensor:
        return torch.stack([transform(Image.fromarray(image)) for image in pixels])

    turns = count()
    return {OURS: ours, AGAIN: ours, "torchvision": torchvision}


def _prepare_ours(files: list[bytes]) -> Step:
    preprocess = _preprocess(224)
    images = np.empty((len(files), 224, 224, 3), np.uint8)
    turns = count()

    def ours() -> Tensor:
        rows = CounterRNG(0, "image", next(turns), np.arange(len(files))).rows()
        for place, (file, draws) in enumerate(zip(files, rows, strict=True)):
            images[place] = train_image(file, TORCHVISIONS, preprocess, draws)
        return normalize(torch.from_numpy(images), preprocess)

    return ours


def _preprocess(side: int) -> Preprocess:
    size = (side, side)
    return Preprocess(size=size, mean=MEAN, std=STD, interpolation="bilinear", fit="crop")


def _torchvision_crop(side: int) -> Callable[[Any], Any]:
    from torchvision.transforms import InterpolationMode, RandomResizedCrop

    return RandomResizedCrop(side, AREA, RATIO, InterpolationMode.BILINEAR)


def _torchvision_transform(crop: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
    from torchvision.transforms import Compose, Normalize, RandomHorizontalFlip, ToTensor

    return Compose([crop, RandomHorizontalFlip(), ToTensor(), Normalize(MEAN, STD)])


def _open(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


def measure(case: str, steps: dict[str, Step], images: int, rounds: int) -> list[Timing]:
    """Let the contestants make batches in turns."""
    for step in steps.values():
        step()  # imports, buffers, caches
    seconds: dict[str, list[float]] = {contestant: [] for contestant in steps}
    for turn in range(rounds):
        gc.collect()
        for place in turn_order(len(steps), turn):
            contestant = list(steps)[place]
            start = time.process_time()
            steps[contestant]()
            seconds[contestant].append(time.process_time() - start)
    timings = []
    for contestant, times in seconds.items():
        low, middle, high = np.percentile(np.divide(times, seconds[OURS]), [25, 50, 75]).tolist()
        speed = images / float(np.median(times))
        ratios = {"ratio": middle, "ratio_low": low, "ratio_high": high}
        timings.append(Timing(case=case, contestant=contestant, speed=speed, **ratios))
    return timings


def compare(case: str, files: list[bytes], epochs: int = 4) -> Difference:
    """Compare our images with those of a full decoding, cut and resized by Pillow."""
    preprocess = _preprocess(224)
    found = []
    for epoch in range(epochs):
        for index, file in enumerate(files):
            ours = train_image(file, TORCHVISIONS, preprocess, CounterRNG(0, "image", epoch, index))
            image, draws = _open(file), CounterRNG(0, "image", epoch, index)
            flip = draws.uniform()[0] < TORCHVISIONS.flip
            top, left, height, width = random_box(draws, image.height, image.width, TORCHVISIONS)
            part = image.crop((left, top, left + width, top + height))
            theirs = np.asarray(part.resize((224, 224), Image.Resampling.BILINEAR))
            theirs = theirs[:, ::-1] if flip else theirs
            found.append(np.abs(ours.astype(np.int16) - theirs).ravel())
    away = np.concatenate(found)
    high, most = np.percentile(away, [99, 100]).tolist()
    return Difference(case=case, mean=float(away.mean()), high=high, most=most)


def show(timings: list[Timing], differences: list[Difference]) -> None:
    """Print the tables."""
    console = Console(highlight=False)
    table = Table("case", "contestant", title="Images a second, one core", box=box.SIMPLE_HEAD)
    table.add_column("images / s", justify="right")
    table.add_column("time / ours", justify="right")
    for timing in timings:
        ratio = f"{timing.ratio:.2f} ({timing.ratio_low:.2f} to {timing.ratio_high:.2f})"
        table.add_row(timing.case, timing.contestant, f"{timing.speed:,.0f}", ratio)
    console.print(table)
    table = Table("case", title="Difference from Pillow's full decoding", box=box.SIMPLE_HEAD)
    for column in ("mean", "99 of 100", "most"):
        table.add_column(column, justify="right")
    for away in differences:
        table.add_row(away.case, f"{away.mean:.2f}", f"{away.high:.0f}", f"{away.most:.0f}")
    if differences:
        console.print(table)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
