"""Hashes of names: the same whoever makes them, and images found by them."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.data.datasets.shards.tars import numbered, open_indexed
from vitrail.data import name_hashes as module
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.folder import FolderDataset
from vitrail.data.name_hashes import find_names, name_hashes

ODD = [
    b"a/plain.jpg",
    b"a/back\\slash.jpg",
    "a/é ü.jpg".encode(),
    b"a/\xff.jpg",
    b"a/new\nline.jpg",
]
ODD += [b"a/tab\t.jpg", b"a/~tilde .jpg", "a/‮.jpg".encode(), b"a/\x7f.jpg"]


def folder(names: list[bytes]) -> FolderDataset:
    labels = np.zeros(len(names), np.int64)
    return FolderDataset("d", ["a"], labels, Path("/nowhere"), Names(names))


def brute_force(dataset: ImageDataset, seed: int) -> list[int]:
    key = (seed % 2**64).to_bytes(8, "little")
    names = [dataset.where(n).encode("utf-8", "surrogateescape") for n in range(len(dataset))]
    hashes = [hashlib.blake2b(name, digest_size=8, key=key).digest() for name in names]
    return [int.from_bytes(each, "little") for each in hashes]


@pytest.mark.parametrize("seed", [0, 5, -1])
def test_odd_names_are_hashed_as_they_are_written(seed: int) -> None:
    dataset = folder(ODD)
    assert name_hashes(dataset, seed)(0, len(ODD)).tolist() == brute_force(dataset, seed)
    assert name_hashes(dataset, seed)(2, 5).tolist() == brute_force(dataset, seed)[2:5]


def test_shards_and_parts_of_parts(tmp_path: Path) -> None:
    for shard in ("odd\\ü", "b"):
        numbered(tmp_path / f"{shard}.tar", range(5))
    for dataset in (open_indexed(str(tmp_path), "all"), folder(ODD)):
        part = select(select(dataset, np.array([7, 1, 3, 5])), np.array([3, 0]))
        for each in (dataset, part):
            assert name_hashes(each)(0, len(each)).tolist() == brute_force(each, 0)
            assert list(each.sizes(np.arange(len(each)))) == [
                each.size(n) for n in range(len(each))
            ]


def test_processes_make_the_same_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = folder([*ODD, *(b"a/%d.jpg" % number for number in range(50))])
    alone = name_hashes(dataset)(0, len(dataset)).tolist()
    monkeypatch.setattr(module, "_MANY", 10)
    monkeypatch.setattr(module, "_SOME", 8)
    found = name_hashes(dataset)(0, len(dataset))
    assert found.tolist() == alone == brute_force(dataset, 0)


def test_images_are_found_by_name() -> None:
    dataset = folder([*ODD, *(b"a/%d.jpg" % number for number in range(50))])
    wanted = ["a/7.jpg", r"a/back\\slash.jpg", r"a/\xff.jpg", "a/none.jpg", "a/49.jpg"]
    found = find_names(dataset, wanted)
    assert found == {
        r"a/back\\slash.jpg": [1],
        r"a/\xff.jpg": [3],
        "a/7.jpg": [len(ODD) + 7],
        "a/49.jpg": [len(ODD) + 49],
    }
    assert find_names(dataset, []) == {}
    assert find_names(folder([]), wanted) == {}
