"""Streams of the `datasets` library: one order a seed and epoch, from any position on."""

from collections.abc import Iterator
from itertools import islice
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


def rows_of(items: Iterator[Any]) -> list[tuple[int, Any, str]]:
    return [(number_in(item.content), item.label, item.where) for item in items]


@pytest.mark.parametrize("files", [1, 5])
def test_streams_go_on_from_any_position(tmp_path: Path, files: int) -> None:
    write_parquet(tmp_path / "p", "train", table(range(50)), files)
    place = f"{tmp_path}/p,stream=true,buffer=16"
    stream = open_hub(place, "train")
    assert isinstance(stream, HubStream)
    assert (stream.classes, stream.multilabel) == (tuple(NAMES), False)
    assert stream.length in (50, None)
    orders = set()
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (2**63 + 5, 7)):
        whole = rows_of(stream.items(seed, epoch))
        orders.add(tuple(number for number, _, _ in whole))
        assert sorted(number for number, _, _ in whole) == list(range(50))
        assert all(label == number % 3 for number, label, _ in whole)
        assert len({where for _, _, where in whole}) == 50
        assert whole[3][2] == f"{tmp_path}/p/train[epoch {epoch}, image 3] {whole[3][0]}.png"
        again = open_hub(place, "train")
        assert isinstance(again, ImageStream)
        for start in range(52) if epoch == 7 else (0, 1, 15, 16, 49, 50, 51):
            assert rows_of(again.items(seed, epoch, start)) == whole[start:]
    assert len(orders) == 4
    one, two = stream.items(0, 0), stream.items(0, 1)  # side by side, they do not disturb another
    mixed = [next(items) for _ in range(10) for items in (one, two)]
    assert rows_of(iter(mixed[::2])) == rows_of(islice(stream.items(0, 0), 10))
    assert rows_of(iter(mixed[1::2])) == rows_of(islice(stream.items(0, 1), 10))


def test_streams_of_folders_and_of_several_labels(tmp_path: Path) -> None:
    as_images(tmp_path / "photos")
    stream = open_hub(f"{tmp_path}/photos,stream=true", "val")
    assert isinstance(stream, ImageStream)
    found = rows_of(stream.items(0, 0))
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
    for number, label, _ in rows_of(stream.items(0, 0)):
        assert label.dtype == np.uint8
        assert np.flatnonzero(label).tolist() == [number % 4, 4]
    few = open_hub(f"{tmp_path}/p,stream=true,classes=4", "train")
    assert isinstance(few, ImageStream)
    text = refusal(list, few.items(0, 0))
    assert "/p/train[epoch 0, image 0]" in text
    assert text.endswith("expected a class from 0 to 3, got 4")
    assert "it has train, all" in refusal(open_hub, f"{tmp_path}/p,stream=true,classes=5", "val")


def test_a_row_without_a_image(tmp_path: Path) -> None:
    folder, gone = tmp_path / "p", {"bytes": None, "path": str(tmp_path / "gone.png")}
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
    assert sorted(item.content for item in stream.items(0, 0)) == [b"", b"", png(2)]
