"""Small sets that the `datasets` library writes, in each of the forms that it reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

datasets = pytest.importorskip("datasets")

NAMES = ["cat", "dog", "eel"]


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Keep the library offline, its cache in a folder and its bars off while sets are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
        datasets.disable_progress_bars()
        yield
        datasets.enable_progress_bars()


def png(number: int) -> bytes:
    file = BytesIO()
    Image.fromarray(np.full((3, 4, 3), number, np.uint8)).save(file, "png")
    return file.getvalue()


def number_in(content: Any) -> int:
    """Read which image it is from its pixels."""
    return int(np.asarray(Image.open(BytesIO(content)))[0, 0, 0])


def table(numbers: range, label: Any = None, labels: list[Any] | None = None) -> Any:
    """Make a set of images; the label is the number modulo 3 unless given."""
    label = label or datasets.ClassLabel(names=NAMES)
    return datasets.Dataset.from_dict(
        {
            "id": [f"image {n}" for n in numbers],
            "image": [{"bytes": png(n), "path": f"{n}.png"} for n in numbers],
            "label": labels if labels is not None else [n % 3 for n in numbers],
        },
        datasets.Features(
            {"id": datasets.Value("string"), "image": datasets.Image(), "label": label}
        ),
    )


def write_parquet(folder: Path, split: str, rows: Any, files: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    for file in range(files):
        part = rows.shard(files, file, contiguous=True)
        part.to_parquet(folder / f"{split}-{file:05}-of-{files:05}.parquet")
    return folder


def write_arrow(folder: Path, split: str, rows: Any) -> None:
    folder.mkdir(exist_ok=True)
    with datasets.arrow_writer.ArrowWriter(path=str(folder / f"{split}.arrow")) as writer:
        writer.write_table(rows.data.table)
        writer.finalize()


PARTS = {"train": range(20), "validation": range(20, 27), "test": range(27, 32)}


def as_parquet(folder: Path) -> None:
    for split, numbers in PARTS.items():
        write_parquet(folder, split, table(numbers), files=2)


def as_saved(folder: Path) -> None:
    datasets.DatasetDict({s: table(numbers) for s, numbers in PARTS.items()}).save_to_disk(folder)


def as_arrow(folder: Path) -> None:
    for split, numbers in PARTS.items():
        write_arrow(folder, split, table(numbers))


def as_images(folder: Path) -> None:
    for split, numbers in PARTS.items():
        for n in numbers:
            place = folder / split / NAMES[n % 3]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{n:02}.png").write_bytes(png(n))
