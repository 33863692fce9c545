"""Folders and lists as people bring them: read right, or refused with the DATA that reads them."""

import json
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


def test_nested_classes_are_named_and_can_be_chosen(tmp_path: Path) -> None:
    root = make(tmp_path, "cats/siamese/1", "cats/persian/2", "dogs/pug/3", "dogs/boxer/4")
    (note,) = notes(open_dataset(str(root), split="all"))
    assert "the classes are 'cats', 'dogs', not the folders in them, 'persian', 'siamese'" in note
    option = note.partition("write ")[2].partition(" if")[0]
    assert list(opened(option).values()) == [
        "cats/persian", "cats/siamese", "dogs/boxer", "dogs/pug"
    ]  # fmt: skip
    split = make(tmp_path / "s", "train/a/x/1", "train/b/2", "test/a/x/3")
    assert opened(f"{split},nested=true", "test") == {"test/a/x/3": "a/x"}
    assert open_dataset(f"{split},nested=true", split="test").classes == ("a/x", "b")


def test_labels_that_look_like_several_or_the_same_are_noted(tmp_path: Path) -> None:
    make(tmp_path, "1", "2", "3")
    write(tmp_path / "l.jsonl", "".join(
        f'{{"path": "{n}", "label": "{label}"}}\n'
        for n, label in [(1, "Mops, indoor"), (2, "Boxer, indoor"), (3, "mops, indoor")]
    ))  # fmt: skip
    found = " ".join(notes(open_dataset(f"{tmp_path}/l.jsonl", split="all")))
    assert "count as one class each; several are written a|b" in found
    assert "classes 'Mops, indoor', 'mops, indoor' differ only by case" in found
    root = make(tmp_path / "f", "cat/1", "cat /2")
    assert any(
        "'cat', 'cat ' differ only by case, spaces" in n for n in notes(open_data(str(root)))
    )


def test_coco_with_one_class_an_image_is_read(tmp_path: Path) -> None:
    make(tmp_path, "images/1.jpg", "images/2.jpg")
    data: dict[str, list[dict[str, object]]] = {
        "images": [{"id": 7, "file_name": "1.jpg"}, {"id": 8, "file_name": "2.jpg"}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 5, "name": "dog"}],
        "annotations": [
            {"image_id": 7, "category_id": 3},
            {"image_id": 8, "category_id": 5},
            {"image_id": 8, "category_id": 5},
        ],
    }
    write(tmp_path / "c.json", json.dumps(data))
    assert listed(mended(f"{tmp_path}/c.json")) == [
        ("images/1.jpg", "cat"),
        ("images/2.jpg", "dog"),
    ]
    data["images"].append({"id": 9, "file_name": "unlabeled.jpg"})
    write(tmp_path / "c.json", json.dumps(data))
    some = open_dataset(f"{tmp_path}/c.json,root=images", split="all")
    assert list(some.image_names()) == ["images/1.jpg", "images/2.jpg"]
    said = "1 of 3 images has no label and is left out, such as 'unlabeled.jpg'"
    assert any(note.endswith(f"is a COCO export: {said}") for note in notes(some))
    bare = {**data, "annotations": list[dict[str, object]]()}
    write(tmp_path / "c.json", json.dumps(bare))
    with pytest.raises(InputError, match="is a COCO export: of 3 images 3 have none"):
        open_data(f"json:{tmp_path}/c.json")
    del data["images"][-1]
    data["annotations"].append({"image_id": 7, "category_id": 5})
    write(tmp_path / "c.json", json.dumps(data))
    with pytest.raises(InputError, match="is a COCO export: of 2 images 1 show several classes"):
        open_data(f"json:{tmp_path}/c.json")


def test_label_studios_choices_are_read(tmp_path: Path) -> None:
    make(tmp_path, "media/1.jpg", "media/2.jpg")
    choice = {"type": "choices", "value": {"choices": ["cat"]}}
    tasks = [
        {"data": {"image": "/data/upload/4/1.jpg"}, "annotations": [{"result": [choice]}]},
        {"image": "/data/local-files/?d=media/2.jpg", "choice": "dog"},
    ]
    write(tmp_path / "tasks.json", json.dumps(tasks))
    found = opened(f"json:{tmp_path}/tasks.json,root=media")
    assert found == {"media/1.jpg": "cat", "media/2.jpg": "dog"}
    unlabeled: list[dict[str, object]] = [
        *tasks,
        {"data": {"image": "/data/upload/4/3.jpg"}, "annotations": []},
        {"data": {"image": "/data/upload/4/4.jpg"}, "annotations": []},
    ]
    write(tmp_path / "tasks.json", json.dumps(unlabeled))
    some = open_dataset(f"json:{tmp_path}/tasks.json,root=media", split="all")
    assert len(some) == 2
    assert any("2 of 4 images have no label and are left out" in note for note in notes(some))
    boxes = [
        {"type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": [name]}} for name in "ab"
    ]
    tasks[0]["annotations"] = [{"result": boxes}]
    write(tmp_path / "tasks.json", json.dumps(tasks))
    with pytest.raises(InputError, match="Label Studio export: of 2 images 1 show several"):
        open_data(f"{tmp_path}/tasks.json")


@pytest.mark.parametrize("outer", ["images/{}", "{}/images"])
def test_a_yolo_export_with_one_class_an_image_is_read(tmp_path: Path, outer: str) -> None:
    train, val = outer.format("train"), outer.format("val")
    files = [f"{train}/1.jpg", f"{train}/2.jpg", f"{val}/3.jpg"]
    make(tmp_path, *files)
    for file, text in zip(
        files, ["0 .5 .5 1 1\n", "1 .5 .5 1 1\n1 .2 .2 1 1\n", "1 0 0 1 1"], strict=True
    ):
        write(tmp_path / file.replace("images", "labels").replace(".jpg", ".txt"), text)
    write(tmp_path / "data.yaml", "names: [cat, dog]\n")
    assert opened(str(tmp_path), "train") == {files[0]: "cat", files[1]: "dog"}
    assert opened(str(tmp_path), "val") == {files[2]: "dog"}
    make(tmp_path, f"{train}/4.jpg")  # an image of the background
    assert opened(str(tmp_path), "train") == {files[0]: "cat", files[1]: "dog"}
    assert opened(str(tmp_path), "val") == {files[2]: "dog"}
    (tmp_path / train / "4.jpg").unlink()
    write(tmp_path / train.replace("images", "labels") / "1.txt", "0 1 1 1 1\n1 1 1 1 1\n")
    with pytest.raises(InputError, match="is a YOLO export: of 3 images 1 show several classes"):
        open_data(str(tmp_path))


def test_tiny_imagenet_is_read(tmp_path: Path) -> None:
    one, two = "n01443537", "n01629819"
    make(
        tmp_path,
        f"train/{one}/images/{one}_0.JPEG",
        f"train/{two}/images/{two}_0.JPEG",
        "val/images/val_0.JPEG",
        "val/images/val_1.JPEG",
        "test/images/test_0.JPEG",
    )
    write(tmp_path / "wnids.txt", f"{two}\n{one}\n")
    write(tmp_path / f"train/{one}/{one}_boxes.txt", "")
    write(tmp_path / "val/val_annotations.txt", f"val_0.JPEG\t{two}\t0\nval_1.JPEG\t{one}\t0\n")
    assert list(opened(str(tmp_path), "train").values()) == [one, two]
    assert opened(str(tmp_path), "val") == {
        "val/images/val_0.JPEG": two,
        "val/images/val_1.JPEG": one,
    }


def test_imagenet_may_be_one_folder_deeper(tmp_path: Path) -> None:
    make(tmp_path, "imagenet/train/n01443537/1.JPEG", "imagenet/val/n01443537/2.JPEG")
    assert opened(f"imagenet:{tmp_path}", "train") == {"train/n01443537/1.JPEG": "n01443537"}
