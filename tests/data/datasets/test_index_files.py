"""Indexes on disk: the same as a scan, used while nothing changed, and made anew when it did."""

import io
import json
import os
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.datasets.shards.tars import open_indexed as open_shards
from tests.forks import in_processes
from tests.shelf import refusal
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets import index_files
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.folder import open_folder
from vitrail.data.datasets.shards import tar_dataset


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index_files, "WORTH_KEEPING", 1)
    return tmp_path / "cache" / "index"


def age(root: Path, seconds: float = 60) -> None:
    """Let everything be older than the moment in which changes can't be told apart."""
    then = time.time() - seconds
    for path in (root, *root.rglob("*")):
        os.utime(path, (then, then))


def make_folder(root: Path) -> Path:
    for number, name in enumerate(["a/1.jpg", "a/deep/2.jpg", "b/3.jpg", "b/4.jpg", "b/5.jpg"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * number)
    return root


def make_shards(root: Path, labels: str = "0110") -> str:
    root.mkdir(exist_ok=True)
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as archive:
            for number, label in enumerate(labels):
                for name, content in (
                    (f"{number}.jpg", b"image"),
                    (f"{number}.cls", label.encode()),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return f"{root}/{{0..1}}.tar"


def content(dataset: ImageDataset) -> tuple[object, ...]:
    found = [
        (dataset.where(n), int(dataset.labels[n]), dataset.read(n)) for n in range(len(dataset))
    ]
    return dataset.name, dataset.classes, found, dataset.fingerprint()


def forbid_scanning(patch: pytest.MonkeyPatch) -> None:
    def build(*arguments: object) -> None:
        raise AssertionError("scanned")

    patch.setattr("vitrail.data.datasets.folder._index_classes", build)
    patch.setattr("vitrail.data.datasets.folder._index_flat", build)
    patch.setattr("vitrail.data.datasets.shards.tar_dataset._read_shards", build)


@pytest.mark.parametrize("split", ["train", "val", "all"])
def test_a_folder_is_scanned_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    root = make_folder(tmp_path / "photos")
    age(root)
    before = content(open_folder(root, split))
    # The whole with the hashes of its names, and its part.
    assert len(list(cache.iterdir())) == (2 if split == "all" else 3)
    with monkeypatch.context() as patch:
        forbid_scanning(patch)
        patch.setattr("vitrail.data.datasets.folder.split_indices", lambda *_: [][0])
        again = open_folder(root, split)
        assert content(again) == before
        assert isinstance(again.labels, np.memmap)


def test_a_small_part_of_a_large_dataset_is_kept_too(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each start would look at every name to choose it."""
    monkeypatch.setattr(index_files, "WORTH_KEEPING", 5)
    root = make_folder(tmp_path / "photos")
    age(root)
    assert len(open_folder(root, "train")) < 5
    assert len(list(cache.iterdir())) == 3


def test_the_index_of_a_split_is_mapped_not_read(tmp_path: Path) -> None:
    for split in ("train", "val"):
        make_folder(tmp_path / "photos" / split)
    age(tmp_path / "photos")
    open_folder(tmp_path / "photos", "train")
    again = open_folder(tmp_path / "photos", "train")
    assert isinstance(again.labels, np.memmap)


def test_shards_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = make_shards(tmp_path / "shards")
    age(tmp_path / "shards")
    before = content(open_shards(pattern, "all"))
    with monkeypatch.context() as patch:
        forbid_scanning(patch)
        assert content(open_shards(pattern, "all")) == before
    make_shards(tmp_path / "shards", "1001")  # the same names and sizes, other labels
    age(tmp_path / "shards", 30)
    after = open_shards(pattern, "all")
    assert [int(label) for label in after.labels] == [1, 0, 0, 1] * 2
    (tmp_path / "shards" / "classes.txt").write_text("cat\ndog\n")
    assert open_shards(pattern, "all").classes == ("cat", "dog")


@pytest.mark.parametrize("change", ["add", "add deep", "remove", "rename", "class"])
def test_a_changed_folder_is_scanned_again(tmp_path: Path, change: str) -> None:
    root = make_folder(tmp_path / "photos")
    age(root)
    before = open_folder(root, "all")
    if change == "add":
        (root / "a" / "6.jpg").write_bytes(b"new")
    elif change == "add deep":
        (root / "a" / "deep" / "6.jpg").write_bytes(b"new")
    elif change == "remove":
        (root / "b" / "4.jpg").unlink()
    elif change == "rename":
        (root / "b" / "4.jpg").rename(root / "b" / "0.jpg")
    else:
        (root / "b").rename(root / "c")
    after = open_folder(root, "all")
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    assert sorted(after.where(n) for n in range(len(after))) == names
    assert after.fingerprint() != before.fingerprint()


def test_what_changed_a_moment_ago_is_not_kept(tmp_path: Path, cache: Path) -> None:
    open_folder(make_folder(tmp_path / "photos"), "all")
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["cut", "json", "version", "gone", "other"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, cache: Path, damage: str) -> None:
    root = make_folder(tmp_path / "photos")
    age(root)
    before = content(open_folder(root, "all"))
    (place,) = (path for path in cache.iterdir() if (path / "ends.npy").exists())
    facts = json.loads((place / "index.json").read_text())
    if damage == "cut":
        data = (place / "ends.npy").read_bytes()
        (place / "ends.npy").write_bytes(data[:-8])
    elif damage == "json":
        (place / "index.json").write_text("{")
    elif damage == "gone":
        (place / "text.npy").unlink()
    else:
        key = {"version": "version", "other": "key"}[damage]
        (place / "index.json").write_text(json.dumps({**facts, key: "0"}))
    assert content(open_folder(root, "all")) == before
    assert json.loads((place / "index.json").read_text()) == facts


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    root = make_folder(tmp_path / "photos")
    age(root)
    assert len(open_folder(root, "all")) == 5


def test_a_copy_elsewhere_is_the_same_dataset(tmp_path: Path) -> None:
    one, other = (open_folder(make_folder(tmp_path / name), "all") for name in ("one", "other"))
    assert one.fingerprint() == other.fingerprint()


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=8), st.data())
def test_names_are_taken_in_any_order(names: list[bytes], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=9))
    taken = Names(names).take(np.array(chosen, np.int64))
    assert [taken[n] for n in range(len(taken))] == [names[n] for n in chosen]


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4), max_size=4))
def test_names_are_joined(parts: list[list[bytes]]) -> None:
    joined = Names.join([Names(part) for part in parts])
    assert [joined[n] for n in range(len(joined))] == [name for part in parts for name in part]


def test_many_folders_and_shards_are_read_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as one after the other; what is wrong in one is still one line."""
    for number in range(20):
        make_folder(tmp_path / "photos" / f"{number % 7}")
    pattern = make_shards(tmp_path / "shards")
    before = content(open_folder(tmp_path / "photos", "all")), content(open_shards(pattern, "all"))
    parts = content(open_shards(pattern, "train"))
    monkeypatch.setattr("vitrail.data.datasets.folder._MANY", 2)
    monkeypatch.setattr(tar_dataset, "_LARGE", 1)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "other"))
    after = content(open_folder(tmp_path / "photos", "all")), content(open_shards(pattern, "all"))
    assert after == before
    assert content(open_shards(pattern, "train")) == parts
    os.truncate(tmp_path / "shards" / "1.tar", 2000)
    assert "1.tar is cut off: it ends at byte 2,000" in refusal(open_shards, pattern, "all")


def test_processes_that_start_together_build_one_index(tmp_path: Path, cache: Path) -> None:
    """A dataset's folder may be read-only; all processes get the same images."""
    root = make_folder(tmp_path / "photos")
    age(root)
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)

    def open_it() -> object:
        index_files.WORTH_KEEPING = 1
        return [open_folder(root, "train").fingerprint() for _ in range(5)]

    ended = in_processes(open_it, 4)
    assert [each.code for each in ended] == [0] * 4, ended
    assert len({print for each in ended for print in each.value}) == 1
    assert len([path for path in cache.iterdir() if not path.name.startswith(".")]) == 3
