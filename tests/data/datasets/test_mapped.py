"""Mapped arrays: few pages held at a time, and choices of large datasets made once."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.dataset import ImageDataset, Selection
from vitrail.data.datasets import index_files
from vitrail.data.datasets.decisions import DecidedDataset, Decision
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.folder import FolderDataset, open_folder
from vitrail.data.datasets.mapped import Lookups, blocks, keep_arrays, release_pages
from vitrail.data.datasets.unreadable_list import FilteredDataset
from vitrail.data.split import split_dataset
from vitrail.data.subsets import balanced_subset, subset


def resident(path: Path) -> int:
    """Count the kilobytes of a mapped file that this process holds."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def mapped(path: Path, array: np.ndarray) -> np.ndarray:
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("large", [False, True])
def test_pages_of_single_looks_are_given_back_where_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    array = mapped(tmp_path / "a.npy", np.arange(1 << 20))
    monkeypatch.setattr("vitrail.data.datasets.mapped._SMALL", array.nbytes - large)
    lookups = Lookups(array)
    for index in range(0, 160_000, 10_000):
        assert array[index] == index
        assert resident(tmp_path / "a.npy") > 0
        lookups.count()
    assert (resident(tmp_path / "a.npy") == 0) is large
    assert array[5] == 5  # and are there again


def test_names_and_labels_are_read_in_parts(tmp_path: Path) -> None:
    written = [b"%d.jpg" % number for number in range(20_000)]
    plain = Names(written)
    text, ends = (
        mapped(tmp_path / "t.npy", plain.text),
        mapped(tmp_path / "e.npy", plain.ends),
    )
    names = Names.of(text, ends)
    assert list(names) == written
    assert names.hashed == plain.hashed
    labels = mapped(tmp_path / "l.npy", np.arange(20_000) % 7)
    dataset = FolderDataset("d", list("abcdefg"), labels, tmp_path, names)
    same = FolderDataset("d", list("abcdefg"), np.array(labels), tmp_path, plain)
    release_pages(labels)
    assert dataset.fingerprint() == same.fingerprint()
    assert dataset.class_counts().tolist() == [2858] + [2857] * 6
    assert resident(tmp_path / "l.npy") == 0
    assert sum(map(len, blocks(labels))) == 20_000


CHOICES: dict[str, Callable[[ImageDataset], ImageDataset]] = {
    "rest": lambda dataset: split_dataset(dataset, 0.3, 1)[0],
    "held out": lambda dataset: split_dataset(dataset, 0.3, 1)[1],
    "take": lambda dataset: subset(dataset, 5, 2),
    "balanced": lambda dataset: balanced_subset(dataset, 4, 2),
    "unreadable": lambda dataset: FilteredDataset(dataset, ["a/1.jpg", "b/2.jpg"]),
    "decided": lambda dataset: DecidedDataset(
        dataset, {"a/0.jpg": Decision("drop"), "a/2.jpg": Decision("relabel", "b")}
    ),
    "taken of the decided": lambda dataset: subset(CHOICES["decided"](dataset), 7, 0),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_of_a_large_dataset_is_made_once_and_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    for name in "ab":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(6):
            (tmp_path / "photos" / name / f"{number}.jpg").write_bytes(bytes(number))
    for path in (tmp_path / "photos", *(tmp_path / "photos").rglob("*")):
        os.utime(path, (0, 0))  # an index is kept of what has not changed for two seconds
    small = CHOICES[choice](open_folder(tmp_path / "photos", "all"))
    monkeypatch.setattr(index_files, "WORTH_KEEPING", 1)
    large = open_folder(tmp_path / "photos", "all")
    first = CHOICES[choice](large)
    monkeypatch.setattr(FolderDataset, "encoded_names", lambda *_: [][0])
    monkeypatch.setattr("vitrail.data.subsets.shuffled", lambda *_: [][0])
    monkeypatch.setattr("vitrail.data.subsets.smallest_keys", lambda *_: [][0])
    again = CHOICES[choice](large)
    for found in (first, again):
        assert isinstance(found, Selection)
        assert isinstance(found.indices, np.memmap)
        assert isinstance(found.labels, np.memmap)
        assert found.labels.tolist() == small.labels.tolist()
        assert list(map(found.where, range(len(found)))) == list(small.image_names())
        assert found.fingerprint() == small.fingerprint()
        assert found.name == small.name


def test_damaged_choices_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    built = {"a": np.arange(5), "b": np.ones((2, 2))}
    calls: list[int] = []

    def build() -> dict[str, np.ndarray]:
        calls.append(1)
        return built

    for damage in (None, "cut", "gone"):
        found = keep_arrays("key", build)
        assert {name: array.tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in built.items()
        }
        file = next((tmp_path / "index").rglob("a.npy"))
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:-8])
        if damage == "gone":
            file.unlink()
    assert keep_arrays("key", build)["a"].tolist() == [0, 1, 2, 3, 4]
    assert len(calls) == 3
