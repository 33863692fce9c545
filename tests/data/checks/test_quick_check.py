"""Leaks between the splits of a run, and unreadable files, before it begins."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.commands import run
from tests.data.sets import make, rich_photo
from vitrail.config import InputError
from vitrail.data.checks.dataset_check import check_data
from vitrail.data.checks.quick_check import quick_check
from vitrail.data.dataset import select
from vitrail.data.datasets.open import open_dataset


def test_re_encoded_and_unreadable_images_are_found(tmp_path: Path) -> None:
    for place, name in enumerate(("train/a/1", "train/b/2", "val/a/3", "val/b/4")):
        (tmp_path / name).parent.mkdir(parents=True)
        rich_photo(place).save(tmp_path / f"{name}.png")
    small = Image.open(tmp_path / "train/b/2.png").resize((70, 60))
    small.save(tmp_path / "val/b/5.jpg", quality=60)
    (tmp_path / "val/a/6.jpg").write_bytes(b"no image")
    train, val = (open_dataset(tmp_path, split=split) for split in ("train", "val"))
    found = quick_check(train, val)
    assert found is not None
    assert found.leaks == (("val/b/5.jpg", "train/b/2.png"),)
    assert found.unreadable == ("val/a/6.jpg",)
    unreadable, leaks = found.notes()
    assert unreadable == "1 file can't be read and is skipped: val/a/6.jpg"
    assert leaks.startswith("1 of 4 validation images look like training images")
    assert quick_check(train, val, most=5) is None


def test_arrays_are_not_compared() -> None:
    train, val = open_dataset("digits"), open_dataset("digits", split="val")
    found = quick_check(train, val)
    assert found is not None
    assert found.notes() == ()


def test_only_formats_that_are_trained_on_are_opened(tmp_path: Path) -> None:
    """Any of Pillow's readers would be one of fifty that a file may attack."""
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        rich_photo(len(split)).save(tmp_path / split / "a/1.png")
    rich_photo(0).save(tmp_path / "train/a/2.tga")
    train, val = (open_dataset(tmp_path, split=split) for split in ("train", "val"))
    found = quick_check(train, val)
    assert found is not None
    assert found.unreadable == ("train/a/2.tga",)


def test_images_of_other_numbers_of_channels_are_readable(tmp_path: Path) -> None:
    """Six channels: a copy is found, and nothing is called unreadable."""
    first, second = (np.asarray(rich_photo(seed, 64)) for seed in (0, 1))
    for name, pixels in (("train/a/0", first), ("train/b/0", second), ("val/a/0", first)):
        place = tmp_path / f"{name}.npy"
        place.parent.mkdir(parents=True)
        np.save(place, np.concatenate([pixels, 255 - pixels], axis=2))
    train, val = (open_dataset(tmp_path, split=split) for split in ("train", "val"))
    found = quick_check(train, val)
    assert found is not None
    assert found.unreadable == ()
    assert found.leaks == (("val/a/0.npy", "train/a/0.npy"),)


def test_images_of_one_color_are_named(tmp_path: Path) -> None:
    for name in ("a/1", "b/2"):
        (tmp_path / name).parent.mkdir(parents=True)
        rich_photo(len(name)).save(tmp_path / f"{name}.png")
    Image.new("RGB", (40, 40)).save(tmp_path / "a/black.png")
    dataset = open_dataset(tmp_path, split="all")
    found = quick_check(dataset, select(dataset, np.empty(0, np.int64)))
    assert found is not None
    assert found.constant == ("a/black.png",)
    assert "1 image is of one color" in " ".join(found.notes())
    assert check_data(tmp_path, workers=1).constant == ["train: a/black.png"]


def test_a_dataset_that_can_not_be_read_is_refused_before_it_is_trained_on(tmp_path: Path) -> None:
    rows = "".join(f"x/{number},{number % 2}\n" for number in range(80))
    (tmp_path / "l.csv").write_text(f"path,label\n{rows}")
    with pytest.raises(InputError, match=r"80 of 80 images can't be read, .* root=FOLDER"):
        vitrail.train(
            f"{tmp_path}/l.csv",
            model="ViT/4@16,depth=1,width=16,heads=2,mlp=16",
            steps=1,
            batch=4,
            out=str(tmp_path / "run"),
        )
    train, val = (open_dataset(f"{tmp_path}/l.csv", split=split) for split in ("train", "val"))
    found = quick_check(train, val, most=10)  # of a large dataset a few files show it
    assert found is not None
    with pytest.raises(InputError, match="64 of 64"):
        found.refuse(0.1)


def test_a_check_without_a_good_image_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "a/1.jpg", "b/2.jpg")
    code, said, error = run(capsys, "data", "check", str(tmp_path))
    assert code == 2
    assert "2 files: 0 good" in said
    assert "none of 2 files can be read as an image" in error
