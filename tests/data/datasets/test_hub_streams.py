"""Streams of the `datasets` library: one order a seed and epoch, from any position on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.datasets.hub_sets import (
    NAMES,
    PARTS,
    as_images,
    datasets,
    number_in,
    own_cache,
    png,
    table,
    write_arrow,
    write_parquet,
)
from tests.shelf import refusal
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.datasets.hub.hub_dataset import HubStream, open_hub


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[None]:
    with own_cache(tmp_path / "cache"):
        yield


def rows_of(stream: ImageStream) -> list[tuple[int, Any, str]]:
    """Read all shards, and check that each goes on from any offset that it gave."""
    rows = []
    for shard in range(stream.shards):
        found = list(stream.read_shard(shard))
        for number, (after, _) in enumerate(found, 1):
            rest = list(stream.read_shard(shard, after))
            assert [item.content for _, item in rest] == [
                item.content for _, item in found[number:]
            ]
        rows += [(number_in(item.content), item.label, item.where) for _, item in found]
    return rows


@pytest.mark.parametrize("files", [1, 5])
def test_a_shard_is_a_row_group(tmp_path: Path, files: int) -> None:
    write_parquet(tmp_path / "p", "train", table(range(50)), files)
    stream = open_hub(f"{tmp_path}/p,stream=true,buffer=16", "train")
    assert isinstance(stream, HubStream)
    assert (stream.classes, stream.multilabel) == (tuple(NAMES), False)
    assert stream.length in (50, None)
    assert (stream.shards, stream.buffer) == (files, 16)
    found = rows_of(stream)
    assert [number for number, _, _ in found] == list(range(50))
    assert all(label == number % 3 for number, label, _ in found)
    assert found[3][2] == f"{tmp_path}/p/train[shard 0, row 4] 3.png"
    if hasattr(datasets.IterableDataset, "reshard"):
        (whole,) = write_groups(tmp_path / "q", 50, 10)
        stream = open_hub(f"{tmp_path}/q,stream=true", "train")
        assert isinstance(stream, HubStream)
        assert (whole, stream.shards) == (5, 5)
        assert [number for number, _, _ in rows_of(stream)] == list(range(50))


def write_groups(folder: Path, count: int, size: int) -> list[int]:
    """Write a Parquet file of several row groups; give their number for each file."""
    folder.mkdir()
    table(range(count)).to_parquet(folder / "train-00000.parquet", batch_size=size)
    from pyarrow import parquet

    return [parquet.ParquetFile(file).num_row_groups for file in folder.iterdir()]


def test_streams_of_folders_and_of_several_labels(tmp_path: Path) -> None:
    as_images(tmp_path / "photos")
    stream = open_hub(f"{tmp_path}/photos,stream=true", "val")
    assert isinstance(stream, ImageStream)
    found = rows_of(stream)
    assert sorted((number, label) for number, label, _ in found) == [
        (n, n % 3) for n in PARTS["validation"]
    ]
    assert f"photos/validation/{NAMES[found[0][1]]}/{found[0][0]}.png" in found[0][2]
    kind = datasets.List(datasets.Value("int64"))
    labels = [[n % 4, 4] for n in range(8)]
    write_parquet(tmp_path / "p", "train", table(range(8), kind, labels))
    assert "column 'label' has no class names; write ,classes=NUMBER" in refusal(
        open_hub, f"{tmp_path}/p,stream=true", "train"
    )
    stream = open_hub(f"{tmp_path}/p,stream=true,classes=5", "train")
    assert isinstance(stream, ImageStream)
    assert (stream.classes, stream.multilabel) == (tuple("01234"), True)
    for number, label, _ in rows_of(stream):
        assert label.dtype == np.uint8
        assert np.flatnonzero(label).tolist() == [number % 4, 4]
    few = open_hub(f"{tmp_path}/p,stream=true,classes=4", "train")
    assert isinstance(few, ImageStream)
    text = refusal(list, few.read_shard(0))
    assert "/p/train[shard 0, row 1]" in text
    assert text.endswith("expected a class from 0 to 3, got 4")
    assert "it has train, all" in refusal(open_hub, f"{tmp_path}/p,stream=true,classes=5", "val")


def test_a_row_without_a_image(tmp_path: Path) -> None:
    folder, gone = tmp_path / "p", {"bytes": None, "path": str(tmp_path / "p" / "gone.png")}
    images = [None, gone, {"bytes": png(2), "path": None}]
    rows = table(range(3)).remove_columns("image").add_column("image", images)
    rows = rows.cast_column("image", datasets.Image(decode=False))
    write_arrow(folder, "train", rows)
    write_arrow(folder, "test", rows)
    dataset = open_hub(str(folder), "train")
    assert isinstance(dataset, ImageDataset)
    for index in (0, 1):
        with pytest.raises(FileNotFoundError):
            dataset.read(index)
    assert dataset.read(2) == png(2)
    stream = open_hub(f"{folder},stream=true", "train")
    assert isinstance(stream, ImageStream)
    *gone, there = [item.content for _, item in stream.read_shard(0)]
    assert [type(content) for content in gone] == [FileNotFoundError] * 2
    assert there == png(2)
