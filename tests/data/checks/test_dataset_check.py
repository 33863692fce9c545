"""`vitrail data check`: counts, bad files, duplicates, moments, and an image that crashes."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.data.sets import Listed, encode, photo, rich_photo
from vitrail.data.checks.dataset_check import check, check_data
from vitrail.data.dataset import ArrayDataset, Content


def test_counts_bad_files_and_duplicates() -> None:
    one, two, three = (encode(photo(seed)) for seed in range(3))
    train = Listed([one, two, one, b"hello", three[:300]], np.array([0, 1, 1, 0, 2]))
    val = Listed([two, OSError(13, "Permission denied")], np.array([1, 1]))
    found = check({"train": train, "val": val}, workers=2)
    assert found.images == 7
    assert found.splits == {"train": 3, "val": 1}
    assert found.classes == {
        "c0": {"train": 1, "val": 0},
        "c1": {"train": 2, "val": 1},
        "c2": {"train": 0, "val": 0},
    }
    assert found.empty == ["train: c2", "val: c0", "val: c2"]
    assert found.imbalance == 2
    assert [(bad["split"], bad["path"], bad["kind"]) for bad in found.bad] == [
        ("train", "p3.png", "not an image"),
        ("train", "p4.png", "truncated"),
        ("val", "p1.png", "unreadable"),
    ]
    assert found.duplicates == [["train: p0.png", "train: p2.png"]]
    assert found.conflicts == [["train: p0.png", "train: p2.png"]]
    assert found.leaks == [["train: p1.png", "val: p0.png"]]
    assert found.modes == {"PNG RGB": 4}
    assert found.sizes == {"height": [20, 20, 20], "width": [24, 24, 24]}


def test_images_that_look_the_same_are_found_and_listed(tmp_path: Path) -> None:
    for split, name, seed, quality in (
        ("train", "a.png", 0, 0),
        ("train", "b.jpg", 0, 60),
        ("train", "c.jpg", 1, 90),
        ("val", "d.jpg", 1, 50),
        ("val", "e.jpg", 2, 90),
    ):
        path = tmp_path / "photos" / split / "cat" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rich_photo(seed).save(path, quality=quality)
    found = check_data(str(tmp_path / "photos"), out=tmp_path / "found.tsv", workers=1)
    assert found.near_duplicates == [["train: train/cat/a.png", "train: train/cat/b.jpg"]]
    assert found.near_leaks == [["train: train/cat/c.jpg", "val: val/cat/d.jpg"]]
    assert found.duplicates == found.leaks == found.conflicts == []
    rows = (tmp_path / "found.tsv").read_text().splitlines()
    assert rows[1:] == [
        "val\tval/cat/d.jpg\tas train: train/cat/c.jpg\tnearly the same image in several splits",
        "train\ttrain/cat/b.jpg\tas train: train/cat/a.png\tnearly the same image in a split",
    ]
    told = "\n".join(str(line) for line in found.summary())
    assert "nearly the same image in several splits: 1, such as train: train/cat/c.jpg" in told


def test_moments_weigh_each_image_the_same() -> None:
    images = [photo(0, 20, 24), photo(1, 40, 40), photo(2, 8, 8)]
    found = check({"all": Listed([encode(image) for image in images])}, workers=1)
    means = np.mean([(image / 255).mean((0, 1)) for image in images], axis=0)
    squares = np.mean([((image / 255) ** 2).mean((0, 1)) for image in images], axis=0)
    assert found.measured == 3
    assert found.mean == pytest.approx(means, abs=1e-12)
    assert found.std == pytest.approx(np.sqrt(squares - means**2), abs=1e-12)


def test_images_of_one_color_have_no_deviation() -> None:
    plain = np.full((3, 8, 8, 3), 51, np.uint8)  # 0.2, whose mean square is below its square
    labels = np.zeros(3, np.int64)
    found = check({"all": ArrayDataset("p", ("a",), labels, plain)}, workers=1)
    assert found.mean == pytest.approx([0.2] * 3)
    assert found.std == [0, 0, 0]


def test_pixels_and_several_labels() -> None:
    pixels = np.zeros((40, 4, 4, 1), np.uint8)
    pixels[1:] += np.arange(39, dtype=np.uint8)[:, None, None, None] + 1
    labels = np.zeros((40, 2), np.uint8)
    labels[:30, 0] = labels[20:, 1] = 1
    found = check({"all": ArrayDataset("p", ("a", "b"), labels, pixels)}, workers=2)
    assert found.classes == {"a": {"all": 30}, "b": {"all": 20}}
    assert found.modes == {"1 channels": 40}
    assert found.mean == pytest.approx([np.arange(40).mean() / 255])


class Crashing(Listed):
    """A set with an image whose reading kills the process."""

    def read(self, index: int) -> Content:
        if index == 37:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def test_a_image_that_crashes_is_found_out() -> None:
    whole = encode(photo(0))
    found = check({"all": Crashing([whole] * 70)}, workers=2)
    assert [(bad["path"], bad["reason"]) for bad in found.bad] == [
        ("p37.png", "crashes the decoder")
    ]
    assert found.splits == {"all": 69}


def test_an_empty_set() -> None:
    found = check({"all": Listed([])})
    assert (found.images, found.mean, found.imbalance) == (0, [], 0.0)


def test_class_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"th\xe9", b"plain"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        with open(os.path.join(folder, b"im\xff.png"), "wb") as file:
            file.write(encode(photo(len(name))))
    found = check_data(str(tmp_path), workers=1)
    assert list(found.classes) == [r"caf\xe9", "plain", r"th\xe9"]
    assert json.dumps(found.to_dict(), ensure_ascii=False).encode()  # no surrogate is left


def test_arrays_with_more_channels_than_photos_are_good(tmp_path: Path) -> None:
    for number in range(4):
        pixels = np.full((16, 16, 5), number, np.uint8) * np.arange(5, dtype=np.uint8)
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        np.save(tmp_path / "ab"[number % 2] / f"{number}.npy", pixels)
    found = check_data(tmp_path, workers=1)
    assert (found.images, found.bad) == (4, [])
    assert len(found.mean) == 5
