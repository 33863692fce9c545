"""Leaks between the splits of a run, and unreadable files, before it begins."""

from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.sets import rich_photo
from vitrail.data.checks.quick_check import quick_check
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
