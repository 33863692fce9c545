"""Datasets given as objects: torch datasets, dicts of them, and our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_data, open_dataset
from vitrail.data.split import NoSplitError
from vitrail.data.transforms.preprocess import default_preprocess

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3), np.uint8)


class Listed(Dataset[Any]):
    """Items as given."""

    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self.items, self.taken = items, 0
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.taken += 1
        return self.items[index]


def refuse(data: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        open_dataset(data, **options).read(0)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "form",
    [
        Image.fromarray,
        lambda pixels: pixels,
        lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
        lambda pixels: pixels.transpose(2, 0, 1),
    ],
)
def test_every_form_of_image_is_the_same_pixels(form: Any) -> None:
    dataset = open_dataset(Listed([(form(pixels), n % 2) for n, pixels in enumerate(PIXELS)]))
    assert dataset.name == "Listed"
    assert dataset.classes == ("0", "1")
    assert dataset.labels.tolist() == [0, 1, 0, 1]
    assert dataset.where(2) == "Listed[2]"
    for index in range(4):
        content = dataset.read(index)
        assert isinstance(content, np.ndarray)
        assert np.array_equal(content, PIXELS[index])
    batch = EvalBatches(dataset, default_preprocess((6, 8), 3), batch=4)[0]
    assert np.array_equal(batch.images.numpy(), PIXELS)


def test_gray_transparent_and_encoded_images(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    encoded = (tmp_path / "a.png").read_bytes()
    clear = Image.fromarray(np.dstack([PIXELS[0], np.zeros((6, 8), np.uint8)]))
    items = [(Image.fromarray(PIXELS[0, ..., 0]), 0), (PIXELS[0, ..., 0], 0), (clear, 0)]
    dataset = open_dataset(Listed([*items, (encoded, 1)]))
    first, second, third, fourth = (dataset.read(index) for index in range(4))
    assert np.array_equal(np.asarray(first), PIXELS[0, ..., :1])
    assert np.array_equal(np.asarray(second), PIXELS[0, ..., :1])
    assert np.asarray(third).min() == 255, "transparent pixels lie on white"
    assert fourth == encoded


def test_labels_of_every_form() -> None:
    def labels(found: list[Any], **attributes: Any) -> ImageDataset:
        return open_dataset(Listed([(PIXELS[0], each) for each in found], **attributes))

    assert labels([2, 0]).classes == ("0", "1", "2")
    assert labels([torch.tensor(1), np.int64(0)]).labels.tolist() == [1, 0]
    assert labels(["dog", "cat"]).classes == ("cat", "dog")
    assert labels(["dog", "cat"]).labels.tolist() == [1, 0]
    named = labels([1, 0], classes=["cat", "dog", "owl"])
    assert named.classes == ("cat", "dog", "owl")
    several = labels([torch.tensor([0.0, 1.0, 1.0]), [0, 0, 0]])
    assert several.multilabel
    assert several.classes == ("0", "1", "2")
    assert several.labels.tolist() == [[0, 1, 1], [0, 0, 0]]


def test_targets_are_taken_where_they_are_true() -> None:
    items = [(pixels, number) for number, pixels in enumerate(PIXELS)]
    told = Listed(items, targets=[0, 1, 2, 3], classes=list("abcd"))
    assert open_dataset(told).labels.tolist() == [0, 1, 2, 3]
    assert told.taken == 2
    changed = Listed(items, targets=[9, 1, 2, 3])  # as target_transform makes them
    assert open_dataset(changed).labels.tolist() == [0, 1, 2, 3]
    part = Subset(told, [3, 1])
    assert open_dataset(part).labels.tolist() == [3, 1]
    assert open_dataset(part).classes == ("a", "b", "c", "d")


def test_tensor_dataset() -> None:
    images = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    dataset = open_dataset(TensorDataset(images, torch.tensor([0, 1, 1, 0])))
    assert dataset.labels.tolist() == [0, 1, 1, 0]
    assert np.array_equal(np.asarray(dataset.read(3)), PIXELS[3])


def test_objects_are_their_own_split_and_dicts_have_theirs() -> None:
    train, val = Listed([(PIXELS[0], 0), (PIXELS[1], 1)]), Listed([(PIXELS[2], 1)])
    opened = open_dataset(train)
    assert open_data(opened, split="val") is opened
    both = {"train": train, "validation": val}
    assert len(open_dataset(both)) == 2
    assert len(open_dataset(both, split="val")) == 1
    with pytest.raises(NoSplitError, match="data has no split 'test'; it has train, val"):
        open_data(both, split="test")


def test_images_without_labels(tmp_path: Path) -> None:
    bare = open_data(Listed(list(PIXELS)), labels=False)
    assert isinstance(bare, ImageDataset)
    assert (bare.classes, bare.labels.tolist()) == (("image",), [0] * 4)
    assert np.array_equal(np.asarray(bare.read(1)), PIXELS[1])
    for number in range(20):
        Image.fromarray(PIXELS[0]).save(tmp_path / f"{number}.png")
    flat = [open_data(tmp_path, split=split, labels=False) for split in ("train", "val")]
    assert [len(part) for part in flat if isinstance(part, ImageDataset)] == [18, 2]
    assert flat[0].classes == ("image",)
    assert "has no folders, only files" in refuse(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x.png").write_bytes(b"")
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "y.png").write_bytes(b"")
    val = open_data(tmp_path, split="val", labels=False)
    assert isinstance(val, ImageDataset)
    assert [val.where(index) for index in range(len(val))] == ["val/y.png"]


def test_class_folders_are_split_alike_with_and_without_labels(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(10):
            (tmp_path / name / f"{number}.png").write_bytes(b"")
    one, two = (open_data(str(tmp_path), split="val", labels=each) for each in (True, False))
    assert isinstance(one, ImageDataset)
    assert isinstance(two, ImageDataset)
    assert one.fingerprint() == two.fingerprint()


def test_refusals() -> None:
    assert "expected data as text, an ImageDataset or a dataset" in refuse(3)
    assert refuse(Listed([])) == "Listed has no images"
    assert refuse(Listed([PIXELS[0]])) == "Listed[0]: expected (image, label), got ndarray"
    assert "got torch.float32; leave ToTensor and Normalize out" in refuse(
        Listed([(torch.zeros(3, 6, 8), 0), (torch.zeros(3, 6, 8), 1)])
    )
    assert "expected a class index, a class name" in refuse(Listed([(PIXELS[0], 0.5)]))
    assert "labels are of several lengths" in refuse(
        Listed([(PIXELS[0], [0, 1]), (PIXELS[0], [1])])
    )
    assert "has 3 classes, but labels of 2 values" in refuse(
        Listed([(PIXELS[0], [0, 1])], classes=list("abc"))
    )
