"""Published layouts that would be misread as folders of classes."""

from pathlib import Path

import pytest

from vitrail.config import InputError
from vitrail.data.datasets.open import open_data


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("pets", ["images/a_1.jpg", "annotations/trainval.txt"]),
        ("flowers102", ["jpg/image_00001.jpg", "imagelabels.mat"]),
        ("cifar10", ["cifar-10-batches-bin/test_batch.bin"]),
        ("cifar10", ["data_batch_1.bin", "test_batch.bin"]),
        ("cifar100", ["cifar-100-binary/train.bin"]),
        ("mnist", ["train-images-idx3-ubyte.gz"]),
        ("caltech101", ["101_ObjectCategories/ant/1.jpg"]),
        ("imagenet", ["train/n01440764/1.JPEG", "val/ILSVRC2012_val_00000001.JPEG"]),
        ("imagenet", ["ILSVRC/Data/CLS-LOC/train/n01440764/1.JPEG"]),
    ],
)
def test_layouts_are_recognized(tmp_path: Path, name: str, files: list[str]) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(InputError) as error:
        open_data(str(tmp_path))
    assert f"as published; write {name}:{tmp_path}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_may_be_read_as_one_all_the_same(tmp_path: Path) -> None:
    for file in ("images/1.jpg", "annotations/trainval.txt", "images/2.jpg"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert open_data(f"folder:{tmp_path}", split="all").classes == ("annotations", "images")


def test_imagenet_by_class_folders_is_a_folder(tmp_path: Path) -> None:
    for file in ("train/n01440764/1.JPEG", "train/n01443537/1.JPEG", "val/n01440764/2.JPEG"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert open_data(str(tmp_path)).classes == ("n01440764", "n01443537")
