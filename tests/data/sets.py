"""Small sets of images for tests: encoded, with labels, some of them unreadable."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.dataset import Content, ImageDataset, ImageStream, StreamItem
from vitrail.data.transforms.preprocess import Preprocess

HALF = Preprocess(
    size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear", fit="stretch"
)


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """Encode pixels (height, width, 3) to a file's bytes."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def make(root: Path, *names: str | bytes) -> Path:
    """Make files that contain their own names; a name that ends in / is a folder."""
    for name in map(os.fsencode, names):
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not name.endswith(b"/"):
            with open(path, "wb") as file:
                file.write(name)
    return root


def listed(dataset: ImageDataset) -> list[tuple[str, str]]:
    """Name each image and its class."""
    return [
        (dataset.where(index), dataset.classes[label]) for index, label in enumerate(dataset.labels)
    ]


def photo(seed: int, height: int = 20, width: int = 24) -> np.ndarray:
    """Draw an image of smooth colors with some noise."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [np.sin(generator.uniform(2, 9) * (x + generator.uniform() * y)) for _ in range(3)]
    noise = generator.normal(0, 8, (height, width, 3))
    return (127 + 90 * np.stack(waves, axis=-1) + noise).clip(0, 255).astype(np.uint8)


def rich_photo(seed: int, side: int = 160) -> Image.Image:
    """Make an image with structure at all scales, as photos have."""
    rng = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells in (3, 6, 12, 24):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
        total += np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)) / cells
    return Image.fromarray(np.uint8(total / total.max() * 255))


class Listed(ImageDataset):
    """Images given one by one; an exception in an image's place is raised by reading it."""

    def __init__(
        self, contents: list[Content | OSError], labels: np.ndarray | None = None, classes: int = 3
    ) -> None:
        if labels is None:
            labels = np.arange(len(contents)) % classes
        super().__init__("listed", [f"c{n}" for n in range(classes)], labels)
        self.contents = contents

    def read(self, index: int) -> Content:
        content = self.contents[index]
        if isinstance(content, OSError):
            raise content
        return content

    def where(self, index: int) -> str:
        return f"p{index}.png"


def images(count: int) -> Listed:
    """Make a set of small PNG images."""
    return Listed([encode(photo(seed)) for seed in range(count)])


class Counted(ImageStream):
    """A stream of a listed set's images, dealt to shards in turn; offsets count images by tens."""

    def __init__(
        self, dataset: ImageDataset, shards: int = 1, buffer: int = 4, length: int | None = None
    ) -> None:
        super().__init__("counted", dataset.classes, shards=shards, buffer=buffer, length=length)
        self.dataset = dataset
        self.read: list[tuple[int, int]] = []
        """Shard and number of each image that was read."""

    def read_shard(self, shard: int, offset: int = 0) -> Iterator[tuple[int, StreamItem]]:
        assert offset % 10 == 0
        for number, index in enumerate(range(shard, len(self.dataset), self.shards)):
            if number >= offset // 10:
                self.read.append((shard, number))
                label, where = int(self.dataset.labels[index]), self.dataset.where(index)
                yield 10 * number + 10, StreamItem(self.dataset.read(index), label, where)
