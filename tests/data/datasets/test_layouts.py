"""Folders and lists as people bring them: read right, or refused with the DATA that reads them."""

from pathlib import Path

import pytest

from tests.data.sets import listed, make
from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import notes, open_data, open_dataset


def opened(data: str, split: str = "all") -> dict[str, str]:
    """Open data, and return the class of each image by its name."""
    return dict(listed(open_dataset(data, split=split)))


def mended(data: str) -> ImageDataset:
    """Open data that is refused at first, with the DATA that the message names."""
    with pytest.raises(InputError) as caught:
        open_data(data)
    text = str(caught.value)
    assert "\n" not in text
    found = open_data(text.rpartition("write ")[2].partition(", and likewise")[0], split="all")
    assert isinstance(found, ImageDataset)
    assert all((found.root or Path(), found.where(i))[0].exists() for i in range(len(found)))
    return found


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "test"),
        ("training", "testing"),
        ("Train", "Valid"),
        ("training_set", "test_set"),
        ("train_set", "val_set"),
        ("train_data", "val_data"),
        ("seg_train", "seg_test"),
        ("train_images", "test_images"),
        ("trainset", "testset"),
        ("TrainData", "TestData"),
        ("train-images", "validation-images"),
        ("images_train", "images_val"),
        ("Training Data", "Validation Data"),
        ("train2017", "val2017"),
        ("cats_train", "cats_test"),
        ("dataset_train", "dataset_eval"),
        ("train_split", "dev_split"),
    ],
)
def test_17_spellings_of_splits(tmp_path: Path, train: str, test: str) -> None:
    root = make(tmp_path, f"{train}/a/1", f"{train}/b/2", f"{test}/a/3", f"{test}/b/4")
    assert opened(str(root), "train") == {f"{train}/a/1": "a", f"{train}/b/2": "b"}
    assert opened(str(root), "val") == {f"{test}/a/3": "a", f"{test}/b/4": "b"}


def test_classes_that_speak_of_splits_stay_classes(tmp_path: Path) -> None:
    root = make(tmp_path, "train station/1", "bus station/2", "test tube/3")
    assert set(opened(str(root)).values()) == {"train station", "bus station", "test tube"}


def test_folders_that_may_be_splits_are_asked_about(tmp_path: Path) -> None:
    make(tmp_path, "train_v1/a/1", "train_v1/b/2", "test_v2/a/3", "test_v2/b/4")
    with pytest.raises(InputError, match="'test_v2', 'train_v1' look like splits, not classes"):
        open_data(str(tmp_path))


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)
    return path


def test_kaggle_ids_and_images_without_an_ending(tmp_path: Path) -> None:
    make(tmp_path, "train_images/a1.jpg", "train_images/b2.jpg", "test_images/c3.jpg")
    write(tmp_path / "train.csv", "image_id,label\na1,cat\nb2,dog\n")
    found = mended(f"csv:{tmp_path}/train.csv")
    assert listed(found) == [("train_images/a1.jpg", "cat"), ("train_images/b2.jpg", "dog")]
    assert listed(mended(str(tmp_path))) == listed(found)


def test_ids_that_are_numbers(tmp_path: Path) -> None:
    make(tmp_path, "train/1.png", "train/22.png")
    write(tmp_path / "labels.csv", "id,breed\n1,pug\n22,boxer\n")
    assert listed(mended(f"{tmp_path}/labels.csv")) == [
        ("train/1.png", "pug"),
        ("train/22.png", "boxer"),
    ]


def test_a_list_beside_one_folder_of_images(tmp_path: Path) -> None:
    make(tmp_path, "images/1.jpg", "images/2.jpg")
    write(tmp_path / "labels.csv", "file,label\n1.jpg,a\n2.jpg,b\n")
    assert listed(mended(str(tmp_path))) == [("images/1.jpg", "a"), ("images/2.jpg", "b")]


def test_one_hot_columns(tmp_path: Path) -> None:
    """As Roboflow writes them, with spaces behind commas; a class may have no image."""
    make(tmp_path, "train/1.jpg", "train/2.jpg")
    write(
        tmp_path / "train/_classes.csv", "filename, pug, cat, owl\n1.jpg, 1, 0, 0\n2.jpg, 0, 1, 0\n"
    )
    for data in (f"csv:{tmp_path}/train/_classes.csv", str(tmp_path), str(tmp_path / "train")):
        found = mended(data)
        assert listed(found) == [("1.jpg", "pug"), ("2.jpg", "cat")]
        assert found.classes == ("pug", "cat", "owl")
    write(tmp_path / "train/_classes.csv", "filename,pug,cat\n1.jpg,1,1\n2.jpg,0,0\n")
    several = open_dataset(f"csv:{tmp_path}/train/_classes.csv,onehot=true", split="all")
    assert several.multilabel
    assert several.labels[:].tolist() == [[1, 1], [0, 0]]
    write(tmp_path / "train/_classes.csv", "filename,pug,cat\n1.jpg,1,2\n")
    with pytest.raises(InputError, match="line 2: cat: expected 0 or 1"):
        open_data(f"csv:{tmp_path}/train/_classes.csv,onehot=true")


def test_excels_text_is_read_as_cp1252(tmp_path: Path) -> None:
    make(tmp_path, "1.jpg", "Köln.jpg")
    write(tmp_path / "l.csv", "file;label\n1.jpg;Größe\nKöln.jpg;Café à €\n", "cp1252")
    found = open_dataset(f"{tmp_path}/l.csv", split="all")
    assert listed(found) == [("1.jpg", "Größe"), ("Köln.jpg", "Café à €")]
    assert any("read as Windows-1252 (cp1252): 'Größe'" in note for note in notes(found))


def test_headerless_lists_as_papers_ship(tmp_path: Path) -> None:
    make(tmp_path, "images/accordion/image_0002.jpg", "images/ant/image_0001.jpg")
    expected = {
        "images/accordion/image_0002.jpg": "accordion",
        "images/ant/image_0001.jpg": "ant",
    }
    write(tmp_path / "train.txt", "accordion/image_0002.jpg\nant/image_0001.jpg\n")
    assert opened(f"csv:{tmp_path}/train.txt,root=images") == expected
    write(tmp_path / "train.txt", "accordion/image_0002\nant/image_0001\n")
    assert dict(listed(mended(f"csv:{tmp_path}/train.txt"))) == expected
    write(tmp_path / "n.txt", "accordion/image_0002.jpg 1\nant/image_0001.jpg 0\n")
    assert list(opened(f"csv:{tmp_path}/n.txt,root=images").values()) == ["1", "0"]


def test_paths_of_windows_and_of_another_machine(tmp_path: Path) -> None:
    make(tmp_path, "photos/cats/1.jpg", "photos/dogs/2.jpg")
    write(tmp_path / "w.csv", "path,label\nphotos\\cats\\1.jpg,cat\nphotos\\dogs\\2.jpg,dog\n")
    assert set(opened(f"{tmp_path}/w.csv")) == {"photos/cats/1.jpg", "photos/dogs/2.jpg"}
    for head in ("C:\\Users\\bob\\data\\", "/home/bob/photos/"):
        far = head.replace("/", "\\") if "\\" in head else head
        mark = "\\" if "\\" in head else "/"
        rows = f"{far}cats{mark}1.jpg,cat\n{far}dogs{mark}2.jpg,dog\n"
        write(tmp_path / "far.csv", f"path,label\n{rows}")
        found = mended(f"{tmp_path}/far.csv")
        assert listed(found) == [("photos/cats/1.jpg", "cat"), ("photos/dogs/2.jpg", "dog")]


def test_a_list_that_says_nothing_of_where_its_images_are_opens(tmp_path: Path) -> None:
    """Its images may come later; training refuses it."""
    write(tmp_path / "l.csv", "path,label\nx/1.jpg,a\nx/2.jpg,b\n")
    assert len(open_dataset(f"{tmp_path}/l.csv", split="all")) == 2
