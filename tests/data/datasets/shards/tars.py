"""Small tar shards for tests, and what reads them by an index."""

import io
import tarfile
from pathlib import Path
from typing import Any

from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.shards.open_shards import open_shards


def open_indexed(place: str, split: str, **options: Any) -> ImageDataset:
    """Open shards whose images are reached by number."""
    dataset = open_shards(place, split, **options)
    assert isinstance(dataset, ImageDataset)
    return dataset


def image(number: int) -> bytes:
    """Stand in for an image's file; nothing is decoded here."""
    return f"image {number}".encode() * (1 + number % 70)


def tar(path: Path, files: dict[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in files.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def numbered(path: Path, numbers: range) -> Path:
    """Write images, each labeled with its number modulo 3."""
    samples = ({f"{n:04}.jpg": image(n), f"{n:04}.cls": str(n % 3)} for n in numbers)
    return tar(path, {name: content for sample in samples for name, content in sample.items()})


def read_all(dataset: ImageDataset) -> list[Any]:
    return [dataset.read(index) for index in range(len(dataset))]
