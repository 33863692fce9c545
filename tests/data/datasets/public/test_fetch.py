"""Fetching public sets from a server on this machine, with small archives in the same layouts."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from tests.data.datasets.public import test_cifar, test_idx
from tests.shelf import Shelf, refusal, serving
from vitrail.data.datasets.public.fetch import fetch_data, fetched
from vitrail.data.datasets.public.public_registry import PUBLIC

Make = Callable[[Path], None]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    with serving() as shelf:
        yield shelf


def images(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())


def make_pets(folder: Path) -> None:
    images(folder / "images", "pug_1.jpg", "pug_2.jpg")
    (folder / "annotations").mkdir()
    (folder / "annotations" / "trainval.txt").write_text("pug_1 1 2 1\n")
    (folder / "annotations" / "test.txt").write_text("pug_2 1 2 1\n")


def make_flowers(folder: Path) -> None:
    images(folder / "jpg", "image_00001.jpg", "image_00002.jpg", "image_00003.jpg")
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 102]])})
    savemat(folder / "setid.mat", {"trnid": [[1]], "valid": [[2]], "tstid": [[3]]})


def make_caltech(folder: Path) -> None:
    for name in ("accordion", "Faces"):
        numbers = [f"image_{number:04d}.jpg" for number in range(1, 32)]
        images(folder / "101_ObjectCategories" / name, *numbers)


def make_cifar10(folder: Path) -> None:
    test_cifar.write10(folder / "cifar-10-batches-bin")


def make_cifar100(folder: Path) -> None:
    test_cifar.write100(folder / "cifar-100-binary")


def make_idx(folder: Path) -> None:
    test_idx.write(folder)


SETS: dict[str, tuple[Make, dict[str, str]]] = {
    "cifar10": (make_cifar10, {"cifar-10-binary.tar.gz": "cifar-10-batches-bin"}),
    "cifar100": (make_cifar100, {"cifar-100-binary.tar.gz": "cifar-100-binary"}),
    "mnist": (make_idx, {}),
    "fashion-mnist": (make_idx, {}),
    "pets": (make_pets, {"images.tar.gz": "images", "annotations.tar.gz": "annotations"}),
    "flowers102": (make_flowers, {"102flowers.tgz": "jpg"}),
    "caltech101": (make_caltech, {"caltech-101.zip": "101_ObjectCategories"}),
}
"""How to make each set, and the archives that hold which of its folders."""


def pack(file: str, folder: Path, below: str, work: Path) -> bytes:
    """Pack a folder as the set's publisher does."""
    stem = work / file.partition(".")[0]
    packed = shutil.make_archive(str(stem), "gztar", folder, below)
    if file.endswith(".zip"):  # with the archive inside, and what else there is
        inside = work / "zip" / "caltech-101"
        images(inside, "Annotations.tar", "show_annotation.m")
        shutil.copy(packed, inside / f"{below}.tar.gz")
        packed = shutil.make_archive(str(stem), "zip", work / "zip", "caltech-101")
    return Path(packed).read_bytes()


def publish(shelf: Shelf, patch: pytest.MonkeyPatch, name: str, work: Path) -> Path:
    """Make a set, and a row that says the server has it; give the folder it was made in."""
    make, archives = SETS[name]
    folder = work / "made"
    folder.mkdir(parents=True)
    make(folder)
    files = []
    for file in PUBLIC[name].files:
        below = archives.get(file.name)
        content = pack(file.name, folder, below, work) if below else None
        content = content or (folder / file.name).read_bytes()
        query = "?download=1" if "?" in file.url else ""
        shelf.files[f"/{name}/{file.name}{query}"] = content
        url = f"{shelf.address}/{name}/{file.name}{query}"
        hashed = hashlib.sha256(content).hexdigest()
        files.append(replace(file, url=url, size=len(content), sha256=hashed))
    patch.setitem(PUBLIC, name, replace(PUBLIC[name], files=tuple(files)))
    return folder


@pytest.mark.parametrize("name", SETS)
def test_fetches_once(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = publish(shelf, monkeypatch, name, tmp_path / "work")
    assert fetched(name) is None
    folder = fetch_data(name)
    assert folder == fetched(name) == tmp_path / "cache" / "data" / name
    for split in ("train", "val", "test", "all"):
        ours, theirs = (PUBLIC[name].open(place, split) for place in (folder, made))
        assert ours.fingerprint() == theirs.fingerprint()
        last = len(ours) - 1
        np.testing.assert_array_equal(ours.read(last), theirs.read(last))
    assert fetch_data(name) == folder
    assert len(shelf.asked) == len(PUBLIC[name].files)
    assert [file.name for file in folder.parent.iterdir()] == [name]
    assert not (tmp_path / "cache" / "downloads" / name).exists()
    note = (folder / "ORIGIN.txt").read_text().splitlines()
    assert note[1] == f"{PUBLIC[name].title}, license: {PUBLIC[name].license}"
    assert note[2:] == [file.url for file in PUBLIC[name].files]


def test_all_public_sets_are_tested_and_verified() -> None:
    assert SETS.keys() == PUBLIC.keys()
    for public in PUBLIC.values():
        for file in public.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.url.startswith("http")


def test_into_a_folder(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(shelf, monkeypatch, "pets", tmp_path / "work")
    folder = tmp_path / "deep" / "mine"
    folder.mkdir(parents=True)
    assert fetch_data("pets", folder) == folder
    assert len(PUBLIC["pets"].open(folder, "all")) == 2
    assert fetched("pets") is None
    assert fetch_data("pets", folder) == folder
    assert len(shelf.asked) == 2


def test_what_is_there_is_not_touched(tmp_path: Path, shelf: Shelf) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").touch()
    (tmp_path / "file").touch()
    for folder in (tmp_path / "mine", tmp_path / "file"):
        told = f"{folder}: already exists and is not pets; give another folder"
        assert told in refusal(fetch_data, "pets", folder)
    assert shelf.asked == []


@pytest.mark.parametrize("fault", ["hash", "size", "gone", "layout", "hostile"])
def test_nothing_is_left_of_what_is_wrong(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    made = publish(shelf, monkeypatch, "pets", tmp_path / "work")
    images, lists = PUBLIC["pets"].files
    path = "/pets/annotations.tar.gz"
    if fault == "hash":
        lists, told = replace(lists, sha256="0" * 64), "expected the SHA-256 000"
    elif fault == "size":
        lists, told = replace(lists, size=lists.size + 1), "the server has"
    elif fault == "gone":
        shelf.files.pop(path)
        told = "the server answers 404"
    else:
        if fault == "layout":
            (made / "annotations" / "test.txt").rename(made / "annotations" / "tests.txt")
            told = "Oxford-IIIT Pets has another layout than expected: "
        else:
            (made / "annotations" / "link").symlink_to("/etc")
            told = "refused: 'annotations/link' is a link or a device"
        content = pack("other.tar.gz", made, "annotations", tmp_path / "work")
        shelf.files[path] = content
        hashed = hashlib.sha256(content).hexdigest()
        lists = replace(lists, size=len(content), sha256=hashed)
    monkeypatch.setitem(PUBLIC, "pets", replace(PUBLIC["pets"], files=(images, lists)))
    assert told in refusal(fetch_data, "pets")
    assert fetched("pets") is None
    assert list((tmp_path / "cache" / "data").iterdir()) == []


def test_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    with serving() as shelf:
        publish(shelf, monkeypatch, "mnist", tmp_path / "work")
    monkeypatch.setenv("no_proxy", "*")
    text = refusal(fetch_data, "mnist")
    assert "cannot reach 127.0.0.1" in text
    assert "is there a network?" in text
    assert list((tmp_path / "data").iterdir()) == []


def test_names(tmp_path: Path) -> None:
    assert "no public dataset 'cifar'; did you mean 'cifar" in refusal(fetch_data, "cifar")
    assert "; there are cifar10, cifar100, mnist" in refusal(fetch_data, "zzz")
    text = refusal(fetch_data, "imagenet", tmp_path)
    assert "imagenet needs an account: log in at https://image-net.org" in text
    assert "DIR/val/nXXXXXXXX/*.JPEG" in text
    assert fetched("imagenet") is None


def test_a_place_that_can_not_be_written(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "pets"
    assert f"cannot write {folder}: " in refusal(fetch_data, "pets", folder)
    assert shelf.asked == []


def test_another_process_is_faster(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(shelf, monkeypatch, "mnist", tmp_path / "work")
    public = PUBLIC["mnist"]

    def slow(path: Path, split: str) -> object:
        """Let the other one finish before this one has opened its copy."""
        monkeypatch.setitem(PUBLIC, "mnist", public)
        fetch_data("mnist")
        return public.open(path, split)

    monkeypatch.setitem(PUBLIC, "mnist", replace(public, open=slow))
    assert fetch_data("mnist") == fetched("mnist")
    assert [file.name for file in (tmp_path / "cache" / "data").iterdir()] == ["mnist"]
