"""What tells one dataset's images from another's: stamps for caches, fingerprints for resume."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.sets import HALF, encode, images, photo
from vitrail.data.cache import CacheConfig, keep_decoded
from vitrail.data.dataset import ArrayDataset, ImageDataset, select
from vitrail.data.datasets.open import open_dataset
from vitrail.data.datasets.torch_dataset import TorchDataset

OLD = 1_000_000_000


def fill(root: Path, seed: int = 0, count: int = 4) -> None:
    """Write images of one size, so that even their bytes are as many, all as old."""
    for name in "ab":
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            offset = {"a": 0, "b": 100}[name]
            pixels = photo(seed + offset + number)
            file = root / name / f"{number}.bmp"
            file.write_bytes(encode(pixels, "BMP"))
            os.utime(file, (OLD, OLD))


def open_all(root: Path) -> ImageDataset:
    return open_dataset(str(root), split="all")


def test_a_copy_of_a_folder_is_the_same_to_resume_and_another_to_a_cache(tmp_path: Path) -> None:
    fill(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = open_all(tmp_path / "one"), open_all(tmp_path / "two")
    assert one.fingerprint() == two.fingerprint()
    assert one.stamp() != two.stamp()


def swap(root: Path) -> None:
    (root / "a").rename(root / "c")
    (root / "b").rename(root / "a")
    (root / "c").rename(root / "b")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: fill(root, seed=50),
        lambda root: (root / "a" / "2.bmp").write_bytes(encode(photo(77), "BMP")),
        swap,
    ],
    ids=["all replaced", "one replaced", "class folders exchanged"],
)
def test_other_images_under_the_same_names(tmp_path: Path, change: Callable[[Path], None]) -> None:
    fill(tmp_path)
    before = open_all(tmp_path).fingerprint()
    assert open_all(tmp_path).fingerprint() == before
    change(tmp_path)
    assert open_all(tmp_path).fingerprint() != before


def test_one_of_many_is_noticed_by_its_size(tmp_path: Path) -> None:
    fill(tmp_path, count=200)
    before = open_all(tmp_path).fingerprint()
    (tmp_path / "a" / "101.bmp").write_bytes(encode(photo(77, 10, 10), "BMP"))
    assert open_all(tmp_path).fingerprint() != before


def write_tar(path: Path, seed: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(4):
            content = encode(photo(seed + number), "BMP")
            for name, data in ((f"{number}.bmp", content), (f"{number}.cls", b"%d" % (number % 2))):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    os.utime(path, (OLD, OLD))


def write_parquet(path: Path, seed: int) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    contents = [encode(photo(seed + number), "BMP") for number in range(4)]
    parquet.write_table(pa.table({"image": contents, "label": [0, 1, 0, 1]}), path)
    os.utime(path, (OLD, OLD))


def write_list(path: Path, seed: int) -> None:
    for number in range(4):
        (path.parent / f"{number}.bmp").write_bytes(encode(photo(seed + number), "BMP"))
        os.utime(path.parent / f"{number}.bmp", (OLD, OLD))
    path.write_text("path,label\n" + "".join(f"{n}.bmp,{n % 2}\n" for n in range(4)))


def write_hub(path: Path, seed: int) -> None:
    datasets = pytest.importorskip("datasets")
    contents = [encode(photo(seed + number), "BMP") for number in range(4)]
    rows = {"image": [{"bytes": each, "path": None} for each in contents], "label": [0, 1, 0, 1]}
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    shutil.rmtree(path, ignore_errors=True)
    datasets.Dataset.from_dict(rows, features=datasets.Features(kinds)).save_to_disk(str(path))


@pytest.mark.parametrize(
    ("write", "data"),
    [
        (write_tar, "wds:{}/set.tar"),
        (write_parquet, "parquet:{}/set.parquet"),
        (write_list, "csv:{}/set.csv"),
        (write_hub, "hf:{}/set"),
    ],
    ids=["tar", "parquet", "csv", "hub"],
)
def test_a_cache_knows_rewritten_files(
    tmp_path: Path, write: Callable[[Path, int], None], data: str
) -> None:
    """The same names, labels, sizes and even times; only the pixels are others."""
    root, config = tmp_path / "data", CacheConfig(limit=1.0, folder=tmp_path / "cache")
    root.mkdir()
    text = data.format(root)
    path = root / text.rpartition("/")[2]
    found = []
    for seed in (0, 50, 50):
        write(path, seed)
        dataset = keep_decoded(open_dataset(text, split="all"), HALF, config)
        assert np.array_equal(np.asarray(dataset.read(2)), photo(seed + 2))
        found.append(dataset.fingerprint())
    assert found[0] != found[1] == found[2]


def test_arrays_are_hashed_whole() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3000, 4, 4, 1), np.uint8)
    labels = np.zeros(3000, np.int64)
    one = ArrayDataset("array", ["a"], labels, pixels)
    changed = pixels.copy()
    changed[1234, 2, 2] ^= 1
    two = ArrayDataset("array", ["a"], labels, changed)
    assert one.stamp() != two.stamp()
    assert one.fingerprint() == ArrayDataset("array", ["a"], labels, pixels.copy()).fingerprint()
    chosen = np.arange(1000, 2000)
    assert select(one, chosen).fingerprint() != select(two, chosen).fingerprint()
    apart = np.arange(2000, 3000)
    assert select(one, apart).fingerprint() == select(two, apart).fingerprint()


def test_a_cached_dataset_is_the_same_dataset(tmp_path: Path) -> None:
    dataset = images(5)
    kept = keep_decoded(dataset, HALF, CacheConfig(limit=1.0))
    assert kept.fingerprint() == dataset.fingerprint()
    assert kept.stamp() == dataset.stamp()


def test_torch_datasets_are_known_by_their_images() -> None:
    items = [(photo(number), number % 2) for number in range(4)]
    others = [*items[:2], (photo(9), 0), items[3]]
    assert TorchDataset(items).fingerprint() == TorchDataset(list(items)).fingerprint()
    assert TorchDataset(items).fingerprint() != TorchDataset(others).fingerprint()


def test_a_cache_knows_one_changed_image_of_many(tmp_path: Path) -> None:
    """Of data that has no place and no times, all images are hashed for a cache."""
    items = [(np.full((4, 4, 3), number % 251, np.uint8), number % 2) for number in range(600)]
    before = TorchDataset(items)
    others = [*items]
    others[1] = (photo(9, 4, 4), 1)
    assert TorchDataset(others).stamp() != before.stamp() == TorchDataset([*items]).stamp()


def test_a_cache_knows_files_that_the_library_only_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table holds paths; one of many files is another one."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    fill(tmp_path / "set" / "train", count=200)
    text = f"hf:{tmp_path}/set"
    before = open_dataset(text, split="all").stamp()
    assert open_dataset(text, split="all").stamp() == before
    (tmp_path / "set" / "train" / "a" / "1.bmp").write_bytes(encode(photo(99), "BMP"))
    assert open_dataset(text, split="all").stamp() != before
