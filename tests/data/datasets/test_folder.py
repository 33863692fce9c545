"""folder.py: layouts, names of every kind, order, and one clear line for each bad folder."""

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.sets import listed, make
from vitrail.config import InputError
from vitrail.data.datasets.folder import FolderDataset, open_folder
from vitrail.data.datasets.unreadable_list import UNREADABLE_LIST


def refused(path: Path, split: str = "train") -> str:
    with pytest.raises(InputError) as caught:
        open_folder(path, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_of_classes(tmp_path: Path) -> None:
    make(tmp_path, "dogs/2.jpg", "dogs/1.png", "cats/b/deep/er/4.jpg", "cats/a", "cats/b.bin")
    dataset = open_folder(tmp_path, "all")
    assert dataset.classes == ("cats", "dogs")
    assert listed(dataset) == [
        ("cats/a", "cats"), ("cats/b.bin", "cats"), ("cats/b/deep/er/4.jpg", "cats"),
        ("dogs/1.png", "dogs"), ("dogs/2.jpg", "dogs"),
    ]  # fmt: skip
    assert dataset.labels.dtype == np.int64
    assert [dataset.read(index).decode() for index in range(5)] == [
        name for name, _ in listed(dataset)
    ]
    assert (dataset.root, dataset.notes) == (tmp_path, ())
    assert dataset.name == f"{tmp_path} (all)"


def test_what_is_no_image_by_its_ending_is_left_out_and_noted(tmp_path: Path) -> None:
    """A phone's folder: Live Photos have a video, edited ones a side file."""
    make(tmp_path, "a/1.HEIC", "a/1.MOV", "a/1.AAE", "b/2.jpg", "b/2.mov", "b/notes.txt")
    dataset = open_folder(tmp_path, "all")
    assert listed(dataset) == [("a/1.HEIC", "a"), ("b/2.jpg", "b")]
    assert dataset.notes == (f"{tmp_path}: 4 files are not images: 2 .mov, 1 .aae, 1 .txt",)


def test_without_splits_a_tenth_is_held_out(tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{number}.jpg" for name in "abc" for number in range(20)))
    train, val = open_folder(tmp_path, "train"), open_folder(tmp_path, "val")
    assert np.bincount(train.labels).tolist() == [18, 18, 18]
    assert np.bincount(val.labels).tolist() == [2, 2, 2]
    assert sorted(listed(train) + listed(val)) == listed(open_folder(tmp_path, "all"))
    assert listed(train) == sorted(listed(train)), "their order stays"
    assert listed(open_folder(tmp_path, "val", seed=1)) != listed(val)
    assert refused(tmp_path, "test").endswith("has no split 'test'; it has train, val, all")


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("train", "val", "test"), ("training", "valid", "testing"), ("Train", "validation", "TEST")],
)
def test_split_folders(tmp_path: Path, train: str, val: str, test: str) -> None:
    make(tmp_path, f"{train}/b/1", f"{train}/a/2", f"{val}/b/3", f"{test}/a/4", f"{test}/b/5")
    assert listed(open_folder(tmp_path)) == [(f"{train}/a/2", "a"), (f"{train}/b/1", "b")]
    assert listed(open_folder(tmp_path, "val")) == [(f"{val}/b/3", "b")]
    assert open_folder(tmp_path, "val").labels.tolist() == [1], "numbered as in training"
    assert listed(open_folder(tmp_path, "test")) == [(f"{test}/a/4", "a"), (f"{test}/b/5", "b")]
    assert len(open_folder(tmp_path, "all")) == 5
    assert open_folder(tmp_path, "val").name == f"{tmp_path}/{val}"
    assert open_folder(tmp_path, "val").root == tmp_path
    assert refused(tmp_path, "tset").endswith(
        "has no split 'tset'; it has train, val, test, all; did you mean 'test'?"
    )


def test_val_is_the_test_split_where_there_is_no_other(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "train/b/1", "test/a/2")
    assert listed(open_folder(tmp_path, "val")) == [("test/a/2", "a")]
    assert len(open_folder(tmp_path, "train")) == 2


def test_a_training_split_alone_is_a_set_in_one_piece(tmp_path: Path) -> None:
    make(tmp_path, *(f"train/{name}/{number}" for name in "ab" for number in range(10)))
    assert len(open_folder(tmp_path, "train")) == 18
    assert len(open_folder(tmp_path, "val")) == 2
    assert open_folder(tmp_path, "all").where(0) == "train/a/0"


def test_a_test_split_alone_numbers_its_own_classes(tmp_path: Path) -> None:
    make(tmp_path, "test/a/1", "test/b/1")
    assert open_folder(tmp_path, "val").labels.tolist() == [0, 1]
    assert refused(tmp_path).endswith("has no split 'train'; it has test, all")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make(tmp_path, "train/1.jpg", "plane/1.jpg", "test/deeper/1.jpg")
    assert open_folder(tmp_path, "all").classes == ("plane", "test", "train")


def test_what_lies_beside_is_noted(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "train/b/1", "train/x.jpg", "val/a/1", "extra/c/1", "README")
    assert open_folder(tmp_path).notes == (
        f"{tmp_path}: 'extra', 'README' left out, not in the folder of a split",
        f"{tmp_path}/train: 'x.jpg' left out, not in the folder of a class",
    )


def test_hidden_files_are_left_out(tmp_path: Path) -> None:
    hidden = ("a/.DS_Store", "a/._x.jpg", "a/Thumbs.db", "a/desktop.ini", "__MACOSX/a/x.jpg")
    make(
        tmp_path,
        "a/x.jpg",
        "b/y.jpg",
        *hidden,
        ".ipynb_checkpoints/a.jpg",
        "b/@eaDir/y.jpg",
        UNREADABLE_LIST,
    )
    dataset = open_folder(tmp_path, "all")
    assert listed(dataset) == [("a/x.jpg", "a"), ("b/y.jpg", "b")]
    assert dataset.notes == ()


NAMES = [
    b"with space.jpg", "nfc \u00e9.jpg".encode(), "nfd e\u0301.jpg".encode(), "🦊.jpg".encode(),
    b"two\nlines.jpg", b"x" * 255, b"latin \xe9.jpg", b"Case.jpg", b"case.jpg", b"-rf",
    b"a\\b", b"%s",
]  # fmt: skip


def test_names_of_every_kind_are_read_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    make(tmp_path, *(b"/".join((name, name)) for name in NAMES))
    dataset = open_folder(tmp_path, "all")
    assert list(map(os.fsencode, dataset.classes)) == sorted(NAMES)
    contents = [dataset.read(index) for index in range(len(dataset))]
    assert contents == [name + b"/" + name for name in sorted(NAMES)]
    shown = [dataset.where(index) for index in range(len(dataset))]
    assert len(set(shown)) == len(NAMES)
    assert all(len(name.splitlines()) == 1 for name in shown)
    "".join(shown).encode()
    assert r"two\nlines.jpg/two\nlines.jpg" in shown
    assert r"latin \xe9.jpg/latin \xe9.jpg" in shown
    assert len(dataset.fingerprint()) == 64


def test_classes_that_look_the_same_are_kept_and_noted(tmp_path: Path) -> None:
    make(tmp_path, "Cats/1", "cats/1", "caf\u00e9/1", "cafe\u0301/1", "dogs/1")
    dataset = open_folder(tmp_path, "all")
    assert len(dataset.classes) == 5
    same = "differ only by case, spaces or Unicode form, and are kept apart"
    assert dataset.notes == (
        f"classes 'Cats', 'cats' {same}", f"classes 'cafe\u0301', 'caf\u00e9' {same}"
    )  # fmt: skip


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "1.jpg", "in/2.jpg")
    root = make(tmp_path / "photos", "a/1.jpg", "a/in/2.jpg")
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "in" / "up").symlink_to(root / "a")
    (root / "a" / "top").symlink_to(root)
    (root / "a" / "self").symlink_to(root / "a" / "self")
    (root / "a" / "gone").symlink_to(root / "nowhere")
    dataset = open_folder(root, "all")
    assert [dataset.where(index) for index in range(len(dataset))] == [
        "a/1.jpg", "a/gone", "a/in/2.jpg", "a/self", "b/1.jpg", "b/in/2.jpg"
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        dataset.read(1)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        dataset.read(3)


def test_files_that_vanish_or_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/gone", "a/huge", "b/1")
    os.mkfifo(tmp_path / "a" / "pipe")
    with open(tmp_path / "a" / "huge", "wb") as file:
        file.truncate((1 << 30) + 1)
    dataset = open_folder(tmp_path, "all")
    (tmp_path / "a" / "gone").unlink()
    with pytest.raises(FileNotFoundError) as gone:
        dataset.read(0)
    assert gone.value.strerror == "No such file or directory"
    with pytest.raises(OSError, match="Too large for an image") as huge:
        dataset.read(1)
    assert huge.value.errno == errno.EFBIG
    with pytest.raises(OSError, match="Not a plain file"):
        dataset.read(2)
    monkeypatch.chdir(tmp_path.parent)
    dataset = open_folder(Path(tmp_path.name), "all")
    monkeypatch.chdir("/")
    assert dataset.read(len(dataset) - 1) == b"b/1", "another working folder changes nothing"


def test_a_source_goes_to_worker_processes(tmp_path: Path) -> None:
    dataset = open_folder(make(tmp_path, "a/1", "b/2"), "all")
    copy = pickle.loads(pickle.dumps(dataset))
    assert isinstance(copy, FolderDataset)
    assert copy.read(1) == b"b/2"
    assert copy.fingerprint() == dataset.fingerprint()


def test_a_missing_folder(tmp_path: Path) -> None:
    make(tmp_path, "photos/a/1")
    assert refused(tmp_path / "photo") == f"no folder {tmp_path}/photo; did you mean 'photos'?"
    assert refused(tmp_path / "photos/a/1/x") == f"no folder {tmp_path}/photos/a/1/x"
    assert refused(tmp_path / "photos/a/1") == (
        f"{tmp_path}/photos/a/1 is a file; expected a folder with one folder per class"
    )
    assert refused(tmp_path / ("x" * 300)).endswith(": File name too long")


def test_folders_without_classes_or_images(tmp_path: Path) -> None:
    empty = "is empty; expected a folder of images for each class"
    assert refused(tmp_path) == f"{tmp_path} {empty}"
    make(tmp_path, ".DS_Store")
    assert refused(tmp_path) == f"{tmp_path} {empty}"
    make(tmp_path, "1.jpg", "2.jpg")
    flat = "has no folders, only files: '1.jpg', '2.jpg'; put the images into one folder per class"
    assert refused(tmp_path) == f"{tmp_path} {flat}"
    make(tmp_path, "cats/", "dogs/")
    assert refused(tmp_path) == (f"{tmp_path}: its class folders are all empty: 'cats', 'dogs'")


def test_splits_without_classes(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "train/b/1", "test/1.jpg", "val/")
    flat = "has no folders, only files: '1.jpg'; put the images into one folder per class"
    assert refused(tmp_path, "test") == f"{tmp_path}/test {flat}"
    empty = "is empty; expected a folder of images for each class"
    assert refused(tmp_path, "val") == f"{tmp_path}/val {empty}"
    assert len(open_folder(tmp_path)) == 2


def test_a_class_that_training_lacks(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "train/b/1", "val/a/1", "val/c/1", "test/A/1")
    assert refused(tmp_path, "val") == f"{tmp_path}/val: class 'c' is not in the training split"
    assert refused(tmp_path, "test") == (
        f"{tmp_path}/test: class 'A' is not in the training split "
        "(one there differs only by case or Unicode form)"
    )


def test_two_folders_for_one_split(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "val/a/1", "validation/a/1")
    assert refused(tmp_path) == (
        f"{tmp_path} has several folders for one split: 'val', 'validation'; keep one"
    )


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "cats/in\n/1", "dogs/1")
    scandir = os.scandir

    def refuse(path: bytes) -> object:
        if path.endswith(b"cats/in\n"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert refused(tmp_path) == rf"cannot read the folder {tmp_path}/cats/in\n: Permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "b/1")
    (tmp_path / "a" / "1").chmod(0)
    with pytest.raises(PermissionError):
        open_folder(tmp_path, "all").read(0)
